package lua_test

import (
	"reflect"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

func (p *pool) weigh(a lua.PlaceArgs) lua.WeighReply {
	p.t.Helper()
	r := wait(p, lua.Weigh(p.pipes.Batch(), p.store, p.root, a, func(r lua.WeighReply) lua.WeighReply { return r }))
	if r.NowMS == 0 {
		p.t.Fatal("no time")
	}
	r.NowMS = 0
	return r
}

// Every term of the score, and the same choice as place makes.
func TestWeighSaysWhatPlaceWouldWeigh(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		far := p.clock() + 3_600_000
		p.place(from(long("01", nine...), "b2"))
		p.set("b1", "capacity_mu", 100_000, "backlog", 30_000, "backlog_at", far)
		p.set("b2", "capacity_mu", 100_000, "rate_mu", 100_000, "backlog", 20_000, "backlog_at", far, "output_held", 40_000, "external", 2, "kv", 500, "read_at", far)
		a := from(long("02", nine...), "b1", "b2")
		got := p.weigh(a)
		want := lua.WeighReply{MeanMU: 100_000, Rows: []lua.Weighed{
			{Backend: "b1", Chosen: true, Slots: 8, RateMU: 100_000, BacklogMU: 30_000, UncachedMU: 100_000, ScoreMS: 1300},
			{Backend: "b2", Slots: 8, Held: 1, External: 2, KV: 500, RateMU: 100_000, BacklogMU: 20_000, UncachedMU: 19_000, Matched: 9000,
				OutputHeldMU: 40_000, ScoreMS: 2430}}}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
		if again := p.weigh(a); !reflect.DeepEqual(again, got) {
			t.Fatalf("it changed something: %+v", again)
		}
		if r := p.place(a); r.Backend != "b1" || r.ExpectedMS != 1300 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestWeighSaysWhyNot(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		far := p.clock() + 3_600_000
		p.set("b1", "slots", "many")
		p.set("b2", "draining", 1)
		p.set("b3", "cooldown_until", far)
		p.set("b4", "kv", 9999, "read_at", far)
		p.set("b5", "slots", 0)
		p.set("b6", "slots", 1, "held", 1)
		a := from(heavy("01", 1), "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8")
		a.Not = "b7"
		want := []lua.WhyNot{lua.Unreadable, lua.DrainingOrNoSlots, lua.CoolsDown, lua.CacheFull, lua.DrainingOrNoSlots,
			lua.NoFreeSlot, lua.ToBeAvoided, lua.MayBe}
		for i, row := range p.weigh(a).Rows {
			if row.WhyNot != want[i] || row.Chosen != (row.Backend == "b8") {
				t.Errorf("%+v, want %d", row, want[i])
			}
		}
	})
}
