package lua

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/headgate/headgate/pipeline"
)

func TestAdmitIdentity(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.refused(2, "", key("nobody"))
		b.key("k2", "team", "search", "user", "ann", "priority", "3", "expires_at", decimal(start+1))
		b.hset(":team:search", "isolate_prefix", "1")
		r := b.admit(key("k2"))
		if r.Verdict != 1 || r.Key != "k2" || r.Name != "n-k2" || r.Team != "search" || r.User != "ann" || r.Priority != 3 || !r.Isolate ||
			r.AtMS != b.now || r.Budgeted || r.Requests.Limit != -1 || r.Tokens.Limit != -1 {
			b.Fatalf("%+v", r)
		}
		b.now++
		b.refused(4, "key", key("k2")) // KEY-3: at the stated instant
		for _, garbage := range []string{"tomorrow", "-1", "1e30", "99999999999999999999"} {
			b.key("k2", "expires_at", garbage)
			b.refused(4, "key", key("k2"))
			r, err := Allowed(&pipeline.Batch{}, b.store, b.root, "k2", func(r AllowedReply) int64 { return r.Verdict }).Wait(b.Context())
			if err != nil || r != 4 {
				b.Fatalf("allowed: expires_at %s: %d %v", garbage, r, err)
			}
		}
		b.key("k2", "expires_at", "")
		b.admitted(key("k2"))
		b.hset(":team:search", "disabled", "1")
		b.refused(3, "team", key("k2"))
		b.key("k2", "disabled", "true")
		b.refused(3, "key", key("k2"))
		b.hset("", "disabled", "1")
		b.refused(3, "tenant")
		b.hset("", "disabled", "0")
		b.admitted()
	})
}

func TestAdmitUnreadableRecordRefuses(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		for _, f := range [][2]string{{"rpm", "ten"}, {"rpm", "-1"}, {"rpm", ""}, {"tpm", "1e9"}, {"tpm", "nan"}, {"parallel", "1.5"},
			{"budget_usd", "lots"}, {"budget_usd", "9000000.1"}, {"budget_usd", "10000000"}, {"budget_usd", "-5"}, {"budget_usd", "inf"},
			{"budgets", "5"}, {"budgets", "5/fortnight"}, {"budgets", "5/day x"}, {"budgets", "5/0d"}, {"team", "a b"}, {"team", "a:b"},
			{"user", strings.Repeat("u", 65)}, {"priority", "10"}, {"priority", "high"}, {"priority", ""}} {
			b.hset(":key:k1", f[0], f[1])
			before := b.dump()
			b.refused(12, "key")
			if after := b.dump(); after != before {
				b.Fatalf("%v: changed\n%s\n%s", f, before, after)
			}
			b.do("HDEL", ":key:k1", f[0])
		}
		b.hset(":key:k1", "budget_usd", "5", "period", "fortnight")
		b.refused(12, "key")
		for _, created := range []string{"", "x", "-5", "1.5", "99999999999999999999"} {
			b.hset(":key:k1", "period", "10s", "created_at", created)
			b.refused(12, "key")
		}
		b.do("HDEL", ":key:k1", "budget_usd", "period")
		b.admitted() // created_at is not read
		b.hset(":key:k1", "budgets", "5/10s")
		b.refused(12, "key")
		b.do("HDEL", ":key:k1", "budgets", "created_at")
		b.hset("", "priority", "first")
		b.refused(12, "tenant")
		b.do("HDEL", "", "priority")
		b.hset("", "rpm", "many")
		b.refused(12, "tenant")
		b.do("HDEL", "", "rpm")
		b.hset(":key:half", "rpm", "5")
		b.refused(12, "key", key("half"))

		// A counter somebody broke by hand.
		b.hset(":key:k1", "budget_usd", "5")
		b.hset(":spend:key:k1:2076-11", "spent_nusd", "nan")
		b.refused(12, "key")
		b.hset(":spend:key:k1:2076-11", "spent_nusd", "0")
		b.admitted()
	})
}

