package lua_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// fullRedis is a server of its own whose memory limit may be changed.
func fullRedis(t *testing.T) string { t.Helper(); return lab.Redis(t).URL() }

func b1(slots int, draining bool) lua.BeatArgs {
	return lua.BeatArgs{Replica: "a",
		Backends: []lua.Registered{{Backend: "b1", Address: "10.0.0.1:80", Slots: slots, Draining: draining}}}
}

func TestBeatPublishesTheRegistration(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.beat(b1(4, false))
		f := p.hash(":backend:b1")
		if f["address"] != "10.0.0.1:80" || f["slots"] != "4" || f["held"] != "0" || f["draining"] != "0" {
			t.Fatalf("record %v", f)
		}
		if ttl, err := p.do("PTTL", ":backend:b1").AsInt64(); err != nil || ttl < 1000 {
			t.Fatalf("a record nobody renews stays: %d %v", ttl, err)
		}
		// A figure set by hand holds until the registration changes.
		p.do("HSET", ":backend:b1", "slots", "2", "draining", "1")
		p.beat(b1(4, false))
		if f := p.hash(":backend:b1"); f["slots"] != "2" || f["draining"] != "1" {
			t.Fatalf("by hand: %v", f)
		}
		p.beat(b1(5, false))
		if f := p.hash(":backend:b1"); f["slots"] != "5" || f["draining"] != "0" {
			t.Fatalf("registered anew: %v", f)
		}
		p.do("HDEL", ":backend:b1", "slots")
		p.beat(b1(5, false))
		if f := p.hash(":backend:b1"); f["slots"] != "5" {
			t.Fatalf("deleted by hand: %v", f)
		}
	})
}

func TestBeatKeepsTheCountOfLeases(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(ask("01", 1))
		if r := p.beat(b1(4, false)); r.Leases != 1 || r.NowMS == 0 {
			t.Fatalf("%+v", r)
		}
		p.held("b1", 1)
	})
}

// A Redis user may do anything with keys and nothing with channels: that is what `~* +@all` means since Redis 7.
func TestBeatHandsOverWithoutRightsOnChannels(t *testing.T) {
	t.Parallel()
	redis := lab.Redis(t)
	redis.CLI("ACL", "SETUSER", "app", "on", ">pw", "~hg:*", "+@all", "resetchannels")
	p := newPool(t, pipeline.StoreConfig{URL: "redis://app:pw@" + redis.Addr + "/0"})
	p.place(on(ask("01", 1), "b1"))
	for i := range 3 {
		p.place(on(by("b", ask(fmt.Sprintf("1%d", i), 1)), "b1"))
	}
	if r := p.beat(b1(3, false)); r.Granted != 2 {
		t.Fatalf("%+v", r)
	}
	p.held("b1", 3)
	p.waits("12")
	if leases := p.hash(":held:b"); len(leases) != 2 {
		t.Fatalf("leases %v", leases)
	}
	if got := p.field(":turns", "grants"); got != "2" {
		t.Fatalf("grants %q", got)
	}
}

func TestBeatHandsOverWhatIsFree(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		for i := range 3 {
			p.place(on(by("b", ask(fmt.Sprintf("1%d", i), 1)), "b1"))
		}
		if r := p.beat(b1(1, false)); r.Granted != 0 {
			t.Fatalf("full: %+v", r)
		}
		if r := p.beat(b1(3, true)); r.Granted != 0 {
			t.Fatalf("draining: %+v", r)
		}
		if r := p.beat(b1(3, false)); r.Granted != 2 || r.Leases != 1 {
			t.Fatalf("%+v", r)
		}
		p.held("b1", 3)
		p.waits("12")
	})
}

// A grant says what is warm on its backend, once: a beat that repeats it does not know any more.
func TestBeatGrantSaysWhatIsWarm(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.onPool(p.place(on(long("01", nine...), "b1")), "b1")
		p.state(p.place(on(long("02", nine...), "b1")), lua.PlaceQueued)
		beat := lua.BeatArgs{Replica: "a", Waiting: []string{"02"}, Backends: []lua.Registered{{Backend: "b1", Address: "x", Slots: 2}}}
		for _, want := range []int64{9000, 0} {
			if r := p.beat(beat); len(r.Grants) != 1 || r.Grants[0].Matched != want {
				t.Fatalf("%+v, want %d tokens", r.Grants, want)
			}
		}
	})
}

