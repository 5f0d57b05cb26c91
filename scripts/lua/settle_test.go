package lua

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

// scoped is a key with a team and a tenant, each with limits and a budget.
func (b *book) scoped() {
	b.key("k1", "team", "search", "user", "ann", "rpm", "100", "tpm", "100000", "budget_usd", "5", "period", "day")
	b.hset(":team:search", "rpm", "100", "tpm", "100000", "budget_usd", "5")
	b.hset("", "budget_usd", "50", "budgets", "500/total")
}

func (b *book) counters() []string {
	return []string{":spend:key:k1:2076-11-30", ":spend:team:search:2076-11", ":spend:tenant:" + b.tenant() + ":2076-11",
		":spend:tenant:" + b.tenant() + ":total"}
}

// spends asserts the money, requests and tokens of every counter of scoped.
func (b *book) spends(spent, reserved, requests, prompt, cached, completion int64) {
	b.Helper()
	want := map[string]int64{"spent_nusd": spent, "reserved_nusd": reserved, "requests": requests, "prompt_tokens": prompt,
		"cached_tokens": cached, "completion_tokens": completion}
	for _, c := range b.counters() {
		for field, n := range want {
			if got := b.field(c, field); got != n {
				b.Fatalf("%s %s is %d, want %d: %v", c, field, got, n, b.hash(c))
			}
		}
	}
}

// minute asserts the sums of the sliding minutes of scoped, and that they equal their cells.
func (b *book) minute(requests, tokens int64) {
	b.Helper()
	for _, suffix := range []string{":rate:key:k1", ":rate:team:search"} {
		var r, t int64
		for field, v := range b.hash(suffix) {
			if strings.Contains(v, " ") {
				var cr, at int64
				fmt.Sscan(v, &cr, &at)
				ct := b.field(suffix, "t"+field)
				if cr == 0 && ct == 0 || decimal(at/1000) != field {
					b.Fatalf("cell %s: %s", field, v)
				}
				r, t = r+cr, t+ct
			}
		}
		if sr, st := b.field(suffix, "requests"), b.field(suffix, "tokens"); sr != requests || st != tokens || r != sr || t != st {
			b.Fatalf("%s: sums %d, %d, cells %d, %d, want %d, %d", suffix, sr, st, r, t, requests, tokens)
		}
	}
}

func TestSettleReplacesTheHoldOnce(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		s := b.admitted(hold(1000), tokens(10, 100, 64))
		b.minute(1, 74)
		s.Prompt, s.Cached, s.Completion, s.CostNUSD = 12, 4, 50, 333
		b.now += 1500
		b.settle(s, Replaced)
		b.spends(333, 0, 1, 12, 4, 50)
		b.minute(1, 62)
		b.nothingOpen()
		before := b.dump()
		b.settle(s, Repeated)
		s.Claim = ""
		b.settle(s, Repeated)
		if b.dump() != before {
			b.Fatal("a repeat changed something")
		}
		if r := b.records(); len(r) != 1 || r[0] != string(s.Record) {
			b.Fatalf("%q", r)
		}
	})
}

// DESIGN 6: left while queued and the like give everything back.
func TestSettleGivesBack(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		first := b.admitted(hold(1000), tokens(10, 100, 64))
		second := b.admitted(hold(1000), tokens(10, 100, 64))
		second.Keep = false
		b.settle(second, Replaced)
		b.minute(1, 74)
		first.Keep = false
		b.settle(first, Replaced)
		b.minute(0, 0)
		b.spends(0, 0, 0, 0, 0, 0)
		b.nothingOpen()
		if len(b.hash(":rate:key:k1")) != 4 {
			b.Fatalf("an empty cell stayed: %v", b.hash(":rate:key:k1"))
		}
	})
}

// A correction goes to the second it was taken in, also when that left the sum meanwhile.
func TestSettleAfterTheCellLeft(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		early, late := b.admitted(tokens(10, 0, 64)), b.admitted(tokens(10, 0, 64))
		for _, step := range []int64{20000, 20000, 19000} {
			b.now += step
			b.renew("r1", early.RID, late.RID)
		}
		other := b.admitted(tokens(1, 0, 1))
		early.Completion = 7
		b.settle(early, Replaced)
		b.minute(3, 74+7+2)
		b.now += 1000
		b.admitted(tokens(1, 0, 1)) // the first cell leaves
		b.minute(2, 4)
		late.Completion = 9
		b.settle(late, Replaced)
		b.minute(2, 4)
		b.settle(other, Replaced)
		b.minute(2, 2)
	})
}