func TestAdmitModelList(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		names := []string{"fam/x", "famz/x", "xfam/x", "FAM/x", "solo", "solo2", "fam/nope", "fam/", "fam", "Solo", "other", "a-b-c", "a--c"}
		for list, allowed := range map[string]string{
			"fam/*,solo":   "fam/x solo fam/nope", // KEY-2
			" solo , fam ": "solo fam",
			"*":            strings.Join(names, " "),
			"**":           strings.Join(names, " "),
			"*/x":          "fam/x famz/x xfam/x FAM/x",
			"a-*-c":        "a-b-c",
			"a*c":          "a-b-c a--c",
			"*o*":          "solo solo2 fam/nope Solo",
			"f*/*":         "fam/x famz/x fam/nope",
			"":             "",
			"%a+,.*":       "",
		} {
			b.hset(":key:k1", "models", list)
			for _, name := range names {
				want := strings.Contains(" "+allowed+" ", " "+name+" ")
				if r := b.admit(model(name)); (r.Verdict == 1) != want {
					b.Fatalf("list %q, model %q: verdict %d", list, name, r.Verdict)
				}
			}
		}
		b.hset(":key:k1", "models", "fam/*")
		b.hset("", "models", "fam/x,solo")
		b.admitted(model("fam/x"))
		b.refused(5, "key", model("solo"))
		b.refused(5, "tenant", model("fam/y"))
		unknown := func(a *AdmitArgs) { a.Known = false }
		b.refused(5, "key", model("nope"), unknown)
		before := b.dump()
		b.refused(6, "", model("fam/x"), unknown)
		if b.dump() != before {
			b.Fatal("an unknown model was counted")
		}
	})
}

// RATE-1: ten admissions at rpm 10 carry the remaining values 9 to 0; the eleventh is told when the first leaves.
func TestAdmitRequestsPerMinute(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "rpm", "10")
		for i := range int64(10) {
			r := b.admit()
			if r.Verdict != 1 || r.Requests != (Minute{10, 9 - i, 60000}) {
				b.Fatalf("admission %d: %+v", i, r)
			}
			b.now += 300
		}
		r := b.refused(7, "key") // 3 s after the first; the first cell holds three (.250 .550 .850) and leaves with its last
		if r.Limit != 10 || r.Remaining != 0 || !r.Lasting || r.Requests.Remaining != 0 || r.ResetMS != 60000-3000+600 {
			b.Fatalf("%+v", r)
		}
		b.now += r.ResetMS - 1
		if again := b.refused(7, "key"); again.ResetMS != 1 {
			b.Fatalf("%+v", again)
		}
		b.now++
		for range 3 {
			b.admitted()
		}
		b.refused(7, "key")
	})
}

// In no 60 seconds more than the limit, wherever the window is laid; a request is refused only while the cells that have
// not left hold the limit, so capacity comes back second by second, and after the stated wait.
func TestAdmitSlidingMinute(t *testing.T) {
	t.Parallel()
	for _, steps := range [][]int64{{0, 1, 40, 999, 1500, 2300, 6000}, {500, 1700, 4000, 59000, 60000, 61000}, {0, 3, 20, 100}} {
		onAll(t, func(b *book) { slidingMinute(b, steps) })
	}
}

