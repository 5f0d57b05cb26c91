package coordinator_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// P6, with clocks ten times as fast: what a killed replica held goes to who waits, its reservations are settled, the
// living keep what they have.
func TestPlacementClearsTheDeadAndLeavesTheLiving(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		dead, b, c := s.replica("dead", 10), s.replica("b", 10), s.replica("c", 10)
		kill := s.run(dead)
		s.run(b)
		s.run(c)
		lab.Eventually(t, 20*time.Second, func() bool { return s.held("b1") == 0 }, "no beat")
		s.place(dead, wish("01", 1))
		s.place(b, wish("02", 1))
		s.place(dead, wish("03", 1))
		s.queue(dead, wish("04", 1))
		s.queue(c, wish("11", 1))
		kill()
		if backend, err := s.await(c, wish("11", 1)); backend == "" || err != nil {
			t.Fatalf("%q, %v", backend, err)
		}
		lab.Eventually(t, 20*time.Second, func() bool {
			return s.exists(coordinator.Held("p", "dead"), coordinator.Queue("p"), coordinator.PoolRoot("p")+":waiting:dead") == nil &&
				s.held("b1")+s.held("b2") == 2
		}, "something of the dead is left")
		if who := <-s.died; who != "dead" {
			t.Fatalf("settled %s", who)
		}
		for _, pool := range []string{"", "p"} {
			lab.Succeeds(t, 20*time.Second, func() error {
				m, err := s.store.Do(t.Context(), "ZSCORE", coordinator.Replicas(pool), "dead")
				if err == nil && !m.IsNil() {
					err = errors.New("listed")
				}
				return err
			}, "pool %q", pool)
		}
		if b.Leases() != 1 || c.Leases() != 1 {
			t.Fatalf("b %d, c %d leases", b.Leases(), c.Leases())
		}
		for len(s.died) > 0 {
			if who := <-s.died; who != "dead" {
				t.Fatalf("%s was thought dead", who)
			}
		}
	})
}

// The only replica restarts under a new id and finds its own remains.
func TestPlacementClearsItsFormerSelf(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	s.fill(s.replica("host-1", 10)) // killed before its first beat
	s.run(s.replica("host-2", 10))
	s.settles(0, 0)
}

// A replica killed before its first beat is known only to the pool it placed in: what it reserved is settled all the same,
// also if that fails at first.
func TestPlacementSettlesWhoNeverBeat(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	s.fill(s.replica("dead", 20))
	calls := make(chan string, 100)
	cfg := coordinator.PlacementConfig{Replica: "a", Store: s.store, Pipeline: s.pipes, Pools: s.pools}
	cfg.OnDead = func(_ context.Context, replica string) error {
		calls <- replica
		if len(calls) < 3 {
			return errors.New("the tenant's primary is away")
		}
		return nil
	}
	cfg.Hasten(20)
	s.run(coordinator.NewPlacement(cfg))
	lab.Eventually(t, 20*time.Second, func() bool { return len(calls) >= 3 }, "settled")
	for range 3 {
		if dead := <-calls; dead != "dead" {
			t.Fatalf("settled %q", dead)
		}
	}
}

// A dead replica stays listed in the fleet until its reservations are settled.
func TestPlacementSettlesBeforeItForgets(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	if _, err := s.store.Do(t.Context(), "ZADD", coordinator.Replicas(""), "1000", "dead"); err != nil {
		t.Fatal(err)
	}
	calls := make(chan bool, 100)
	cfg := coordinator.PlacementConfig{Replica: "a", Store: s.store, Pipeline: s.pipes, Pools: s.pools}
	cfg.OnDead = func(ctx context.Context, replica string) error {
		m, err := s.store.Do(ctx, "ZSCORE", coordinator.Replicas(""), replica)
		calls <- err == nil && !m.IsNil()
		if len(calls) < 3 {
			return errors.New("the tenant's primary is away")
		}
		return nil
	}
	cfg.Hasten(20)
	s.run(coordinator.NewPlacement(cfg))
	lab.Succeeds(t, 20*time.Second, func() error {
		m, err := s.store.Do(t.Context(), "ZSCORE", coordinator.Replicas(""), "dead")
		if err == nil && !m.IsNil() {
			err = errors.New("listed")
		}
		return err
	}, "not forgotten")
	if len(calls) != 3 {
		t.Fatalf("%d calls", len(calls))
	}
	for range 3 {
		if !<-calls {
			t.Fatal("forgotten before it was settled")
		}
	}
}

