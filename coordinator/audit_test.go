package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

// audits is ledgers of which every request is recorded as the gateway records it, and logged.
type audits struct {
	*ledgers
	mu  sync.Mutex
	log bytes.Buffer
}

func newAudits(t *testing.T, url string) *audits {
	a := &audits{ledgers: newLedgers(t, url, 2)}
	a.do("HSET", ":key:k1", "team", "search", "tags", "blue", "budgets", "500/day 5000/month")
	a.do("HSET", ":team:search", "budget_usd", "100", "period", "week")
	a.do("HSET", ":tag:blue", "rpm", "100000")
	a.do("HSET", ":enduser:"+SafeID("a:b{c}"), "tpm", "100000000")
	return a
}

// run lets one request in, and settles it as s says.
func (f *audits) run(l *Ledger, s func(*Settlement, *Record)) string {
	f.Helper()
	r := f.request()
	r.EndUser, r.Stream = "a:b{c}", true
	a, _ := f.admit(l, r)
	if a.Verdict != Admitted {
		f.Errorf("%+v", a)
	}
	f.finish(l, r, a, s)
	return r.RID
}

func (f *audits) finish(l *Ledger, r Request, a Admission, s func(*Settlement, *Record)) {
	rec := Record{Time: time.Now(), RID: r.RID, Tenant: f.tenant, Replica: l.cfg.Replica, Outcome: OutcomeOK, UsageSource: "backend", CostKnown: true,
		Prompt: 12, Cached: 4, Completion: 30, CostNUSD: 345, Charged: ChargedBy(a.Claim)}
	end := Settlement{Tenant: f.tenant, RID: r.RID, Claim: a.Claim, AdmittedAt: a.AdmittedAt, KeepRequest: true, Prompt: 12, Cached: 4, Completion: 30, CostNUSD: 345}
	if s != nil {
		s(&end, &rec)
	}
	end.Record = rec.AppendJSON(nil)
	f.mu.Lock()
	f.log.Write(append(end.Record, '\n'))
	f.mu.Unlock()
	f.settle(l, end)
}

func (f *audits) audit(logs ...UsageLog) TenantAudit {
	f.Helper()
	return f.auditOf("", logs...)
}

func (f *audits) auditOf(period string, logs ...UsageLog) TenantAudit {
	f.Helper()
	all, err := Audit(context.Background(), AuditConfig{Store: f.store, Tenants: []string{f.tenant}, Period: period, Logs: logs, Dir: f.TempDir()})
	if err != nil || len(all) != 1 {
		f.Fatalf("%v %v", all, err)
	}
	return all[0]
}

func (f *audits) logged() UsageLog {
	f.mu.Lock()
	defer f.mu.Unlock()
	return UsageLog{"r.jsonl", bytes.NewReader(bytes.Clone(f.log.Bytes()))}
}

// names is the kinds that differ, with their subjects, in order.
func names(t TenantAudit) string {
	var all []string
	for _, d := range t.Differences {
		all = append(all, strings.TrimRight(d.Kind+" "+d.Counter+d.RID+" "+d.Field, " "))
	}
	return strings.Join(all, "\n")
}

// A1: whatever runs meanwhile, also over more counters than are read at one instant, on a node and on a cluster.
func TestAuditAgreesWhileRequestsRun(t *testing.T) {
	for name, url := range map[string]func(*testing.T) string{
		"node":    func(t *testing.T) string { return lab.SharedRedis(t).URL() },
		"cluster": func(t *testing.T) string { return lab.Cluster(t, 3).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newAudits(t, url(t))
			for i := range counterPage + 10 {
				f.do("HSET", fmt.Sprintf(":spend:enduser:e%d:2026-11", i), "requests", "0")
			}
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						f.run(f.list[i%2], func(s *Settlement, r *Record) {
							switch n % 5 {
							case 1: // a hit in the cache: its tokens are information
								s.Prompt, s.Cached, s.Completion, s.CostNUSD = 0, 0, 0, 0
								r.Cache, r.CostNUSD = CacheHit, 0
							case 2: // given back
								*s = Settlement{Tenant: s.Tenant, RID: s.RID, Claim: s.Claim, AdmittedAt: s.AdmittedAt}
								r.Charged, r.Prompt, r.Cached, r.Completion, r.CostNUSD = nil, 0, 0, 0, 0
							case 3:
								r.UsageSource = "estimated"
							}
						})
					}
				})
			}
			for i := 0; i < 5 || f.audit().Estimated == 0; i++ {
				if a := f.audit(); len(a.Differences) > 0 {
					t.Errorf("while requests run:\n%s", names(a))
				}
			}
			stop()
			wg.Wait()
			for _, l := range f.list {
				f.settled(l)
			}
			a := f.audit(f.logged())
			// key: day and month; team: week; tenant has no record; tag, end user: month
			if len(a.Differences) > 0 || a.Open != 0 || a.Counters != counterPage+10+5 || a.Records == 0 || a.CostNUSD%345 != 0 || a.CostNUSD == 0 {
				t.Fatalf("%s\n%+v", names(a), a)
			}
		})
	}
}

