package lua_test

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

const probeIdle, probeLasts = 60_000, 5_000

func (p *pool) probe(most int, answered []string, backends ...string) lua.ProbeReply {
	p.t.Helper()
	return wait(p, lua.Probe(p.pipes.Batch(), p.store, p.root, lua.ProbeArgs{IdleMS: probeIdle, LastsMS: probeLasts, Most: most,
		Answered: answered, Backends: backends}, func(r lua.ProbeReply) lua.ProbeReply { return r }))
}

func (p *pool) probed(backend string, well bool) lua.ProbedReply {
	p.t.Helper()
	return wait(p, lua.Probed(p.pipes.Batch(), p.store, p.root, lua.ProbedArgs{Backend: backend, Well: well, IdleMS: probeIdle, AgainMS: 1000,
		FirstMS: 15_000, LongestMS: 40_000, LastsMS: probeLasts}, func(r lua.ProbedReply) lua.ProbedReply { return r }))
}

// later makes all that is known of the backends' answers and probes a minute older.
func (p *pool) later(backends ...string) {
	p.t.Helper()
	for _, b := range backends {
		for _, field := range []string{"answered_at", "probe_at"} {
			if p.field(":backend:"+b, field) != "" {
				p.set(b, field, p.number(b, field)-probeIdle)
			}
		}
	}
}

func TestProbeIsGivenOnceAndOnlyWhereNothingWasAnswered(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		due := func(most int, answered ...string) []string {
			t.Helper()
			return p.probe(most, answered, "b1", "b2", "b3").Due
		}
		if got := due(9); len(got) != 0 {
			t.Fatalf("due at first sight: %v", got)
		}
		p.later("b1", "b2", "b3")
		if got := due(1); !slices.Equal(got, []string{"b1"}) {
			t.Fatalf("one is wanted: %v", got)
		}
		if got := due(9, "b3"); !slices.Equal(got, []string{"b2"}) {
			t.Fatalf("b1 is being probed and b3 has answered: %v", got)
		}
		p.later("b3")
		p.onPool(p.place(on(ask("01", 1), "b3")), "b3") // its only slot
		if got := due(9); slices.Contains(got, "b3") {
			t.Fatalf("no room there: %v", got)
		}
		p.release("a", "01", 1)
		if got := due(9); !slices.Contains(got, "b3") {
			t.Fatalf("b3 is due: %v", got)
		}
	})
}

// While its probes fail a backend stays out of use without a gap, and each wait is longer; an answer ends it at once.
func TestProbedTakesOutFromTheSecondFailureOn(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.probe(9, nil, "b1")
		if r := p.probed("b1", false); r.Failed != 1 || r.UntilMS != 0 {
			t.Fatalf("%+v", r)
		}
		p.onPool(p.place(ask("01", 1)), "b1")
		for i, wait := range []int64{15_000, 30_000, 40_000, 40_000} {
			r := p.probed("b1", false)
			if r.Failed != int64(i+2) || r.UntilMS != r.NowMS+wait+2*probeLasts || p.number("b1", "probe_at") != r.NowMS+wait {
				t.Fatalf("failure %d: %+v, next at %d", i+2, r, p.number("b1", "probe_at"))
			}
		}
		p.onPool(p.place(ask("02", 1)), "b2")
		if r := p.probe(9, nil, "b1"); r.Failing["b1"] != 5 {
			t.Fatalf("%+v", r)
		}
		if r := p.probed("b1", true); r.Failed != 0 {
			t.Fatalf("%+v", r)
		}
		p.release("a", "01", 1)
		p.onPool(p.place(ask("03", 1)), "b1")

		// A cool-down that requests began is theirs.
		until := p.fail(false).UntilMS
		p.probed("b1", true)
		if now := p.number("b1", "cooldown_until"); now != until {
			t.Fatalf("until %d, was %d", now, until)
		}
		// A request that is answered ends the row too.
		p.probed("b1", false)
		if r := p.probe(9, []string{"b1"}, "b1"); r.Failing["b1"] != 0 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestFlowSumsTheLiving(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		flow := func(replica, figures, advice string) lua.FlowReply {
			return wait(p, lua.Flow(p.pipes.Batch(), p.store, p.root, replica, figures, advice))
		}
		flow("r1", "1 2", "")
		if r := flow("r2", "3 4", "five"); r.Advice != "five" || !slices.Equal(r.Figures, []string{"3 4", "1 2"}) {
			t.Fatalf("%+v", r)
		}
		p.do("HSET", ":flow", "r1", "1000 1 2")
		p.do("HSET", ":flow", "r0", "broken")
		if r := flow("r2", "6 7", ""); r.Advice != "five" || !slices.Equal(r.Figures, []string{"6 7"}) {
			t.Fatalf("%+v", r)
		}
		if left := p.hash(":flow"); len(left) != 2 {
			t.Fatalf("%v", left)
		}
	})
}
