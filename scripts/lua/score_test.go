package lua_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

// heavy is a request of so many MU of prompt, for b1 or b2 of 8 slots.
func heavy(rid string, mu int64) lua.PlaceArgs {
	a := ask(rid, 1)
	a.MU, a.Candidates = mu*1000, []lua.Slots{{Backend: "b1", Slots: 8}, {Backend: "b2", Slots: 8}}
	return a
}

// clock is Redis' time in ms.
func (p *pool) clock() int64 {
	p.t.Helper()
	return p.beat(lua.BeatArgs{Replica: "z"}).NowMS
}

// set writes fields of the record of a backend, as of a moment ago.
func (p *pool) set(backend string, fields ...any) {
	p.t.Helper()
	args := []string{"backlog_at", fmt.Sprint(p.clock()), "read_at", fmt.Sprint(p.clock())}
	for _, f := range fields {
		args = append(args, fmt.Sprint(f))
	}
	p.do("HSET", ":backend:"+backend, args...)
}

func (p *pool) number(backend, field string) int64 {
	p.t.Helper()
	n, err := strconv.ParseInt(p.field(":backend:"+backend, field), 10, 64)
	if err != nil {
		p.t.Fatalf("%s of %s: %v", field, backend, err)
	}
	return n
}

// Where a request goes, by what is said of b1 and b2, of which b1 is first in ring order. 200 MU/s where nothing is said.
func TestScoreDecides(t *testing.T) {
	t.Parallel()
	far := int64(1) << 45 // a clock that does not come: nothing drains, no reading gets old
	for _, c := range []struct {
		name   string
		b1, b2 []any
		mu     int64
		want   string
	}{
		{"nothing known", nil, nil, 100, "b1"},
		{"backlog", []any{"backlog", 40_000}, nil, 1, "b2"},                                                      // 0.2 s and 0
		{"backlog on both", []any{"backlog", 40_000}, []any{"backlog", 40_000}, 1, "b1"},                         // equal
		{"within 10 ms", []any{"backlog", 1_500}, nil, 1, "b1"},                                                  // 12 ms and 5 ms
		{"beyond 10 ms", []any{"backlog", 2_500}, nil, 1, "b2"},                                                  // 17 ms and 5 ms
		{"beyond 10 ms, easy", []any{"backlog", 2_500, "capacity_mu", 200_000}, nil, 1, "b1"},                    // the others are not asked
		{"within a fiftieth", []any{"backlog", 1_000_000}, []any{"backlog", 985_000}, 1, "b1"},                   // 5.0 s and 4.93 s
		{"beyond a fiftieth", []any{"backlog", 1_000_000}, []any{"backlog", 975_000}, 1, "b2"},                   // 5.0 s and 4.88 s
		{"faster", []any{"capacity_mu", 100_000}, []any{"capacity_mu", 400_000}, 100, "b2"},                      // 1 s and 0.25 s
		{"faster, short", []any{"capacity_mu", 100_000}, []any{"capacity_mu", 400_000}, 1, "b1"},                 // 10 ms and 2.5 ms
		{"learned", []any{"capacity_mu", 400_000, "rate_mu", 150_000}, []any{"capacity_mu", 400_000}, 100, "b2"}, // 0.67 s and 0.25 s
		{"learned, out of bounds", []any{"capacity_mu", 400_000, "rate_mu", 1}, []any{"capacity_mu", 90_000}, 100, "b1"},
		{"output held", []any{"output_held", 200_000}, nil, 1, "b2"},                  // a tenth of it: 0.1 s
		{"output held, little", []any{"output_held", 15_000}, nil, 1, "b1"},           // 7.5 ms
		{"requests of others", []any{"external", 4, "mean_mu", 10_000}, nil, 1, "b2"}, // 0.2 s
		{"one of others", []any{"external", 1, "mean_mu", 1_500}, nil, 1, "b1"},       // 7.5 ms
		{"requests of others, rate known", []any{"capacity_mu", 200_000, "external", 4, "mean_mu", 10_000}, nil, 1, "b2"},
		{"full of others", []any{"external", 8}, nil, 1, "b2"},
		{"full of others, once", []any{"external", 8, "read_at", 1000}, nil, 1, "b1"},
		{"no room in the cache", []any{"kv", 9501}, nil, 1, "b2"},
		{"just room in the cache", []any{"kv", 9500}, nil, 1, "b1"},
		{"no room, once", []any{"kv", 9501, "read_at", 1000}, nil, 1, "b1"},
		{"cools down", []any{"cooldown_until", far}, nil, 1, "b2"},
		{"unreadable backlog", []any{"backlog", "much"}, nil, 1, "b2"},
		{"unreadable rate", []any{"rate_mu", "-3"}, nil, 1, "b2"},
		{"fraction", []any{"output_held", "1.5"}, nil, 1, "b2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			onBothPools(t, func(_ *testing.T, p *pool) {
				p.set("b1", append([]any{"backlog_at", far, "read_at", far}, c.b1...)...)
				p.set("b2", append([]any{"backlog_at", far, "read_at", far}, c.b2...)...)
				p.onPool(p.place(heavy("01", c.mu)), c.want)
			})
		})
	}
}