// Each thing that somebody can spoil is named, and nothing else.
func TestAuditNamesEachDifference(t *testing.T) {
	month := time.Now().UTC().Format("2006-01")
	key, tag := "key:key_1:"+month, "tag:blue:"+month
	for name, c := range map[string]struct {
		spoil   func(f *audits, rid string)
		want    string // RID stands for the request
		withLog bool
	}{
		"agrees":       {func(*audits, string) {}, "", true},
		"tokens":       {func(f *audits, _ string) { f.do("HINCRBY", ":spend:"+key, "cached_tokens", "7") }, "counter " + key + " cached_tokens", false},
		"money":        {func(f *audits, _ string) { f.do("HINCRBY", ":spend:"+tag, "spent_nusd", "-45") }, "counter " + tag + " spent_nusd", true},
		"counter gone": {func(f *audits, _ string) { f.do("DEL", ":spend:"+tag) }, "counter " + tag + " requests", false},
		"no number":    {func(f *audits, _ string) { f.do("HSET", ":spend:"+tag, "requests", "x") }, "counter " + tag + " requests\nunreadable " + tag + " requests", false},
		"reserved":     {func(f *audits, _ string) { f.do("HINCRBY", ":spend:"+key, "reserved_nusd", "50") }, "reserved " + key + " reserved_nusd", false},
		"running":      {func(f *audits, _ string) { f.do("HSET", ":parallel", "key:key_1", "2") }, "running  key:key_1", false},
		"stuck":        {func(f *audits, _ string) { f.do("ZADD", ":reservations", "1000", "ff") }, "stuck", false},
		"doubtful": {func(f *audits, rid string) {
			f.do("RPUSH", ":doubtful", `{"rid":"ee","cost_nusd":9,"charged":["`+key+`"]}`)
		}, "doubtful ee", false},
		"double": {func(f *audits, rid string) {
			f.do("XADD", ":usage", "*", "record", `{"rid":"`+rid+`","cost_nusd":345,"prompt_tokens":12,"cached_tokens":4,"completion_tokens":30,"charged":["`+
				strings.Join(f.charged(), `","`)+`"]}`)
		}, "double RID", false},
		"logged twice": {func(f *audits, _ string) { f.log.Write(bytes.Clone(f.log.Bytes())) }, "double RID", true},
		"missing": {func(f *audits, _ string) {
			fmt.Fprintf(&f.log, `{"time":%q,"rid":"dd","tenant":%q,"cost_nusd":5,"charged":[%q]}`+"\n", FormatTime(time.Now()), f.tenant, key)
		}, "missing dd", true},
		"unlogged":   {func(f *audits, _ string) { f.log.Reset() }, "unlogged RID", true},
		"torn line":  {func(f *audits, _ string) { f.log.WriteString(`{"time":"2026-11-3`) }, "unreadable", true},
		"long line":  {func(f *audits, _ string) { f.log.WriteString(strings.Repeat("x", 3*maxLogLine) + "\n") }, "unreadable", true},
		"own figure": {func(f *audits, _ string) { replace(&f.log, `"cost_nusd":345`, `"cost_nusd":344`) }, "figures RID", true},
		"bad claim":  {func(f *audits, _ string) { f.do("HSET", ":open", "cc", "o what") }, "unreadable cc", false},
		"trimmed": {func(f *audits, _ string) {
			f.run(f.list[0], nil)
			f.settled(f.list[0])
			f.do("XTRIM", ":usage", "MAXLEN", "1")
		}, "incomplete", false},
		"trimmed, with its log": {func(f *audits, _ string) {
			first := time.Now().UnixMilli() // the stream tells its records' ages in milliseconds
			lab.Eventually(f, time.Second, func() bool { return time.Now().UnixMilli() > first+1 }, "the clock goes on")
			f.run(f.list[0], nil)
			f.settled(f.list[0])
			f.do("XTRIM", ":usage", "MAXLEN", "1")
		}, "", true},
		"others' lines": {func(f *audits, _ string) {
			f.log.WriteString(`{"rid":"aa","tenant":"other","cost_nusd":5,"charged":["key:k:2026-11"]}` + "\n\n" + `{"rid":"bb","tenant":""}` + "\n")
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newAudits(t, lab.SharedRedis(t).URL())
			rid := f.run(f.list[0], nil)
			f.settled(f.list[0])
			c.spoil(f, rid)
			var logs []UsageLog
			if c.withLog {
				logs = append(logs, f.logged())
			}
			a := f.audit(logs...)
			if got := strings.ReplaceAll(names(a), rid, "RID"); got != c.want {
				t.Errorf("differences:\n%s\nwant:\n%s\n%+v", got, c.want, a.Differences)
			}
			for _, d := range a.Differences {
				if d.Text == "" || d.Tenant != f.tenant || strings.Contains(d.Text, "\n") {
					t.Errorf("%+v", d)
				}
			}
		})
	}
}

func replace(b *bytes.Buffer, old, by string) {
	text := strings.ReplaceAll(b.String(), old, by)
	b.Reset()
	b.WriteString(text)
}

