package lua

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/pipeline"
)

// settleIn settles what the args say in one of three ways: each as it comes, taken apart by the script, all in one command.
func (b *book) settleIn(way string, all ...SettleArgs) {
	b.Helper()
	batch := &pipeline.Batch{}
	var handles []*pipeline.Handle[Settled]
	for _, s := range all {
		s.nowMS, s.apart = b.now, way == "apart"
		h := Settle(batch, b.store, b.root, s)
		if way != "together" {
			batch = &pipeline.Batch{}
		}
		handles = append(handles, h)
	}
	for _, h := range handles {
		if what, err := h.Wait(b.Context()); err != nil || what != Replaced {
			b.Fatalf("%s: %v %v", way, what, err)
		}
	}
}

// A counter in which nothing was held is made by the settlement, and goes by itself all the same; so is one that was deleted
// while the request ran.
func TestSettleMakesTheCounterThatIsMissing(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		for i, way := range []string{"usual", "apart", "together"} {
			id := fmt.Sprint("k", i)
			b.key(id, "budget_usd", "5", "period", "10s")
			free, gone := b.admitted(key(id), hold(0)), b.admitted(key(id), hold(0))
			b.settleIn(way, free, gone)
			counter := ":spend:key:" + id + ":10s@" + decimal(b.now/10000*10)
			ttl, err := b.do("PTTL", counter).AsInt64()
			if h := b.hash(counter); err != nil || ttl <= 0 || h["spent_nusd"] != "0" || h["requests"] != "2" {
				b.Fatalf("%s: ttl %d ms, %v", way, ttl, h)
			}
			paid := b.admitted(key(id), hold(100))
			b.do("DEL", counter)
			paid.CostNUSD = 70
			b.settleIn(way, paid)
			ttl, _ = b.do("PTTL", counter).AsInt64()
			if h := b.hash(counter); ttl <= 0 || h["spent_nusd"] != "70" || h["reserved_nusd"] != "0" || h["requests"] != "1" {
				b.Fatalf("%s: deleted meanwhile: ttl %d ms, %v", way, ttl, h)
			}
		}
	})
}

// Whatever number somebody types into a counter, what is served next is charged. (1e9 is one too, but not to the embedded store,
// which refuses.)
func TestSettleAddsToWhatWasTyped(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.key("k1", "budget_usd", "5")
		counter := ":spend:key:k1:2076-11"
		for typed, want := range map[string]string{"100000.0": "100070", "1.5": "71", "007": "77", "-1.5": "68"} {
			for _, way := range []string{"usual", "apart", "together"} {
				b.hset(counter, "spent_nusd", typed, "reserved_nusd", "0")
				s, free := b.admitted(key("k1"), hold(100)), b.admitted(key("k1"), hold(100))
				s.CostNUSD = 70
				b.settleIn(way, s, free)
				if h := b.hash(counter); h["spent_nusd"] != want || h["reserved_nusd"] != "0" {
					b.Fatalf("%s, %s: %v", typed, way, h)
				}
			}
		}
	})
}