// A long prompt goes where the engine has room for it, whatever the ring and small differences say; one that fits nowhere
// goes by the score.
func TestScoreLongPromptsGoWhereRoomIs(t *testing.T) {
	t.Parallel()
	far := int64(1) << 45
	for _, c := range []struct {
		name   string
		b1, b2 []any
		tokens int64
		want   string
	}{
		{"b1 has 7,200 tokens left", []any{"kv", 9400, "kv_tokens", 120_000}, []any{"kv", 1000, "kv_tokens", 120_000, "backlog", 2_000_000}, 100_000, "b2"},
		{"short enough", []any{"kv", 9400, "kv_tokens", 120_000}, []any{"kv", 1000, "kv_tokens", 120_000, "backlog", 2_000_000}, 7_000, "b1"},
		{"fits nowhere", []any{"kv", 9400, "kv_tokens", 120_000}, []any{"kv", 1000, "kv_tokens", 90_000}, 100_000, "b1"},
		{"b2 is full", []any{"kv", 9400, "kv_tokens", 120_000}, []any{"kv", 1000, "held", 8}, 100_000, "b1"},
		{"fast, so that the first in ring order is easy", []any{"kv", 9400, "kv_tokens", 60_000, "capacity_mu", 100_000_000}, []any{"kv", 1000}, 5_000, "b2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			onBothPools(t, func(_ *testing.T, p *pool) {
				p.set("b1", append([]any{"backlog_at", far, "read_at", far}, c.b1...)...)
				p.set("b2", append([]any{"backlog_at", far, "read_at", far}, c.b2...)...)
				a := heavy("01", c.tokens/100)
				a.Prompt.Tokens = c.tokens
				p.onPool(p.place(a), c.want)
			})
		})
	}
}

func TestScoreBacklogDrainsByTheClock(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.set("b1", "backlog", 100_000, "backlog_at", p.clock()-400) // 80 of 100 MU are done
		p.place(heavy("01", 1000))
		if got := p.number("b1", "backlog"); got > 1_020_000 || got < 1_000_000 {
			t.Fatalf("backlog %d, want 20 MU or less and the 1000 of the request", got)
		}
		before := p.number("b1", "backlog_at")
		p.set("b1", "backlog", 100_000, "backlog_at", p.clock()+3_600_000) // the clock was set back
		p.set("b2", "slots", 0)
		p.place(heavy("02", 1))
		if got := p.number("b1", "backlog"); got != 101_000 {
			t.Fatalf("backlog %d, want 101000", got)
		}
		p.set("b1", "backlog_at", before-3_600_000)
		p.place(heavy("03", 1))
		if got := p.number("b1", "backlog"); got != 1000 {
			t.Fatalf("backlog %d, want the request's own", got)
		}
	})
}

// The fleet spreads a burst by the work it brings, whoever places it.
func TestScoreSpreadsABurst(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.set("b1", "capacity_mu", 100_000)
		p.set("b2", "capacity_mu", 300_000)
		on := map[string]int{}
		for i := range 12 {
			a := heavy(fmt.Sprintf("%02d", i), 1000)
			a.Candidates = []lua.Slots{{Backend: "b1", Slots: 99}, {Backend: "b2", Slots: 99}}
			on[p.place(by([]string{"a", "b", "c"}[i%3], a)).Backend]++
		}
		if on["b1"] != 3 || on["b2"] != 9 {
			t.Fatalf("%v, want 3 and 9", on)
		}
	})
}