// charged is the counters a request of f is charged in.
func (f *audits) charged() []string {
	r := f.request()
	r.EndUser = "a:b{c}"
	a, _ := f.admit(f.list[1], r)
	f.settle(f.list[1], Settlement{Tenant: f.tenant, RID: r.RID, Claim: a.Claim, AdmittedAt: a.AdmittedAt})
	f.settled(f.list[1])
	return ChargedBy(a.Claim)
}

// A2, A3: a dead replica's request is charged at its hold, and by its late settlement after that; what is open is no
// difference.
func TestAuditFollowsADeadReplica(t *testing.T) {
	t.Parallel()
	f := newAudits(t, lab.SharedRedis(t).URL())
	r := f.request()
	r.EndUser, r.Tags = "a:b{c}", []string{"red"}
	admitted, _ := f.admit(f.list[0], r)
	if _, err := f.store.Do(t.Context(), "SADD", ReplicaTenants(f.list[0].cfg.Replica), f.tenant); err != nil { // as Run does
		t.Fatal(err)
	}
	if a := f.audit(f.logged()); names(a) != "" || a.Open != 1 || a.OpenNUSD != 400 || a.Records != 0 {
		t.Fatalf("%+v", a)
	}
	if n, err := f.list[1].Expire(t.Context(), f.list[0].cfg.Replica); n != 1 || err != nil {
		t.Fatalf("%d %v", n, err)
	}
	if a := f.audit(f.logged()); names(a) != "" || a.Open != 0 || a.Lost != 1 || a.LostNUSD != 400 || a.CostNUSD != 400 {
		t.Fatalf("%+v", a)
	}
	f.finish(f.list[0], r, admitted, nil)
	f.settled(f.list[0])
	if a := f.audit(f.logged()); names(a) != "" || a.Lost != 0 || a.Records != 1 || a.CostNUSD != 345 {
		t.Fatalf("%+v", a)
	}
	if a := f.audit(); names(a) != "" || a.CostNUSD != 345 {
		t.Fatalf("%+v", a)
	}
}

func TestAuditOfOnePeriod(t *testing.T) {
	t.Parallel()
	f := newAudits(t, lab.SharedRedis(t).URL())
	f.run(f.list[0], nil)
	f.settled(f.list[0])
	now := time.Now().UTC()
	f.do("HINCRBY", ":spend:key:key_1:"+now.Format("2006-01-02"), "requests", "1")
	if a := f.auditOf(now.Format("2006-01"), f.logged()); a.Counters != 4 || len(a.Differences) != 1 {
		t.Errorf("%+v", a)
	}
	year, week := now.ISOWeek()
	if a := f.auditOf(fmt.Sprintf("%04d-W%02d", year, week), f.logged()); a.Counters != 1 || a.Records != 1 || len(a.Differences) != 0 {
		t.Errorf("%+v", a)
	}
	if a := f.auditOf("2020-01", f.logged()); a.Counters != 0 || a.Records != 0 || len(a.Differences) != 0 {
		t.Errorf("%+v", a)
	}
}

// A4: with more than fits into memory, records of one rid still meet, and nothing stays on disk.
func TestAuditPilesGoToDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newPiles(dir)
	const rids = 12_000
	for _, n := range []int{1, 2} {
		for i := range rids {
			if err := p.put(audited{RID: fmt.Sprintf("%032x", i), Tenant: "acme", AtMS: int64(n), Charged: []string{"key:key_1:2026-11", "tenant:acme:2026-11"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("nothing is on disk: %v %v", files, err)
	}
	seen := 0
	if err := p.each(func(records []audited) {
		if seen++; len(records) != 2 || records[0].AtMS != 1 || records[1].AtMS != 2 || records[0].RID != records[1].RID {
			t.Fatalf("%+v", records)
		}
	}); err != nil || seen != rids {
		t.Fatalf("%d %v", seen, err)
	}
	p.remove()
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Fatalf("left: %v", files)
	}
}

func TestAuditOfAStoreThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	store, err := pipeline.NewStore(pipeline.StoreConfig{URL: "redis://127.0.0.1:1/0"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Audit(t.Context(), AuditConfig{Store: store}); err == nil {
		t.Fatal("no error")
	}
}

// TestPeriodEnd: the end of a period is the beginning of the next.
func TestPeriodEnd(t *testing.T) {
	created := time.Unix(1_700_000_123, 0)
	for _, spec := range []string{"day", "week", "month", "30d", "12h", "10s"} {
		for at := time.Date(2024, 12, 20, 13, 0, 0, 0, time.UTC); at.Year() < 2027; at = at.Add(31 * time.Hour) {
			name := periodName(spec, at, created)
			end := periodEnd(name)
			if !end.After(at) || periodName(spec, end.Add(-time.Second), created) != name || periodName(spec, end, created) == name {
				t.Fatalf("%s of %v ends %v", name, at, end)
			}
		}
	}
	for _, name := range []string{"total", "", "x@y", "5x@1", "2026-Wx", "2026-13"} {
		if end := periodEnd(name); !end.IsZero() {
			t.Errorf("%s ends %v", name, end)
		}
	}
}