func slidingMinute(b *book, steps []int64) {
	const limit = 20
	b.hset(":key:k1", "rpm", decimal(limit))
	cells := map[int64]*cell{}
	var passed []int64
	refusals := 0
	random := rand.New(rand.NewPCG(1, uint64(len(steps))))
	for range 700 {
		b.now += steps[random.IntN(len(steps))]
		if random.IntN(3) > 0 {
			b.now -= b.now % 1000 // many in one second, and on its edge
			b.now += 1000
		}
		var n, wait int64
		for _, c := range cells {
			if c.at+60000 > b.now {
				n += c.n
			}
		}
		r := b.admit()
		if (r.Verdict == 1) != (n < limit) {
			b.Fatalf("verdict %d with %d in the minute", r.Verdict, n)
		}
		if r.Verdict != 1 {
			refusals++
			for _, c := range cells {
				if left := c.at + 60000 - b.now; left > 0 && c.n > 0 && (wait == 0 || left < wait) {
					wait = left
				}
			}
			if r.ResetMS != wait || r.Requests.Remaining != 0 {
				b.Fatalf("reset %d, want %d: %+v", r.ResetMS, wait, r)
			}
			if b.now += wait; random.IntN(2) == 0 {
				continue
			}
			if r = b.admit(); r.Verdict != 1 {
				b.Fatalf("refused after the stated wait: %+v", r)
			}
		}
		passed = append(passed, b.now)
		c := cells[b.now/1000]
		if c == nil {
			c = &cell{}
			cells[b.now/1000] = c
		}
		c.n, c.at = c.n+1, b.now
	}
	for i := limit; i < len(passed); i++ {
		if passed[i]-passed[i-limit] < 60000 {
			b.Fatalf("%d admissions in %d ms", limit+1, passed[i]-passed[i-limit])
		}
	}
	if len(passed) < 100 || len(b.hash(":rate:key:k1")) > 65 {
		b.Fatalf("%d passed, %d refused, %d fields", len(passed), refusals, len(b.hash(":rate:key:k1")))
	}
}

// A cell counts for a minute after its last admission, also when it is the only one.
func TestAdmitCountsACellToItsEnd(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "rpm", "2")
		b.admitted()
		b.now += 700
		b.admitted()
		b.now += 59999
		if r := b.refused(7, "key"); r.ResetMS != 1 {
			b.Fatalf("%+v", r)
		}
		b.now++
		b.admitted()
	})
}

func TestAdmitClockNeverRunsBack(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "rpm", "2")
		b.admitted()
		b.now -= 30000
		b.admitted()
		r := b.refused(7, "key")
		if r.ResetMS != 60000 {
			b.Fatalf("%+v", r) // counted from the hash's own time, which did not go back
		}
		b.now -= 60000 // more than a minute behind the hash: it starts anew
		b.admitted()
		b.admitted()
		b.refused(7, "key")
	})
}

// RATE-2 and the rule of DESIGN 6 for token holds.
func TestAdmitTokensPerMinute(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "tpm", "100")
		s := b.admitted(tokens(10, 0, 256)) // cut to what is left
		if r := b.refused(8, "key", tokens(10, 0, 256)); r.Remaining != 0 || r.Limit != 100 || r.Tokens.Remaining != 0 || r.ResetMS != 60000 {
			b.Fatalf("%+v", r)
		}
		s.Prompt, s.Completion = 10, 20
		b.settle(s, Replaced)
		if n := b.field(":rate:key:k1", "tokens"); n != 30 {
			b.Fatalf("tokens %d", n)
		}
		r := b.refused(8, "key", tokens(10, 10000, 64)) // (c): the cap does not fit into the whole limit
		if r.ResetMS != 0 || r.Remaining != 70 {
			b.Fatalf("%+v", r)
		}
		b.refused(8, "key", tokens(10, 70, 61)) // 71 > 70 left, though the cap fits the whole limit
		two := b.admitted(tokens(10, 70, 40))
		if n := b.field(":rate:key:k1", "tokens"); n != 80 {
			b.Fatalf("tokens %d", n)
		}
		two.Keep = true
		b.settle(two, Replaced) // (d): all attempts failed; tokens back, request stays
		if h := b.hash(":rate:key:k1"); h["tokens"] != "30" || h["requests"] != "2" {
			b.Fatalf("%v", h)
		}

		// The scope with least left cuts the hold in all.
		b.hset("", "tpm", "50")
		r = b.admit(tokens(10, 0, 256))
		if r.Verdict != 1 || r.HeldTokens != 50 || r.Tokens != (Minute{50, 0, 60000}) || b.field(":rate:key:k1", "tokens") != 80 {
			b.Fatalf("%+v %v", r, b.hash(":rate:key:k1"))
		}
	})
}

