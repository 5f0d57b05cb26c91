package lua

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/pipeline"
)

// stream holds its output in tranches: 10 tokens first, a cap of 1,000, 3 nano-dollars a token.
func stream(a *AdmitArgs) {
	a.Usual, a.Tranche = 10, Tranche{Bound: 1000, PricePico: 3000, Least: 4}
}

func (b *book) tryExtend(s SettleArgs, total int64, keyHash string) (ExtendReply, error) {
	batch := &pipeline.Batch{}
	a := ExtendArgs{RID: s.RID, KeyHash: keyHash, Total: total, nowMS: b.now}
	return Extend(batch, b.store, b.root, a, func(r ExtendReply) ExtendReply { return r }).Wait(context.Background())
}

func (b *book) extend(s SettleArgs, total, want int64) {
	b.Helper()
	r, err := b.tryExtend(s, total, "k1")
	if err != nil || r.Granted != want {
		b.Fatalf("extend to %d: %+v %v, want %d", total, r, err, want)
	}
}

func TestTranches(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "budget_usd", "0.000000100") // 100 nano-dollars
		r := b.admit(stream, hold(7))
		if r.Verdict != 1 || r.HeldOutput != 10 || r.HeldNUSD != 37 {
			b.Fatalf("%+v", r)
		}
		counter := ":spend:key:k1:2076-11"
		s := SettleArgs{RID: fmt.Sprintf("%032x", b.rids), Claim: r.Claim, Keep: true, Record: []byte(`{}`)}
		b.extend(s, 20, 20)
		b.extend(s, 20, 20) // a total: a repeat adds nothing
		b.extend(s, 15, 20) // and it never takes back
		if n := b.field(counter, "reserved_nusd"); n != 67 {
			b.Fatalf("reserved %d", n)
		}
		b.extend(s, 500, 31) // cut to what is left
		if n := b.field(counter, "reserved_nusd"); n != 100 {
			b.Fatalf("reserved %d", n)
		}
		before := b.dump()
		b.extend(s, 500, 31)
		if b.dump() != before {
			b.Fatal("a top-up of nothing changed something")
		}
		b.refused(11, "key", stream, hold(0)) // not one token fits
		b.hset(":key:k1", "budget_usd", "0.000000104")
		if r := b.admit(stream); r.Verdict != 1 || r.HeldOutput != 1 { // a tranche is cut to what is left
			b.Fatalf("%+v", r)
		}
		b.hset(":key:k1", "budget_usd", "0.000000200") // a change of the policy acts on the next top-up
		b.extend(s, 50, 50)
		s.Completion, s.CostNUSD = 42, 133
		b.settle(s, Replaced)
		b.extend(s, 60, 0)
		if h := b.hash(counter); h["spent_nusd"] != "133" || h["reserved_nusd"] != "3" {
			b.Fatalf("%v", h)
		}
	})
}

// The smallest of all budgets cuts, in whatever period and scope.
func TestTrancheOfSeveralBudgets(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.key("k1", "team", "a", "budgets", "0.000000400/day 0.000000300/12h", "budget_usd", "0.000000500", "created_at", "1000")
		b.hset(":team:a", "budget_usd", "0.000000250", "period", "week")
		b.hset("", "budgets", "0.000000290/total")
		s := b.admitted(stream)
		b.extend(s, 500, 83)
		b.hset(":team:a", "budget_usd", "1")
		b.extend(s, 500, 96)
		b.do("DEL", "")
		b.extend(s, 500, 100)
		b.hset(":key:k1", "budgets", "0.000000360/day")
		b.extend(s, 500, 120)
		b.hset(":key:k1", "budgets", "9/day", "budget_usd", "unreadable")
		b.extend(s, 500, 120)
		b.hset(":key:k1", "budget_usd", "9", "id", "another")
		b.extend(s, 500, 120)
		b.do("DEL", ":key:k1")
		b.extend(s, 500, 120)
	})
}

