package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// TestExplainJudgesAsAdmissionsDo: for each kind of limit, what is said of the figures is what the admission says.
func TestExplainJudgesAsAdmissionsDo(t *testing.T) {
	for name, c := range map[string]struct {
		fields []string // of the team
		key    []string
		first  bool // a request was let in before, and runs
	}{
		"nothing":                {fields: []string{"rpm", "2", "tpm", "130", "parallel", "2", "budget_usd", "1"}, first: true},
		"rpm":                    {fields: []string{"rpm", "1"}, first: true},
		"rpm 0":                  {fields: []string{"rpm", "0"}},
		"tpm":                    {fields: []string{"tpm", "100"}, first: true},
		"parallel":               {fields: []string{"parallel", "1"}, first: true},
		"budget":                 {fields: []string{"budget_usd", "0.0000007", "period", "day"}, first: true},
		"two":                    {fields: []string{"budgets", "1/day 0.0000007/total"}, first: true},
		"disabled":               {fields: []string{"disabled", "1"}},
		"expired":                {fields: []string{"rpm", "5"}, key: []string{"expires_at", "1000"}},
		"models":                 {fields: []string{"models", "gpt*,qwen 7*,qwen"}},
		"not listed":             {fields: []string{"models", "gpt*, qwen"}},
		"unreadable":             {fields: []string{"rpm", "many"}},
		"order":                  {fields: []string{"tpm", "100", "budget_usd", "0"}, key: []string{"budget_usd", "0"}, first: false},
		"parallel before budget": {fields: []string{"parallel", "0"}, key: []string{"budget_usd", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newLedgers(t, lab.SharedRedis(t).URL(), 1)
			f.do("HSET", ":keys", "key_1", "k1")
			f.do("HSET", ":key:k1", "team", "search")
			f.do("HSET", ":team:search", "created_at", "0")
			if c.first {
				f.do("HSET", ":team:search", "rpm", "1000", "tpm", "100000")
				f.admit(f.list[0], f.request())
				f.do("HDEL", ":team:search", "rpm", "tpm")
			}
			f.do("HSET", ":team:search", c.fields...)
			if len(c.key) > 0 {
				f.do("HSET", ":key:k1", c.key...)
			}
			scopes, err := ReadScopes(t.Context(), f.store, f.tenant, ScopesOf(RecordLine{Tenant: f.tenant, KeyID: "key_1", Team: "search"}))
			if err != nil {
				t.Fatal(err)
			}
			r := f.request()
			said := WouldRefuse(scopes, r.Model, 60, r.HoldNUSD)
			a, _ := f.admit(f.list[0], r)
			did := RefusalOf(a)
			switch {
			case said == nil && did == nil:
			case said == nil || did == nil || said.By != did.By || said.For != did.For || said.Limit != did.Limit || said.Remaining != did.Remaining ||
				(said.ResetMS == 0) != (did.ResetMS == 0) && did.For != "parallel":
				t.Errorf("said %+v, did %+v", said, did)
			}
		})
	}
}

// TestMinuteNow: what has left by now does not count, whatever the sums say.
func TestMinuteNow(t *testing.T) {
	now := time.UnixMilli(1_700_000_100_000)
	requests, tokens, reset := minuteNow(map[string]string{"requests": "9", "tokens": "900", "last": "1", "leaves": "2",
		"1700000039": "5 1700000039999", "t1700000039": "500", "1700000050": "2 1700000050500", "t1700000050": "70", "1700000099": "1 1700000099000"}, now)
	if requests != 3 || tokens != 70 || reset != 10500*time.Millisecond {
		t.Fatalf("%d %d %v", requests, tokens, reset)
	}
}