// What is tried every second is told once, and again when the reason is another one.
func TestPlacementTellsOnceWhyTheDeadAreNotCleared(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	if _, err := s.store.Do(t.Context(), "ZADD", coordinator.Replicas(""), "1000", "dead"); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	var log lab.Output
	cfg := coordinator.PlacementConfig{Replica: "a", Store: s.store, Pipeline: s.pipes, Pools: s.pools, Log: zerolog.New(&log)}
	cfg.OnDead = func(context.Context, string) error {
		if calls.Add(1) > 20 {
			return errors.New("another reason")
		}
		return errors.New("the tenant's primary is away")
	}
	cfg.Hasten(50)
	stop := s.run(coordinator.NewPlacement(cfg))
	lab.Eventually(t, 20*time.Second, func() bool { return calls.Load() >= 40 }, "tried on and on")
	stop()
	if n := log.Count("not settled yet"); n != 2 || log.Count("another reason") != 1 {
		t.Errorf("%d lines", n)
	}
}

func TestPlacementLeaveTakesItselfOffTheLists(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		p := s.replica("a", 1)
		p.BeatOnce(t.Context())
		s.fill(p)
		s.queue(p, wish("11", 1))
		if err := p.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.settles(0, 0)
		if found := s.exists(coordinator.Replicas(""), coordinator.Replicas("p"), coordinator.Queue("p"), coordinator.Held("p", "a")); found != nil {
			t.Fatalf("left: %v", found)
		}
	})
}

func TestPlacementLeaveSaysWhereItFailed(t *testing.T) {
	t.Parallel()
	for pool, want := range map[string]string{"": "leave the fleet: ", "p": `leave pool "p": `} {
		s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
		p := s.replica("a", 1)
		p.BeatOnce(t.Context())
		if _, err := s.store.Do(t.Context(), "SET", coordinator.Held(pool, "a"), "spoiled"); err != nil {
			t.Fatal(err)
		}
		if err := p.Leave(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestPlacementIsStaleWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	redis := lab.Redis(t)
	s := newSite(t, pipeline.StoreConfig{URL: redis.URL()})
	p := s.replica("a", 50)
	if p.LastBeat() != 0 || p.Stale("p") {
		t.Fatal("stale before Run")
	}
	s.run(p)
	lab.Eventually(t, 20*time.Second, func() bool { return s.held("b1") == 0 && !p.Stale("p") }, "no beat")
	redis.Stop()
	lab.Eventually(t, 20*time.Second, func() bool { return p.Stale("p") && p.Beating() != nil }, "not stale while Redis stands still")
	redis.Cont()
	lab.Eventually(t, 40*time.Second, func() bool { return !p.Stale("p") }, "stale for ever")
}

// A key of one pool that somebody spoiled by hand takes that pool away, and not the replica.
func TestPlacementOnePoolDoesNotMakeAReplicaStale(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	p := s.replica("a", 50)
	if p.Beating() == nil {
		t.Fatal("beating before Run")
	}
	if _, err := s.store.Do(t.Context(), "SET", coordinator.Queue("p"), "x"); err != nil {
		t.Fatal(err)
	}
	s.run(p)
	lab.Eventually(t, 20*time.Second, func() bool { return p.Stale("p") }, "not stale where no beat is answered")
	lab.Succeeds(t, 20*time.Second, p.Beating, "lost with one pool")
	if p.Stale("") || p.Stale("other") {
		t.Fatal("stale elsewhere")
	}
}