// A scope without tpm counts requests only; giving back works there too.
func TestSettleOfAScopeThatCountsRequestsOnly(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "rpm", "10")
		first, second := b.admitted(tokens(10, 0, 64)), b.admitted(tokens(10, 0, 64))
		first.Completion = 500
		b.settle(first, Replaced)
		if h := b.hash(":rate:key:k1"); h["requests"] != "2" || h["tokens"] != "" {
			b.Fatalf("%v", h)
		}
		second.Keep = false
		b.settle(second, Replaced)
		if h := b.hash(":rate:key:k1"); h["requests"] != "1" || h["tokens"] != "" {
			b.Fatalf("%v", h)
		}
	})
}

func TestSettleChargesThePeriodOfAdmission(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		s := b.admitted(hold(1000))
		b.now += 13 * 3600000 // 1 December
		s.CostNUSD = 5
		b.settle(s, Replaced)
		b.spends(5, 0, 1, 0, 0, 0)
		if strings.Contains(b.dump(), "2076-12") {
			b.Fatal(b.dump())
		}
	})
}

func TestSettleOfALostAdmission(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		s := b.admitted(hold(1000))
		old := b.admitted(hold(1000))
		for _, suffix := range append(b.counters(), ":open", ":reservations", ":parallel", ":rate:key:k1", ":rate:team:search") {
			b.do("DEL", suffix) // the primary died with them
		}
		s.Prompt, s.Completion, s.CostNUSD = 3, 4, 42
		b.now += 3599999
		b.settle(s, Recharged)
		b.spends(42, 0, 1, 3, 0, 4)
		b.settle(s, Repeated)
		b.now++
		old.CostNUSD = 42
		b.settle(old, Doubtful)
		b.spends(42, 0, 1, 3, 0, 4)
		b.settle(old, Repeated)
		if n, _ := b.do("LLEN", ":doubtful").AsInt64(); n != 1 || len(b.records()) != 1 {
			b.Fatalf("%d doubtful, %q", n, b.records())
		}
		b.nothingOpen()
		if ttl, _ := b.do("PTTL", b.counters()[0]).AsInt64(); ttl <= 0 {
			b.Fatal("the counter it made has no expiry")
		}
	})
}

// The admission's reply was lost: the gateway settles without a claim and for nothing.
func TestSettleWithoutAClaim(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		s := b.admitted(hold(1000), tokens(10, 0, 64)) // applied
		b.settle(SettleArgs{RID: s.RID, Record: s.Record}, Replaced)
		b.spends(0, 0, 0, 0, 0, 0)
		b.minute(0, 0)
		b.nothingOpen()

		a := b.args(hold(1000)) // not applied, or not yet
		b.settle(SettleArgs{RID: a.RID, Record: []byte("{}")}, NeverApplied)
		if r, _ := b.tryAdmit(a); r.Verdict != 13 {
			b.Fatalf("%+v", r)
		}
		b.spends(0, 0, 0, 0, 0, 0)
		a = b.args()
		b.settle(SettleArgs{RID: a.RID, CostNUSD: 5, Record: []byte("{}")}, Doubtful)
		if len(b.records()) != 1 {
			b.Fatalf("%q", b.records())
		}
	})
}

