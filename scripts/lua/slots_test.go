package lua_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/redis/rueidis"
)

// pool is one pool of one store, as the placement tests see it.
type pool struct {
	t     failer
	store *pipeline.Store
	pipes *pipeline.Pipeline
	name  string
	root  string
}

// failer is a test, or a property under test.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

var pools atomic.Int64

// onBothPools runs test against redis-server and against miniredis: the scripts must do the same on both.
func onBothPools(t *testing.T, test func(t *testing.T, p *pool)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, newPool(t, pipeline.StoreConfig{URL: lab.SharedRedis(t).URL()}))
	})
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		test(t, newPool(t, pipeline.StoreConfig{URL: "redis://" + miniredis.RunT(t).Addr(), Simple: true}))
	})
}

func newPool(t testing.TB, cfg pipeline.StoreConfig) *pool {
	t.Helper()
	cfg.Timeout = 20 * time.Second // many tests at once on a slow machine
	store, err := pipeline.NewStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if err := store.WaitConnected(t.Context()); err != nil {
		t.Fatal(err)
	}
	return (&pool{store: store, pipes: pipeline.New()}).fresh(t)
}

// fresh is an empty pool of the same store.
func (p *pool) fresh(t failer) *pool {
	name := fmt.Sprintf("pool/%d", pools.Add(1))
	return &pool{t: t, store: p.store, pipes: p.pipes, name: name, root: "hg:{p:" + name + "}"}
}

func (p *pool) do(name, suffix string, args ...string) *rueidis.RedisMessage {
	p.t.Helper()
	m, err := p.store.Do(context.Background(), name, p.root+suffix, args...)
	if err != nil {
		p.t.Fatalf("%s %s: %v", name, suffix, err)
	}
	return &m
}

// field is a field of a hash, "" when absent.
func (p *pool) field(suffix, field string) string {
	p.t.Helper()
	s, _ := p.do("HGET", suffix, field).ToString()
	return s
}

func (p *pool) hash(suffix string) map[string]string {
	p.t.Helper()
	m, err := p.do("HGETALL", suffix).AsStrMap()
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

// queue is the rids that wait, in order.
func (p *pool) queue() []string {
	p.t.Helper()
	members, err := p.do("ZRANGE", ":queue", "0", "-1").AsStrSlice()
	if err != nil {
		p.t.Fatal(err)
	}
	for i := range members {
		members[i] = strings.Split(members[i], "|")[1]
	}
	return members
}

func wait[T any](p *pool, h *pipeline.Handle[T]) T {
	p.t.Helper()
	v, err := h.Wait(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

func same(r lua.PlaceReply) lua.PlaceReply { return r }

// ask is a wish of replica a for a slot of b1 or b2, which have two each where their record does not say.
func ask(rid string, attempt int) lua.PlaceArgs {
	return lua.PlaceArgs{RID: rid, Attempt: attempt, Replica: "a", Tenant: "acme", Model: "m", MU: 7, Wait: true, Limit: 100,
		Candidates: []lua.Slots{{Backend: "b1", Slots: 2}, {Backend: "b2", Slots: 2}}}
}

// on narrows a to some backends, of one slot each.
func on(a lua.PlaceArgs, backends ...string) lua.PlaceArgs {
	a.Candidates = nil
	for _, b := range backends {
		a.Candidates = append(a.Candidates, lua.Slots{Backend: b, Slots: 1})
	}
	return a
}

// by makes a the wish of another replica.
func by(replica string, a lua.PlaceArgs) lua.PlaceArgs {
	a.Replica = replica
	return a
}

func (p *pool) place(a lua.PlaceArgs) lua.PlaceReply {
	p.t.Helper()
	return wait(p, lua.Place(p.pipes.Batch(), p.store, p.root, a, same))
}

func (p *pool) release(replica, rid string, attempt int) lua.ReleaseReply {
	p.t.Helper()
	return wait(p, lua.Release(p.pipes.Batch(), p.store, p.root, lua.ReleaseArgs{RID: rid, Attempt: attempt, Replica: replica}))
}

func (p *pool) releaseAs(a lua.ReleaseArgs) lua.ReleaseReply {
	p.t.Helper()
	return wait(p, lua.Release(p.pipes.Batch(), p.store, p.root, a))
}

func (p *pool) beat(a lua.BeatArgs) lua.BeatReply {
	p.t.Helper()
	return wait(p, lua.Beat(p.pipes.Batch(), p.store, p.root, a))
}

func (p *pool) clear(a lua.ClearArgs) lua.ClearReply {
	p.t.Helper()
	return wait(p, lua.Clear(p.pipes.Batch(), p.store, p.root, a))
}

// held fails the test unless the record of backend says n and the leases of all replicas on it are n.
func (p *pool) held(backend string, n int) {
	p.t.Helper()
	got, leases := p.field(":backend:"+backend, "held"), 0
	for _, replica := range []string{"a", "b", "c"} {
		for _, v := range p.hash(":held:" + replica) {
			if strings.Fields(v)[1] == backend {
				leases++
			}
		}
	}
	if got != strconv.Itoa(n) || leases != n {
		p.t.Fatalf("backend %s: held %q, %d leases, want %d", backend, got, leases, n)
	}
}

func (p *pool) waits(rids ...string) {
	p.t.Helper()
	if got := p.queue(); !slices.Equal(got, rids) {
		p.t.Fatalf("queue %v, want %v", got, rids)
	}
}

// onPool fails the test unless r is a slot of backend.
func (p *pool) onPool(r lua.PlaceReply, backend string) {
	p.t.Helper()
	if r.State != lua.PlacePlaced || r.Backend != backend {
		p.t.Fatalf("got %+v, want a slot of %s", r, backend)
	}
}

func (p *pool) state(r lua.PlaceReply, state lua.PlaceState) {
	p.t.Helper()
	if r.State != state {
		p.t.Fatalf("got %+v, want state %d", r, state)
	}
}