func TestAdmitParallel(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		s := b.admitted() // counted before there is a limit
		b.hset(":key:k1", "parallel", "2")
		b.admitted()
		r := b.refused(9, "key")
		if r.Limit != 2 || r.Remaining != 0 || r.Lasting {
			b.Fatalf("%+v", r)
		}
		b.settle(s, Replaced)
		b.admitted()
		b.hset(":key:k1", "parallel", "0")
		b.refused(9, "key")
	})
}

func TestAdmitBudget(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "budget_usd", "0.001", "period", "month")
		s := b.admitted(hold(400000))
		b.admitted(hold(600000))
		r := b.refused(11, "key", hold(1))
		ends := int64(3374006400000) // 2076-12-01
		if r.Limit != 1000000 || r.Remaining != 0 || r.ResetMS != ends-b.now || r.Lasting || !r.Budgeted {
			b.Fatalf("%+v", r)
		}
		s.CostNUSD = 1000000
		b.settle(s, Replaced)
		if r = b.refused(11, "key", hold(1)); !r.Lasting {
			b.Fatalf("spent at the limit is not lasting: %+v", r)
		}
		if r = b.refused(11, "key", hold(1000001)); r.ResetMS != 0 || r.Lasting { // a smaller one may pass in a new period
			b.Fatalf("more than the whole budget: %+v", r)
		}
		b.hset(":key:k1", "budget_usd", "0")
		if r = b.refused(11, "key", hold(1)); r.ResetMS != 0 || !r.Lasting {
			b.Fatalf("a budget of 0: %+v", r)
		}
		b.hset(":key:k1", "budget_usd", "0.001")
		if ttl, _ := b.do("PEXPIRETIME", ":spend:key:k1:2076-11").AsInt64(); ttl/1000 != ends/1000+35*86400 { // the embedded store adds a few ms
			b.Fatalf("expires at %d", ttl)
		}
		b.refused(10, "key", func(a *AdmitArgs) { a.Priced = false })

		// BUD-2: the next period counts from 0, the late settlement goes to its own.
		b.now = ends
		b.admitted(hold(1000000))
		if h := b.hash(":spend:key:k1:2076-12"); h["spent_nusd"] != "0" || h["reserved_nusd"] != "1000000" {
			b.Fatalf("%v", h)
		}
	})
}

func TestAdmitSeveralBudgets(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "budget_usd", "50", "period", "month", "budgets", "5/day, 4/day 100/30d", "created_at", "86400500")
		b.hset("", "budgets", "0.5/total")
		s := b.admitted(hold(400000000))
		r := b.refused(11, "tenant", hold(400000000))
		if r.ResetMS != 0 || r.Remaining != 100000000 || r.ScopeID != b.tenant() {
			b.Fatalf("%+v", r)
		}
		b.hset("", "budgets", "100/total")
		r = b.refused(11, "key", hold(3700000000)) // the smaller of the two a day
		if r.Limit != 4000000000 || r.ResetMS != 12*3600000-250 {
			b.Fatalf("%+v", r)
		}
		s.CostNUSD = 7
		b.settle(s, Replaced)
		start30 := (start/1000-86400)/(30*86400)*(30*86400) + 86400
		for _, name := range []string{"key:k1:2076-11", "key:k1:2076-11-30", fmt.Sprintf("key:k1:30d@%d", start30), "tenant:" + b.tenant() + ":total"} {
			if h := b.hash(":spend:" + name); h["spent_nusd"] != "7" || h["reserved_nusd"] != "0" || h["requests"] != "1" {
				b.Fatalf("%s: %v\n%s", name, h, b.dump())
			}
		}
	})
}

// tenant is the tenant's name, the id of the tenant's scope.
func (b *book) tenant() string { return strings.TrimSuffix(strings.TrimPrefix(b.root, "hg:{t:"), "}") }

// I3: money near 9 million USD keeps its last digit.
func TestAdmitMoneyIsExact(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "budget_usd", "9000000", "period", "total")
		s := b.admitted(hold(8999999999999998))
		if got := b.hash(":spend:key:k1:total")["reserved_nusd"]; got != "8999999999999998" {
			b.Fatal(got)
		}
		r := b.refused(11, "key", hold(3))
		if r.Limit != 9000000000000000 || r.Remaining != 2 {
			b.Fatalf("%+v", r)
		}
		s.CostNUSD = 8999999999999997
		b.settle(s, Replaced)
		if got := b.hash(":spend:key:k1:total")["spent_nusd"]; got != "8999999999999997" {
			b.Fatal(got)
		}
		b.admitted(hold(3))
	})
}