func TestExpireChargesTheHoldOnce(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		s := b.admitted(hold(1000), tokens(10, 100, 64))
		mine := b.admitted(hold(5), owner("r2"))
		if n := b.expire("r1"); n != 1 {
			b.Fatalf("%d", n)
		}
		b.spends(1000, 5, 1, 10, 0, 64)
		if n := b.expire("r1"); n != 0 {
			b.Fatalf("%d the second time", n)
		}
		b.settle(mine, Replaced)
		b.nothingOpen()
		var rec struct {
			RID, Time, Team, User, Outcome string
			KeyID                          string `json:"key_id"`
			Source                         string `json:"usage_source"`
			Cost                           int64  `json:"cost_nusd"`
			Prompt                         int64  `json:"prompt_tokens"`
			Completion                     int64  `json:"completion_tokens"`
			Replaces                       bool
		}
		if err := json.Unmarshal([]byte(b.records()[0]), &rec); err != nil || rec.RID != "x y%" || rec.Time != "2076-11-30T12:00:00.250Z" ||
			rec.Team != "search" || rec.User != "ann" || rec.KeyID != "k1" || rec.Outcome != "lost" || rec.Source != "estimated" ||
			rec.Cost != 1000 || rec.Prompt != 10 || rec.Completion != 64 || rec.Replaces {
			b.Fatalf("%+v %v %s", rec, err, b.records()[0])
		}
		// The late owner: its figures replace the charge.
		s.Prompt, s.Completion, s.CostNUSD = 12, 50, 333
		b.settle(s, Undone)
		b.spends(333, 0, 2, 12, 0, 50)
		b.minute(2, 62)
		b.nothingOpen()
		r := b.records()
		if err := json.Unmarshal([]byte(r[len(r)-1]), &rec); err != nil || !rec.Replaces {
			b.Fatalf("%q", r)
		}
		b.settle(s, Repeated)
	})
}

// A reservation nobody renews is settled by the next admissions, two at a time.
func TestAdmitSettlesWhatHasLapsed(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "parallel", "3", "budget_usd", "1")
		for range 3 {
			b.admitted(hold(10), owner("dead"))
		}
		b.now += 24999
		b.refused(9, "key", hold(10))
		b.now++
		b.admitted(hold(10))
		if h := b.hash(":spend:key:k1:2076-11"); h["spent_nusd"] != "20" || h["reserved_nusd"] != "20" || len(b.records()) != 2 {
			b.Fatalf("%v", h)
		}
		b.hset(":key:k1", "rpm", "0")
		b.refused(7, "key", hold(10)) // a refusal settles them too: that is not its own
		if h := b.hash(":spend:key:k1:2076-11"); h["spent_nusd"] != "30" || h["reserved_nusd"] != "10" {
			b.Fatalf("%v", h)
		}
		// One that cannot be settled does not stand in the way of others.
		b.do("DEL", ":spend:key:k1:2076-11", b.root+":parallel")
		b.do("SET", ":spend:key:k1:2076-11", "x")
		b.now += 25000
		b.key("k2")
		b.admitted(key("k2"))
	})
}

func TestRenew(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		s := b.admitted(hold(1000), tokens(10, 100, 64))
		other := b.admitted(owner("r2"))
		b.now += 20000
		r := b.renew("r1", s.RID, "nobody", other.RID)
		if r.Renewed != 1 || r.Reopened != 0 || fmt.Sprint(r.Missing) != "[nobody]" {
			b.Fatalf("%+v", r)
		}
		b.settle(other, Replaced)
		b.now += 24999
		b.key("k2")
		b.admitted(key("k2"))
		if len(b.records()) != 1 {
			b.Fatalf("settled before its renewed deadline: %q", b.records())
		}
		b.now++
		last := b.admitted(key("k2"))
		if len(b.records()) != 2 {
			b.Fatalf("%q", b.records())
		}
		b.settle(last, Replaced)
		if r = b.renew("r1", s.RID); r.Renewed != 1 || r.Reopened != 1 {
			b.Fatalf("%+v", r)
		}
		if h := b.hash(b.counters()[0]); h["spent_nusd"] != "0" || h["reserved_nusd"] != "1000" || h["requests"] != "1" || h["completion_tokens"] != "0" {
			b.Fatalf("%v", h)
		}
		if got := b.hash(":parallel")["key:k1"]; got != "1" {
			b.Fatalf("running %q", got)
		}
		if r = b.renew("r1", s.RID); r.Reopened != 0 {
			b.Fatalf("%+v", r)
		}
		s.CostNUSD = 9
		b.settle(s, Replaced)
		if r := b.records(); !strings.HasSuffix(r[len(r)-1], `,"replaces":true}`) {
			b.Fatalf("%q", r)
		}
	})
}

// What was settled an hour ago is forgotten, a few at a time.
func TestSettleForgetsAfterAnHour(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		for i := range 120 {
			rid := fmt.Sprint("old", i)
			b.do("ZADD", ":settled", decimal(start), rid)
			b.hset(":open", rid, "x r1 rest")
		}
		b.now = b.now/8*8 + 3600000 + 8
		b.settle(b.admitted(), Replaced)
		if n, _ := b.do("ZCARD", ":settled").AsInt64(); n != 21 {
			b.Fatalf("%d settled", n)
		}
		if n := len(b.hash(":open")); n != 20 {
			b.Fatalf("%d in open", n)
		}
		b.now += 8
		b.settle(b.admitted(), Replaced)
		if n := len(b.hash(":open")); n != 0 {
			b.Fatalf("%d in open", n)
		}
	})
}

