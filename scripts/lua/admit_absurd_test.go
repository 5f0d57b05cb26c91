package lua

import "testing"

// An absurd hold that no budget bounds neither breaks a counter nor locks another key of the tenant out, however many of
// them stand at once.
func TestAdmitAbsurdHoldsWithoutABudget(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.key("k2", "budget_usd", "5")
		const most = 9_000_000_000_000_000
		var open []SettleArgs
		for range 1100 { // of which 1,025 at their full hold pass the end of a whole number
			open = append(open, b.admitted(hold(most)))
		}
		if got := b.field(":spend:key:k1:2076-11", "reserved_nusd"); got != 1100e12 {
			b.Fatalf("reserved %d", got)
		}
		b.admitted(key("k2"), hold(5))
		b.refused(11, "key", key("k2"), hold(most/2)) // under a budget the hold is what was asked
		for _, s := range open {
			b.settle(s, Replaced)
		}
		if got := b.field(":spend:key:k1:2076-11", "reserved_nusd"); got != 0 {
			b.Fatalf("%d stay reserved", got)
		}
	})
}

// A figure broken by hand, in a counter that only counts, does not stop an admission half-way.
func TestAdmitMendsAFigureThatOnlyCounts(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.hset(":spend:key:k1:2076-11", "spent_nusd", "7", "reserved_nusd", "lots")
		s := b.admitted(hold(30))
		if h := b.hash(":spend:key:k1:2076-11"); h["reserved_nusd"] != "30" || h["spent_nusd"] != "7" {
			b.Fatalf("%v", h)
		}
		b.settle(s, Replaced)
		b.nothingOpen()
	})
}