// TestFindRequest: the latest of a label, by rid in any tenant, while it is open with what is known of it; what was replaced is
// not found again.
func TestFindRequest(t *testing.T) {
	t.Parallel()
	f := newAudits(t, lab.SharedRedis(t).URL())
	other := newAudits(t, lab.SharedRedis(t).URL())
	find := func(id string, logs ...UsageLog) (FoundRequest, error) {
		return FindRequest(context.Background(), RequestQuery{Store: f.store, Tenants: []string{other.tenant, f.tenant}, Logs: logs, ID: id})
	}
	label := func(text string) func(*Settlement, *Record) {
		return func(_ *Settlement, r *Record) { r.RequestID = text }
	}
	first := f.run(f.list[0], label("twice"))
	f.settled(f.list[0])
	second := f.run(f.list[0], label("twice"))
	for range streamPage {
		f.do("XADD", ":usage", "*", "record", `{"rid":"x","request_id":"filler"}`)
	}
	f.settled(f.list[0])
	for id, want := range map[string]string{"twice": second, first: first, second: second} {
		if x, err := find(id); err != nil || x.Where != "stream" || x.Record.RID != want || x.Record.Tenant != f.tenant {
			t.Errorf("%s: %+v %v", id, x, err)
		}
	}
	if x, err := find("twice", f.logged()); err != nil || x.Where != "r.jsonl" || x.Record.RID != second || x.Others != 1 {
		t.Errorf("in the log: %+v %v", x, err)
	}
	for _, id := range []string{"twic", "", strings.Repeat("0", 32)} {
		if x, err := find(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %+v %v", id, x, err)
		}
	}
	r := f.request()
	r.RequestID, r.EndUser = "runs now", "a b"
	a, _ := f.admit(f.list[0], r)
	for _, id := range []string{r.RID, r.RequestID} {
		x, err := find(id)
		if err != nil || x.Open == nil || x.Open.Pool != "" || x.Open.Replica != f.list[0].cfg.Replica || x.Record.RID != r.RID || x.Record.EndUser != "a b" ||
			x.Record.Model != "qwen 7b" || x.Record.Team != "search" || x.Record.HeldNUSD != a.HeldNUSD || fmt.Sprint(x.Record.Charged) != fmt.Sprint(ChargedBy(a.Claim)) {
			t.Errorf("%s: %+v %v", id, x, err)
		}
	}
}

// TestSumUsage: by one thing and by several, filtered, with a request that was charged at its hold and settled after that.
func TestSumUsage(t *testing.T) {
	t.Parallel()
	f := newAudits(t, lab.SharedRedis(t).URL())
	for range 3 {
		f.run(f.list[0], func(_ *Settlement, r *Record) { r.Model, r.Team, r.Tags = "m1", "search", []string{"red", "blue"} })
	}
	f.run(f.list[0], func(_ *Settlement, r *Record) { r.Model, r.Team, r.Cache, r.CostNUSD = "m2", "search", CacheHit, 0 })
	f.settled(f.list[0])
	r := f.request()
	r.EndUser = "a:b{c}"
	a, _ := f.admit(f.list[0], r)
	if _, err := f.store.Do(t.Context(), "SADD", ReplicaTenants(f.list[0].cfg.Replica), f.tenant); err != nil {
		t.Fatal(err)
	}
	sum := func(q UsageQuery) string {
		t.Helper()
		q.Store, q.Tenants = f.store, []string{f.tenant}
		rows, short, err := SumUsage(t.Context(), q)
		if err != nil || len(short) != 0 {
			t.Fatal(err, short)
		}
		text := []string{}
		for _, s := range rows {
			text = append(text, fmt.Sprintf("%s n=%d bad=%d hits=%d %d/%d/%d %d", strings.Join(s.Group, ","), s.Requests, s.Failed, s.CacheHits, s.Prompt, s.Cached, s.Completion, s.CostNUSD))
		}
		return strings.Join(text, "; ")
	}
	if n, err := f.list[1].Expire(t.Context(), f.list[0].cfg.Replica); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if got := sum(UsageQuery{By: []string{"outcome"}}); got != "ok n=4 bad=0 hits=1 36/12/90 1035; lost n=1 bad=1 hits=0 10/0/50 400" {
		t.Errorf("after it was lost: %s", got)
	}
	f.finish(f.list[0], r, a, func(_ *Settlement, r *Record) { r.Model = "m1" })
	f.settled(f.list[0])
	for want, q := range map[string]UsageQuery{
		"ok n=5 bad=0 hits=1 48/16/120 1380":                              {By: []string{"outcome"}},
		"m1 n=4 bad=0 hits=0 48/16/120 1380; m2 n=1 bad=0 hits=1 0/0/0 0": {By: []string{"model"}},
		"m1,search n=3 bad=0 hits=0 36/12/90 1035":                        {By: []string{"model", "team"}, Team: "search", Model: "m1"},
		"red n=3 bad=0 hits=0 36/12/90 1035":                              {By: []string{"tag"}, Tag: "red"},
		" n=5 bad=0 hits=1 48/16/120 1380":                                {},
		"":                                                                {Since: time.Now().Add(time.Hour)},
		time.Now().UTC().Format("2006-01-02") + " n=5 bad=0 hits=1 48/16/120 1380": {By: []string{"day"}, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)},
	} {
		if got := sum(q); got != want {
			t.Errorf("%+v: %s, want %s", q.By, got, want)
		}
	}
	if _, _, err := SumUsage(t.Context(), UsageQuery{By: []string{"colour"}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
}