// RATE-3: a request refused by one limit has been counted by none.
func TestAdmitAllOrNothing(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.key("k2", "team", "search", "rpm", "100", "tpm", "1000", "parallel", "5", "budget_usd", "5")
		b.hset(":team:search", "rpm", "100", "budget_usd", "0.000000001", "period", "day")
		b.hset("", "tpm", "1000")
		b.admitted(key("k2"), hold(1), tokens(1, 0, 9))
		before := b.dump()
		b.refused(11, "team", key("k2"), hold(1), tokens(1, 0, 9))
		b.hset("", "rpm", "0")
		if r := b.refused(7, "tenant", key("k2"), tokens(1, 0, 9)); r.ResetMS != 0 {
			b.Fatalf("%+v", r)
		}
		b.do("HDEL", "", "rpm")
		if after := b.dump(); after != before {
			b.Fatalf("changed\n%s\n%s", before, after)
		}
	})
}

func TestAdmitIsIdempotent(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "rpm", "5", "tpm", "1000", "budget_usd", "5")
		a := b.args(hold(70), tokens(5, 0, 10))
		first, err := b.tryAdmit(a)
		if err != nil {
			b.Fatal(err)
		}
		before := b.dump()
		a.nowMS += 5000
		again, err := b.tryAdmit(a)
		if err != nil || again.Verdict != 1 || again.Claim != first.Claim || again.HeldNUSD != 70 || again.HeldTokens != 15 || again.AtMS != first.AtMS {
			b.Fatalf("%+v %v", again, err)
		}
		if b.dump() != before {
			b.Fatal("a repeat changed something")
		}
		b.settle(SettleArgs{RID: a.RID, Claim: first.Claim, Keep: true}, Replaced)
		before = b.dump()
		if late, _ := b.tryAdmit(a); late.Verdict != 13 {
			b.Fatalf("%+v", late)
		}
		if b.dump() != before {
			b.Fatal("a settled rid reserved something")
		}
	})
}

// I2: a key of the wrong type, whichever of those it would write, fails the call and changes nothing.
func TestAdmitTwoHalves(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.key("k2", "team", "search", "rpm", "100", "budget_usd", "5")
		b.hset(":team:search", "tpm", "100", "budget_usd", "5", "period", "day")
		for _, suffix := range []string{":rate:key:k2", ":rate:team:search", ":spend:key:k2:2076-11", ":spend:team:search:2076-11-30",
			":parallel", ":open", ":reservations", ":settled", ":key:k2", ":team:search"} {
			hash := b.flat(suffix)
			b.do("DEL", suffix)
			b.do("SET", suffix, "x")
			before := b.dump()
			if _, err := b.tryAdmit(b.args(key("k2"), hold(5), tokens(1, 0, 1))); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				b.Fatalf("%s: %v", suffix, err)
			}
			if after := b.dump(); after != before {
				b.Fatalf("%s: changed\n%s\n%s", suffix, before, after)
			}
			b.do("DEL", suffix)
			if len(hash) > 0 {
				b.hset(suffix, hash...)
			}
		}
		b.admitted(key("k2"), hold(5), tokens(1, 0, 1))
	})
}

// flat is a hash as HSET takes it.
func (b *book) flat(suffix string) (flat []string) {
	for f, v := range b.hash(suffix) {
		flat = append(flat, f, v)
	}
	return flat
}

// A scope without a policy leaves nothing behind.
func TestAdmitCountsOnlyScopesWithPolicy(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.key("k2", "team", "ghost")
		b.admitted(key("k2"), hold(5))
		if d := b.dump(); strings.Contains(d, "ghost:") || strings.Contains(d, "spend:tenant") || strings.Contains(d, ":rate:") {
			b.Fatal(d)
		}
	})
}
