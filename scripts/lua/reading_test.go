package lua_test

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

// engine is b1 as its reader sees it: asked first, read later.
type engine struct {
	*pool
	asked lua.BeforeReply
}

func asIs(r lua.BeforeReply) lua.BeforeReply { return r }

func (e *engine) ask() {
	e.t.Helper()
	for last := e.asked.NowMS; e.asked.NowMS == last; { // a reading that began in the same millisecond is no news
		e.asked = wait(e.pool, lua.Before(e.pipes.Batch(), e.store, e.root, []string{"b1"}, asIs))
	}
}

func (e *engine) read(r lua.Reading) int64 {
	e.t.Helper()
	r.Backend, r.Held, r.AskedMS = "b1", e.asked.Held[0], e.asked.NowMS
	return wait(e.pool, lua.Readings(e.pipes.Batch(), e.store, e.root, []lua.Reading{r}, 0))
}

func (e *engine) external(want string) {
	e.t.Helper()
	if got := e.field(":backend:b1", "external"); got != want {
		e.t.Fatalf("external %s, want %s", got, want)
	}
}

func TestReadingCountsTheRequestsOfOthers(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		e := &engine{pool: p}
		p.place(ask("01", 1))
		e.ask()
		if e.asked.Held[0] != 1 {
			t.Fatalf("%+v", e.asked)
		}
		e.read(lua.Reading{Running: 2, Waiting: 1, KV: 4250, KVTokens: 1000, Started: "t1"})
		e.external("2")
		f := p.hash(":backend:b1")
		if f["kv"] != "4250" || f["kv_tokens"] != "1000" || f["running"] != "2" || f["waiting"] != "1" || f["restarts"] != "0" {
			t.Fatalf("%v", f)
		}
		// They take slots: b1 has two, and all three are taken.
		p.onPool(p.place(ask("02", 1)), "b2")
		e.ask()
		e.read(lua.Reading{Running: 1, KV: 4250})
		e.external("0")
		if f := p.hash(":backend:b1"); f["kv_tokens"] != "1000" || f["started"] != "t1" {
			t.Fatalf("what a reading does not say stays: %v", f)
		}
		p.onPool(p.place(ask("03", 1)), "b1")
	})
}

// A request that comes or goes between the question and the answer is nobody else's.
func TestReadingTakesTheSmallerWhileTheFleetMoves(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(_ *testing.T, p *pool) {
		e := &engine{pool: p}
		p.place(ask("00", 1))
		p.release("a", "00", 1)
		e.ask()
		e.read(lua.Reading{})
		e.external("0")
		e.ask()
		p.place(ask("01", 1)) // the engine has it, the count before does not
		e.read(lua.Reading{Running: 1})
		e.external("0")
		e.ask()
		e.read(lua.Reading{Running: 1})
		e.external("0")
		e.ask()
		p.release("a", "01", 1)
		e.ask()
		e.read(lua.Reading{Running: 1}) // its end was not noticed yet
		e.external("0")
		e.ask()
		e.read(lua.Reading{Running: 1}) // it still runs, and nothing moved: it is somebody else's
		e.external("1")
	})
}

func TestReadingOlderThanTheLastIsNoNews(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		late, e := &engine{pool: p}, &engine{pool: p}
		p.place(ask("01", 1))
		late.ask()
		e.asked = late.asked
		e.ask()
		if e.read(lua.Reading{Running: 3}) != 1 || late.read(lua.Reading{Running: 9}) != 0 || e.read(lua.Reading{Running: 7}) != 0 {
			t.Fatal("an old reading was taken")
		}
		e.external("2")
	})
}

func TestReadingCountsRestarts(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		e := &engine{pool: p}
		for i, c := range []struct{ started, want string }{{"", "0"}, {"t1", "0"}, {"t1", "0"}, {"", "0"}, {"t2", "1"}, {"t2", "1"}, {"t3", "2"}} {
			e.ask()
			e.read(lua.Reading{Started: c.started})
			if got := p.field(":backend:b1", "restarts"); got != c.want {
				t.Fatalf("reading %d: %s restarts, want %s", i, got, c.want)
			}
		}
	})
}

func TestReadingOfManyAndOfUnreadableRecords(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.do("SET", ":backend:b1", "x")
		p.do("HSET", ":backend:b2", "held", "many")
		p.do("HSET", ":backend:b3", "held", "2")
		ids := []string{"b1", "b2", "b3", "b4"}
		before := wait(p, lua.Before(p.pipes.Batch(), p.store, p.root, ids, asIs))
		if !slices.Equal(before.Held, []int64{-1, -1, 2, 0}) {
			t.Fatalf("%+v", before)
		}
		var rs []lua.Reading
		for i, id := range ids {
			rs = append(rs, lua.Reading{Backend: id, Running: 5, Held: before.Held[i], AskedMS: before.NowMS})
		}
		if n := wait(p, lua.Readings(p.pipes.Batch(), p.store, p.root, rs, 0)); n != 3 {
			t.Fatalf("%d readings taken", n)
		}
		if a, b := p.field(":backend:b3", "external"), p.field(":backend:b4", "external"); a != "3" || b != "5" {
			t.Fatalf("external %s and %s", a, b)
		}
		if ttl, err := p.do("PTTL", ":backend:b4").AsInt64(); err != nil || ttl <= 0 {
			t.Fatalf("a record nobody renews stays: %d, %v", ttl, err)
		}
	})
}
