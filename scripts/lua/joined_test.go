package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/pipeline"
	"pgregory.net/rapid"
)

// Settlements that leave together end as they would one by one: all counters, minutes, learned figures and records, also
// where one of them is a repeat, is given back, had lapsed, or was never admitted.
func TestSettleTogetherOrAlone(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		for i := range 12 { // rapid's own number would take long on each store
			seed := rapid.SliceOfN(rapid.IntRange(0, 11), 10, 10).Example(i)
			together, want := b.settlements(seed, true)
			alone, got := b.settlements(seed, false)
			if together != alone || fmt.Sprint(want) != fmt.Sprint(got) {
				b.Fatalf("%v\ntogether %v\n%s\nalone %v\n%s", seed, want, together, got, alone)
			}
		}
	})
}

// settlements makes a settlement for each number, which says what is unusual of it, on an empty tenant, and returns all that
// is there afterwards, and their outcomes.
func (b *book) settlements(seed []int, together bool) (string, []Settled) {
	b.do("DEL", "")
	names, _ := b.do("KEYS", "*").AsStrSlice()
	for _, name := range names {
		b.do("DEL", strings.TrimPrefix(name, b.root))
	}
	b.scoped()
	b.rids, b.now = 0, start
	b.key("k2", "team", "search", "rpm", "1000")
	var all []SettleArgs
	for i, odd := range seed {
		who := key("k1")
		if odd%3 == 1 {
			who = key("k2")
		}
		s := b.admitted(who, hold(int64(100*i)), tokens(10, 100, int64(20+odd)))
		s.Prompt, s.Cached, s.Completion, s.CostNUSD = int64(8+i), int64(i%2), int64(15*odd), int64(33*odd)
		if odd%2 == 0 {
			s.Learn = Sample{PromptBytes: 600, Model: "m"}
		}
		if s.Keep = odd != 7; !s.Keep {
			s.Prompt, s.Cached, s.Completion, s.CostNUSD, s.Learn = 0, 0, 0, 0, Sample{}
		}
		if odd == 9 {
			s.Claim, s.Learn = strings.Replace(s.Claim, " 1", " 2", 1), Sample{}
		}
		if odd == 11 && i > 0 {
			s = all[0]
		}
		if odd == 10 {
			b.do("HDEL", ":open", s.RID)
		}
		all = append(all, s)
		b.now += 130
	}
	out := make([]Settled, len(all))
	batch := &pipeline.Batch{}
	var handles []*pipeline.Handle[Settled]
	for i, s := range all {
		s.nowMS = b.now
		h := Settle(batch, b.store, b.root, s)
		if together {
			handles = append(handles, h)
			continue
		}
		out[i], _ = h.Wait(b.Context())
	}
	for i, h := range handles {
		out[i], _ = h.Wait(b.Context())
	}
	records := b.records()
	slices.Sort(records)
	b.do("DEL", ":usage")
	return b.dump() + strings.Join(records, "\n"), out
}