func TestTrancheIsBoundByTheCapAndFreeOutputIsNotCut(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		short := func(a *AdmitArgs) { a.Tranche.Bound = 3 }
		if r := b.admit(stream, short); r.HeldOutput != 3 {
			b.Fatalf("%+v", r)
		}
		least := func(a *AdmitArgs) { a.Tranche.Least = 40 }
		if r := b.admit(stream, least); r.HeldOutput != 40 {
			b.Fatalf("%+v", r)
		}
		b.key("k2", "budget_usd", "0")
		free := func(a *AdmitArgs) { a.Tranche.PricePico = 0 }
		if r := b.admit(stream, free, key("k2")); r.Verdict != 1 || r.HeldOutput != 10 || r.HeldNUSD != 0 {
			b.Fatalf("%+v", r)
		}
	})
}

// What a top-up adds counts in the second it was granted; what was not used comes off the last top-ups.
func TestTopUpsCountInTheirSecond(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":key:k1", "tpm", "1000")
		cell := func(suffix string) int64 { return b.field(":rate:key:k1", fmt.Sprintf("t%d", b.now/1000)+suffix) }
		s := b.admitted(stream) // no prompt: 10 tokens held
		first := b.now
		b.now += 20000
		b.renew("r1", s.RID)
		b.extend(s, 30, 30)
		b.extend(s, 50, 50)
		if n := cell(""); n != 40 || b.field(":rate:key:k1", "tokens") != 50 {
			b.Fatalf("%v", b.hash(":rate:key:k1"))
		}
		b.now += 10000
		b.renew("r1", s.RID)
		b.extend(s, 70, 70)
		s.Completion = 45
		b.settle(s, Replaced) // 25 less: 20 off the last, 5 off the one before
		if h := b.hash(":rate:key:k1"); h["tokens"] != "45" || cell("") != 0 || b.field(":rate:key:k1", fmt.Sprintf("t%d", (b.now-10000)/1000)) != 35 ||
			b.field(":rate:key:k1", fmt.Sprintf("t%d", first/1000)) != 10 {
			b.Fatalf("%v", h)
		}
		b.now = first + 60000
		other := b.admitted(tokens(1, 0, 1)) // the first cell has left
		if n := b.field(":rate:key:k1", "tokens"); n != 37 {
			b.Fatalf("%d: %v", n, b.hash(":rate:key:k1"))
		}
		b.settle(other, Replaced)
		b.now += 20000
		b.admitted(tokens(1, 0, 1))
		if n := b.field(":rate:key:k1", "tokens"); n != 2 {
			b.Fatalf("%d: %v", n, b.hash(":rate:key:k1"))
		}

		// A top-up after an idle minute starts it anew.
		s = b.admitted(stream)
		for range 4 {
			b.now += 20000
			b.renew("r1", s.RID)
		}
		b.extend(s, 30, 30)
		if h := b.hash(":rate:key:k1"); h["tokens"] != "20" || h["requests"] != "0" || cell("") != 20 {
			b.Fatalf("%v", h)
		}
		s.Completion = 33
		b.settle(s, Replaced)
		if h := b.hash(":rate:key:k1"); h["tokens"] != "23" {
			b.Fatalf("%v", h)
		}
	})
}

func TestExtendTwoHalves(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.scoped()
		s := b.admitted(stream)
		for _, suffix := range append(b.counters(), ":open", ":rate:key:k1", ":rate:team:search", ":team:search") {
			b.do("RENAME", suffix, b.root+":aside")
			b.do("SET", suffix, "x")
			before := b.dump()
			if r, err := b.tryExtend(s, 100, "k1"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				b.Fatalf("%s: %+v, %v", suffix, r, err)
			}
			if after := b.dump(); after != before {
				b.Fatalf("%s: changed\n%s\n%s", suffix, before, after)
			}
			b.do("RENAME", ":aside", b.root+suffix)
		}
		b.extend(s, 100, 100)
		b.now += 25000
		b.expire("r1")
		b.extend(s, 200, 0) // charged at its hold meanwhile
		b.spends(300, 0, 1, 0, 0, 100)
		s.Completion, s.CostNUSD = 80, 240
		b.settle(s, Undone)
		b.spends(240, 0, 1, 0, 0, 80)
		b.nothingOpen()
	})
}