func TestBeatRepeatsGrantsAndNamesTheLost(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		for i := range 3 {
			p.place(on(ask(fmt.Sprintf("0%d", i), 2), "b1"))
		}
		p.release("a", "00", 2) // 01 has it now, and the announcement was lost
		args := lua.BeatArgs{Replica: "a", Waiting: []string{"01", "02", "03"}}
		for range 2 {
			r := p.beat(args)
			if want := []lua.Grant{{RID: "01", Attempt: 2, Backend: "b1"}}; !slices.Equal(r.Grants, want) {
				t.Fatalf("grants %v, want %v", r.Grants, want)
			}
			if !slices.Equal(r.Lost, []string{"03"}) {
				t.Fatalf("lost %v", r.Lost)
			}
		}
		// A grant of this very beat is in its reply.
		args.Backends = []lua.Registered{{Backend: "b1", Address: "x", Slots: 2}}
		if r := p.beat(args); len(r.Grants) != 2 || r.Leases != 2 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestBeatListsTheReplicas(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		first := p.beat(lua.BeatArgs{Replica: "a"})
		if len(first.Replicas) != 0 {
			t.Fatalf("%v", first.Replicas)
		}
		p.do("ZADD", ":replicas", "1234", "b")
		r := p.beat(lua.BeatArgs{Replica: "a"})
		want := []lua.ReplicaBeat{{Replica: "b", BeatMS: 1234}, {Replica: "a", BeatMS: r.NowMS}}
		if !slices.Equal(r.Replicas, want) {
			t.Fatalf("%v, want %v", r.Replicas, want)
		}
		if n, err := p.do("ZSCORE", ":replicas", "a").AsFloat64(); err != nil || int64(n) != r.NowMS {
			t.Fatalf("beat %v %v, want %d", n, err, r.NowMS)
		}
	})
}

// Only the pool of the whole fleet lists everybody; elsewhere the dead come first, however many they are.
func TestBeatListsFewReplicasOfMany(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		const now = 1_800_000_000_000
		whole := &pool{t: t, store: p.store, root: "hg:{p:}"}
		for _, q := range []*pool{p, whole} {
			for i := range 40 {
				q.do("ZADD", ":replicas", fmt.Sprint(now-100-i), fmt.Sprintf("gateway-%02d", i))
			}
		}
		r := p.beat(lua.BeatArgs{Replica: "a", NowMS: now})
		if len(r.Replicas) != 32 || r.Replicas[0].Replica != "gateway-39" {
			t.Fatalf("%d replicas, first %v", len(r.Replicas), r.Replicas[0])
		}
		if r := whole.beat(lua.BeatArgs{Replica: "a", NowMS: now}); len(r.Replicas) < 40 {
			t.Fatalf("%d of 40 in the whole fleet", len(r.Replicas))
		}
		if r := p.beat(lua.BeatArgs{Replica: "a", NowMS: now + 2000}); len(r.Replicas) != 41 {
			t.Fatalf("%d of 41, all late", len(r.Replicas))
		}
	})
}

func TestBeatNamesRecordsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.beat(b1(4, false))
		p.do("HSET", ":backend:b1", "slots", "many")
		p.do("SET", ":backend:b2", "x")
		args := b1(4, false)
		args.Backends = append(args.Backends, lua.Registered{Backend: "b2", Address: "x", Slots: 1},
			lua.Registered{Backend: "b3", Address: "x", Slots: 1})
		if r := p.beat(args); !slices.Equal(r.Unreadable, []string{"b1", "b2"}) {
			t.Fatalf("unreadable %v", r.Unreadable)
		}
		if f := p.hash(":backend:b3"); f["slots"] != "1" {
			t.Fatalf("one bad record hid another: %v", f)
		}
	})
}

// All keys lie in the slot of the pool: the scripts run on a cluster, where a key elsewhere is an error.
func TestPlacementRunsOnACluster(t *testing.T) {
	t.Parallel()
	c := lab.Cluster(t, 3)
	p := newPool(t, pipeline.StoreConfig{URL: c.URL()})
	for i := range 8 { // pools on all nodes
		q := *p
		q.name = fmt.Sprintf("p%d", i)
		q.root = "hg:{p:" + q.name + "}"
		q.place(on(ask("01", 1), "b1"))
		q.place(on(by("b", ask("02", 1)), "b1"))
		q.beat(b1(1, false))
		q.release("a", "01", 1)
		q.held("b1", 1)
		q.place(from(long("03", nine...), "b3"))
		q.fail(false)
		before := wait(&q, lua.Before(q.pipes.Batch(), q.store, q.root, []string{"b1"}, asIs))
		wait(&q, lua.Readings(q.pipes.Batch(), q.store, q.root, []lua.Reading{{Backend: "b1", Running: 1, Held: 1, AskedMS: before.NowMS}}, 0))
		if r := q.weigh(from(long("04", nine...), "b3")); r.Rows[0].Matched != 9000 {
			t.Fatalf("%+v", r)
		}
		if r := q.recount("b1", "b3"); r.Leases != 2 || len(r.Repaired) > 0 {
			t.Fatalf("%+v", r)
		}
		if r := q.adopt(lua.Adopted{RID: "05", Attempt: 1, Backend: "b3"}); r.Adopted != 1 {
			t.Fatalf("%+v", r)
		}
		if r := q.clear(lua.ClearArgs{Replica: "b", Most: 10}); r.Released != 1 {
			t.Fatalf("%+v", r)
		}
		q.held("b1", 0)
	}
}
