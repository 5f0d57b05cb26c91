package lua_test

import (
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

func (p *pool) fail(silent bool) lua.FailReply {
	p.t.Helper()
	return wait(p, lua.Fail(p.pipes.Batch(), p.store, p.root,
		lua.FailArgs{Backend: "b1", Silent: silent, Row: 3, FirstMS: 10_000, LongestMS: 50_000}))
}

// over ends the cool-down of b1.
func (p *pool) over() { p.do("HSET", ":backend:b1", "cooldown_until", "1000") }

func TestFailCoolsDownForTheWholeFleet(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.onPool(p.place(ask("01", 1)), "b1")
		if r := p.fail(false); r.Failures != 1 || !r.Began || r.UntilMS != r.NowMS+10_000 {
			t.Fatalf("%+v", r)
		}
		p.onPool(p.place(by("b", ask("02", 1))), "b2")
		p.over()
		p.onPool(p.place(by("c", ask("03", 1))), "b1")
	})
}

func TestFailWaitsGrow(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		for i, want := range []int64{10_000, 20_000, 40_000, 50_000, 50_000} {
			r := p.fail(false)
			if r.UntilMS != r.NowMS+want {
				t.Fatalf("failure %d: %+v, want a wait of %d ms", i+1, r, want)
			}
			// The others that were running there fail as well: nothing grows, nothing is shortened.
			if again := p.fail(false); again.Began || again.UntilMS != r.UntilMS || again.Failures != r.Failures {
				t.Fatalf("%+v, then %+v", r, again)
			}
			p.over()
		}
		// A first token ends the row.
		p.place(on(ask("01", 1), "b1"))
		p.releaseAs(lua.ReleaseArgs{RID: "01", Attempt: 1, Replica: "a", Ran: lua.RanAnswered})
		if r := p.fail(false); r.Failures != 1 || r.UntilMS != r.NowMS+10_000 {
			t.Fatalf("%+v", r)
		}
	})
}

// A running cool-down is never shortened, whoever set it.
func TestFailLeavesALongerOneAlone(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.do("HSET", ":backend:b1", "cooldown_until", "9999999999999")
		if r := p.fail(false); r.UntilMS != 9999999999999 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestFailOneTimeoutIsNone(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		for range 2 {
			if r := p.fail(true); r.UntilMS != 0 {
				t.Fatalf("%+v", r)
			}
		}
		p.place(on(ask("01", 1), "b1"))
		p.releaseAs(lua.ReleaseArgs{RID: "01", Attempt: 1, Replica: "a", Ran: lua.RanAnswered})
		for range 2 {
			if r := p.fail(true); r.UntilMS != 0 {
				t.Fatalf("not in a row: %+v", r)
			}
		}
		if r := p.fail(true); r.UntilMS != r.NowMS+10_000 || r.Failures != 1 {
			t.Fatalf("three in a row: %+v", r)
		}
	})
}

// A failure of a backend nobody registered leaves a record that goes by itself; one of another type stays as it is.
func TestFailOfAnUnknownBackend(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.fail(false)
		if ttl, err := p.do("PTTL", ":backend:b1").AsInt64(); err != nil || ttl <= 0 {
			t.Fatalf("ttl %d, %v", ttl, err)
		}
		p.do("DEL", ":backend:b1")
		p.do("SET", ":backend:b1", "x")
		if r := p.fail(false); r.UntilMS != 0 {
			t.Fatalf("%+v", r)
		}
	})
}