// I2 for settle, and for what renew and expire do to one reservation.
func TestSettleTwoHalves(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		s := b.admitted(hold(1000), tokens(10, 100, 64))
		for _, suffix := range append(b.counters(), ":open", ":reservations", ":parallel", ":rate:key:k1", ":rate:team:search", ":settled", ":usage") {
			b.do("DEL", ":aside")
			if n, _ := b.do("EXISTS", suffix).AsInt64(); n == 1 {
				b.do("RENAME", suffix, b.root+":aside")
			}
			b.do("SET", suffix, "x")
			before := b.dump()
			if got, err := b.trySettle(s); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				b.Fatalf("%s: %d, %v", suffix, got, err)
			}
			if suffix != ":open" && !strings.HasPrefix(suffix, ":rate") { // a charge at the hold does not touch the minute
				if n := b.expire("r1"); n != 0 {
					b.Fatalf("%s: expired %d", suffix, n)
				}
			}
			if after := b.dump(); after != before {
				b.Fatalf("%s: changed\n%s\n%s", suffix, before, after)
			}
			b.do("DEL", suffix)
			if n, _ := b.do("EXISTS", ":aside").AsInt64(); n == 1 {
				b.do("RENAME", ":aside", b.root+suffix)
			}
		}
		b.do("DEL", ":aside")
		b.settle(s, Replaced)
		b.spends(0, 0, 1, 0, 0, 0)
		b.nothingOpen()
	})
}

// What cannot be charged because somebody broke a counter keeps a deadline and stays listed as stuck, and is charged once
// the counter can be read again.
func TestWhatCannotLapseIsTriedAgain(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.key("k2", "budget_usd", "1")
		rid := b.admitted(key("k2"), hold(1000)).RID
		counter := ":spend:key:k2:2076-11"
		b.do("RENAME", counter, b.root+":aside")
		b.do("SET", counter, "x")
		for range 3 { // by the next requests of the tenant, each time after its deadline
			b.now += 25000
			b.settle(b.admitted(), Replaced)
			if at, err := b.do("ZSCORE", ":reservations", rid).AsFloat64(); err != nil || int64(at) != b.now+25000 {
				b.Fatalf("deadline %f, %v", at, err)
			}
		}
		r, err := expireAt(&pipeline.Batch{}, b.store, b.root, "r1", "0", b.now).Wait(b.Context())
		if err != nil || r.Settled != 0 || r.Stuck != 1 {
			b.Fatalf("%+v %v", r, err)
		}
		b.do("DEL", counter)
		b.do("RENAME", ":aside", b.root+counter)
		b.now += 25000
		b.settle(b.admitted(), Replaced)
		if h := b.hash(counter); h["spent_nusd"] != "1000" || h["reserved_nusd"] != "0" {
			b.Fatalf("%v", h)
		}
		b.nothingOpen()

		// A deadline of nothing is dropped.
		b.do("ZADD", ":reservations", "1", "gone", "1", "broken")
		b.hset(":open", "broken", "x")
		b.settle(b.admitted(), Replaced)
		b.nothingOpen()
	})
}

// Redis is full: nobody new is let in, and nothing is changed by trying; what runs is settled, renewed and expired.
func TestSettleWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t)
	b := newBook(t, pipeline.StoreConfig{URL: server.URL()})
	b.scoped()
	s, other := b.admitted(hold(1000)), b.admitted(hold(1000))
	server.CLI("CONFIG", "SET", "maxmemory", "1")
	if _, err := b.tryAdmit(b.args(hold(5))); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Fatalf("admitted by a full Redis: %v", err)
	}
	if r := b.renew("r1", s.RID, other.RID); r.Renewed != 2 {
		t.Fatalf("%+v", r)
	}
	s.CostNUSD = 400
	b.settle(s, Replaced)
	if n := b.expire("r1"); n != 1 {
		t.Fatalf("expired %d", n)
	}
	b.spends(1400, 0, 2, 0, 0, 0)
	b.nothingOpen()
}
