package lua_test

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

func TestClearFreesWhatTheDeadHeld(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		beat := p.beat(lua.BeatArgs{Replica: "a"}).NowMS
		for i := range 3 {
			p.place(on(ask(fmt.Sprintf("0%d", i), 1), "b1", "b2")) // two run, one waits
		}
		p.place(on(by("b", ask("11", 1)), "b1"))
		r := p.clear(lua.ClearArgs{Replica: "a", BeatMS: beat, Most: 100})
		if want := (lua.ClearReply{Same: true, Released: 2, Dequeued: 1, Granted: 1}); r != want {
			t.Fatalf("%+v, want %+v", r, want)
		}
		p.waits()
		total := 0
		for _, replica := range []string{"a", "b"} {
			total += len(p.hash(":held:" + replica))
		}
		if total != 1 || len(p.hash(":held:b")) != 1 {
			t.Fatalf("leases of a: %v, of b: %v", p.hash(":held:a"), p.hash(":held:b"))
		}
		if m := p.do("ZSCORE", ":replicas", "a"); !m.IsNil() {
			t.Fatal("the dead is still listed")
		}
		if r := p.clear(lua.ClearArgs{Replica: "a", BeatMS: beat, Most: 100}); r != (lua.ClearReply{}) {
			t.Fatalf("repeated: %+v", r)
		}
	})
}

func TestClearLeavesTheLivingAlone(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(ask("01", 1))
		beat := p.beat(lua.BeatArgs{Replica: "a"}).NowMS
		p.do("ZADD", ":replicas", fmt.Sprint(beat+1), "a") // it beats meanwhile
		if r := p.clear(lua.ClearArgs{Replica: "a", BeatMS: beat, Most: 100}); r != (lua.ClearReply{}) {
			t.Fatalf("%+v", r)
		}
		if r := p.clear(lua.ClearArgs{Replica: "never seen", BeatMS: beat, Most: 100}); r != (lua.ClearReply{}) {
			t.Fatalf("%+v", r)
		}
		p.held("b1", 1)
	})
}

func TestClearIsBoundedAndGoesOn(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		for i := range 5 {
			p.place(on(ask(fmt.Sprintf("0%d", i), 1), "b1", "b2")) // two run, three wait
		}
		beat := p.beat(lua.BeatArgs{Replica: "a"}).NowMS
		for _, left := range []int64{3, 1, 0} {
			r := p.clear(lua.ClearArgs{Replica: "a", BeatMS: beat, Most: 2})
			if r.Left != left || r.Granted != 0 {
				t.Fatalf("%+v, want %d left and nothing for the dead", r, left)
			}
			if listed := p.do("ZSCORE", ":replicas", "a"); listed.IsNil() != (left == 0) {
				t.Fatalf("listed %v with %d left", !listed.IsNil(), left)
			}
		}
		p.held("b1", 0)
		p.held("b2", 0)
		p.waits()
	})
}

// A replica that leaves by itself is not asked for its beat, and leaves nothing behind.
func TestClearOfOneself(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.beat(lua.BeatArgs{Replica: "a"})
		p.place(on(ask("01", 1), "b1"))
		if r := p.clear(lua.ClearArgs{Replica: "a", Most: 100}); !r.Same || r.Released != 1 || r.Left != 0 {
			t.Fatalf("%+v", r)
		}
		p.held("b1", 0)
		for _, key := range []string{":replicas", ":held:a", ":waiting:a", ":queue"} {
			if n, err := p.do("EXISTS", key).AsInt64(); err != nil || n != 0 {
				t.Fatalf("%s is left: %d %v", key, n, err)
			}
		}
	})
}