func TestScoreCapacityOfTheUnknownIsTheMedian(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		for id, capacity := range map[string]int{"b2": 100_000, "b3": 300_000, "b4": 500_000} {
			p.set(id, "capacity_mu", capacity)
		}
		a := on(heavy("01", 100), "b1", "b2", "b3", "b4")
		p.place(a)
		p.place(by("b", on(heavy("02", 100), "b1", "b2", "b3", "b4")))
		if got := p.number("b1", "rate_mu"); got != 300_000 {
			t.Fatalf("rate %d, want the median", got)
		}
		p.onPool(p.place(on(heavy("04", 100), "b5")), "b5")
		if got := p.number("b5", "rate_mu"); got != 200_000 {
			t.Fatalf("rate %d where nothing is known", got)
		}
	})
}

// What the replicas measure corrects the rate, a little each time and within bounds.
func TestReleaseLearnsTheRate(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.set("b1", "capacity_mu", 200_000)
		request := 0
		measured := func(ttft int64) int64 {
			request++
			a := on(heavy(fmt.Sprintf("%02d", request), 100), "b1") // 0.5 s
			p.do("HSET", ":backend:b1", "backlog", "0")
			p.place(a)
			p.releaseAs(lua.ReleaseArgs{RID: a.RID, Attempt: 1, Replica: "a", Ran: lua.RanAnswered, TTFTMS: ttft})
			m := p.field(":backend:b1", "rate_mu")
			n, _ := strconv.ParseInt(m, 10, 64)
			return n
		}
		if got := measured(0); got != 0 {
			t.Fatalf("rate %d without a measurement", got)
		}
		if got := measured(500); got != 200_000 {
			t.Fatalf("rate %d after what was expected", got)
		}
		if got := measured(5000); got != 199_000 {
			t.Fatalf("rate %d after one slow answer", got)
		}
		for range 300 {
			measured(5000)
		}
		if got := measured(5000); got < 47_000 || got > 50_000 {
			t.Fatalf("rate %d after many slow ones, want a quarter of the registered", got)
		}
		for range 600 {
			measured(1)
		}
		if got := measured(1); got < 799_000 || got > 840_000 {
			t.Fatalf("rate %d after many quick ones, want four times the registered", got)
		}
		p.beat(lua.BeatArgs{Replica: "a", Backends: []lua.Registered{{Backend: "b1", Address: "x", Slots: 1, CapacityMU: 300_000}}})
		if got := p.field(":backend:b1", "rate_mu") + " " + p.field(":backend:b1", "capacity_mu"); got != " 300000" {
			t.Fatalf("rate and capacity %q after another one was registered", got)
		}
	})
}

// Short work says nothing: most of its time is not the engine's.
func TestReleaseLearnsNothingFromShortWork(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(on(heavy("01", 2), "b1")) // 10 ms
		p.releaseAs(lua.ReleaseArgs{RID: "01", Attempt: 1, Replica: "a", Ran: lua.RanAnswered, TTFTMS: 60})
		if got := p.number("b1", "rate_mu"); got != 200_000 {
			t.Fatalf("rate %d", got)
		}
	})
}

func TestReleaseOfWhatWasNeverSent(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		far := p.clock() + 3_600_000 // nothing drains
		p.set("b1", "backlog", 5_000_000, "backlog_at", far)
		p.place(on(heavy("01", 300), "b1"))
		p.releaseAs(lua.ReleaseArgs{RID: "01", Attempt: 1, Replica: "a", Ran: lua.RanNot})
		// What may have been done meanwhile was the work ahead of it.
		if got := p.number("b1", "backlog"); got != 5_000_000 {
			t.Fatalf("backlog %d", got)
		}
		p.place(on(heavy("02", 300), "b1"))
		p.releaseAs(lua.ReleaseArgs{RID: "02", Attempt: 1, Replica: "a"})
		if got := p.number("b1", "backlog"); got != 5_300_000 {
			t.Fatalf("backlog %d after a release of which nothing is known", got)
		}
	})
}
