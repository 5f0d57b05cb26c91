package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// site is a Redis with pool "p" of backends b1 (2 slots) and b2 (1 slot), and the replicas that place there.
type site struct {
	t     *testing.T
	cfg   pipeline.StoreConfig
	store *pipeline.Store
	pipes *pipeline.Pipeline
	pools func() []coordinator.PoolView
	died  chan string // replicas given to OnDead
}

func newSite(t *testing.T, cfg pipeline.StoreConfig) *site {
	t.Helper()
	s := &site{t: t, cfg: cfg, pipes: pipeline.New(), died: make(chan string, 100)}
	s.cfg.Timeout = 20 * time.Second // many tests at once on a slow machine
	s.store = s.dial()
	views := []coordinator.PoolView{{Name: "p", Backends: []coordinator.BackendFacts{
		{ID: "b1", Address: "127.0.0.1:1", Slots: 2}, {ID: "b2", Address: "127.0.0.1:2", Slots: 1}}}}
	s.pools = func() []coordinator.PoolView { return views }
	return s
}

func (s *site) dial() *pipeline.Store {
	s.t.Helper()
	store, err := pipeline.NewStore(s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	s.t.Cleanup(func() { cancel(); <-done })
	if err := store.WaitConnected(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return store
}

func onBothSites(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()}))
	})
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		test(t, newSite(t, pipeline.StoreConfig{URL: "redis://" + miniredis.RunT(t).Addr(), Simple: true}))
	})
}

// replica is a Placement that does not run yet.
func (s *site) replica(id string, faster int) *coordinator.Placement {
	cfg := coordinator.PlacementConfig{Replica: id, Store: s.store, Pipeline: s.pipes, Pools: s.pools, QueueLimit: 1000,
		OnDead: func(_ context.Context, replica string) error { s.died <- replica; return nil }, Log: zerolog.Nop()}
	cfg.Hasten(faster)
	return coordinator.NewPlacement(cfg)
}

// run runs p until the test ends or stop is called, which is a kill: nothing is given back.
func (s *site) run(p *coordinator.Placement) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	s.t.Cleanup(stop)
	return stop
}

func wish(rid string, attempt int) coordinator.Ask {
	return coordinator.Ask{RID: rid, Attempt: attempt, Pool: "p", Tenant: "acme", Model: "m", MU: 1, Wait: true,
		Candidates: []coordinator.Candidate{{ID: "b1", Slots: 2}, {ID: "b2", Slots: 1}}}
}

func (s *site) place(p *coordinator.Placement, a coordinator.Ask) coordinator.Place {
	s.t.Helper()
	r, err := p.Place(s.pipes.Batch(), a).Wait(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *site) release(p *coordinator.Placement, rid string, attempt int) {
	post := s.pipes.Post()
	p.Release(post, coordinator.Release{Pool: "p", RID: rid, Attempt: attempt})
	post.Send()
}

// fill takes all slots: 01 and 02 on b1, 03 on b2.
func (s *site) fill(p *coordinator.Placement) {
	s.t.Helper()
	for i, backend := range []string{"b1", "b1", "b2"} {
		rid := fmt.Sprintf("0%d", i+1)
		if r := s.place(p, wish(rid, 1)); r.State != coordinator.Placed || r.Backend != backend {
			s.t.Fatalf("%s: %+v, want a slot of %s", rid, r, backend)
		}
	}
}

func (s *site) queue(p *coordinator.Placement, a coordinator.Ask) {
	s.t.Helper()
	if r := s.place(p, a); r.State != coordinator.Queued {
		s.t.Fatalf("%s: %+v, want the queue", a.RID, r)
	}
}

func (s *site) await(p *coordinator.Placement, a coordinator.Ask) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	place, err := p.Await(ctx, a)
	return place.Backend, err
}

// held is the slots taken on a backend, -1 when its record does not say.
func (s *site) held(id string) int {
	m, err := s.store.Do(context.Background(), "HGET", coordinator.BackendRecord("p", id), "held")
	if err != nil {
		s.t.Fatal(err)
	}
	text, _ := m.ToString()
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// exists says which of some keys exist.
func (s *site) exists(keys ...string) (found []string) {
	for _, key := range keys {
		m, err := s.store.Do(context.Background(), "EXISTS", key)
		if n, _ := m.AsInt64(); err != nil || n != 0 {
			found = append(found, key)
		}
	}
	return found
}

// settles waits until the slots taken are these.
func (s *site) settles(b1, b2 int) {
	s.t.Helper()
	lab.Succeeds(s.t, 20*time.Second, func() error {
		if got1, got2 := s.held("b1"), s.held("b2"); got1 != b1 || got2 != b2 {
			return fmt.Errorf("held %d and %d", got1, got2)
		}
		return nil
	}, "want %d and %d", b1, b2)
}

// P1, P2, P3: whatever clients and replies do, no backend is above its slots, all are served, nothing is left.
func TestPlacementNeverExceedsSlots(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		var replicas []*coordinator.Placement
		for i := range 3 {
			p := s.replica(fmt.Sprintf("r%d", i), 1)
			s.run(p)
			replicas = append(replicas, p)
		}
		running := map[string]*atomic.Int64{"b1": {}, "b2": {}}
		slots := map[string]int64{"b1": 2, "b2": 1}
		var served, left atomic.Int64
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				p, a := replicas[i%3], wish(fmt.Sprintf("%032x", i), 1)
				ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
				defer cancel()
				if i%5 == 0 { // a client that leaves
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(50))*time.Millisecond)
					defer cancel()
				}
				defer s.release(p, a.RID, a.Attempt)
				backend, err := taken(ctx, s, p, a)
				if err != nil {
					left.Add(1)
					return
				}
				if n := running[backend].Add(1); n > slots[backend] {
					t.Errorf("%d requests on %s", n, backend)
				}
				time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // the work
				if i%7 == 0 {
					p.Place(s.pipes.Batch(), a).Wait(context.Background()) // a repeat changes nothing
				}
				running[backend].Add(-1)
				served.Add(1)
			})
		}
		wg.Wait()
		if served.Load()+left.Load() != 200 || served.Load() < 160 {
			t.Fatalf("%d served, %d left", served.Load(), left.Load())
		}
		s.settles(0, 0)
		for _, p := range replicas {
			if p.Leases() != 0 || p.Waiting() != 0 {
				t.Fatalf("%d leases, %d waiting are remembered", p.Leases(), p.Waiting())
			}
		}
		if found := s.exists(coordinator.Queue("p"), coordinator.Held("p", "r0"), coordinator.Held("p", "r1"), coordinator.Held("p", "r2")); found != nil {
			t.Fatalf("left: %v", found)
		}
	})
}

// taken places and waits as a request does.
func taken(ctx context.Context, s *site, p *coordinator.Placement, a coordinator.Ask) (string, error) {
	r, err := p.Place(s.pipes.Batch(), a).Wait(ctx)
	if err != nil {
		return "", err
	}
	if r.State == coordinator.Placed {
		return r.Backend, nil
	}
	place, err := p.Await(ctx, a)
	return place.Backend, err
}

func TestPlacementAnnouncesAGrant(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		a, b := s.replica("a", 1), s.replica("b", 1)
		s.run(b)
		s.fill(a)
		s.queue(b, wish("11", 1))
		s.release(a, "03", 1)
		if backend, err := s.await(b, wish("11", 1)); backend != "b2" || err != nil {
			t.Fatalf("%q, %v", backend, err)
		}
		if a.Leases() != 2 || b.Leases() != 1 || b.Waiting() != 0 {
			t.Fatalf("a %d, b %d leases, %d waiting", a.Leases(), b.Leases(), b.Waiting())
		}
	})
}

// P5: nobody listens to announcements here; the beat brings the grant.
func TestPlacementGrantWhoseAnnouncementIsLost(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		p := s.replica("a", 1)
		s.fill(p)
		s.queue(p, wish("11", 2))
		s.release(p, "01", 1)
		lab.Eventually(t, 20*time.Second, func() bool { return s.exists(coordinator.Queue("p")) == nil }, "not handed over")
		p.BeatOnce(t.Context())
		if backend, err := s.await(p, wish("11", 2)); backend != "b1" || err != nil {
			t.Fatalf("%q, %v", backend, err)
		}
	})
}

// P4: a grant for a request nobody waits for here.
func TestPlacementGivesBackAGrantNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		p := s.replica("a", 1)
		p.Trust()
		s.run(p)
		lab.Eventually(t, 20*time.Second, func() bool { return s.held("b1") == 0 }, "no beat")
		s.fill(p)
		gone := lua.PlaceArgs{RID: "99", Attempt: 1, Replica: "a", Wait: true, Limit: 10, Candidates: []lua.Slots{{Backend: "b1"}}}
		state := func(r lua.PlaceReply) lua.PlaceState { return r.State }
		if got, err := lua.Place(s.pipes.Batch(), s.store, coordinator.PoolRoot("p"), gone, state).Wait(t.Context()); got != lua.PlaceQueued {
			t.Fatalf("%v, %v", got, err)
		}
		lab.Eventually(t, 20*time.Second, func() bool { // until the subscription stands
			m, err := s.store.Do(t.Context(), "PUBLISH", "", coordinator.GrantChannel("a"), "x")
			n, _ := m.AsInt64()
			return err == nil && n == 1
		}, "not subscribed")
		s.release(p, "01", 1)
		s.settles(1, 1)
	})
}

// P2: attempts.
func TestPlacementReleaseOfAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	p := s.replica("a", 1)
	s.place(p, wish("01", 1))
	again := wish("01", 2)
	again.Not = "b1"
	if r := s.place(p, again); r.State != coordinator.Placed || r.Backend != "b2" {
		t.Fatalf("%+v", r)
	}
	s.settles(0, 1)
	s.release(p, "01", 1)
	if p.Leases() != 1 {
		t.Fatalf("%d leases", p.Leases())
	}
	s.release(p, "01", 2)
	s.settles(0, 0)
}

func TestPlacementStates(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	p := s.replica("a", 1)
	s.fill(p)
	a := wish("11", 1)
	a.Wait = false
	if r := s.place(p, a); r.State != coordinator.QueueFull {
		t.Fatalf("%+v", r)
	}
	a = wish("12", 1)
	a.Candidates = nil
	if r := s.place(p, a); r.State != coordinator.NoBackend {
		t.Fatalf("%+v", r)
	}
	s.queue(p, wish("13", 1))
	if r := s.place(p, wish("14", 1)); r.State != coordinator.Queued || r.Ahead != 1 {
		t.Fatalf("%+v", r)
	}
	if p.Leases() != 3 || p.Waiting() != 2 {
		t.Fatalf("%d leases, %d waiting", p.Leases(), p.Waiting())
	}
}

func TestPlacementAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	p := s.replica("a", 1)
	s.fill(p)
	s.queue(p, wish("11", 1))
	why := errors.New("the client left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := p.Await(ctx, wish("11", 1)); !errors.Is(err, why) {
		t.Fatal(err)
	}
	s.release(p, "11", 1)
	lab.Eventually(t, 20*time.Second, func() bool { return s.exists(coordinator.Queue("p")) == nil }, "still queued")
	if _, err := p.Await(t.Context(), wish("11", 1)); !errors.Is(err, coordinator.ErrPlaceAgain) {
		t.Fatalf("await after release: %v", err)
	}
}

// Redis lost the queue: who waits there is told to place again.
func TestPlacementQueueIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	p := s.replica("a", 1)
	s.fill(p)
	s.queue(p, wish("11", 1))
	if _, err := s.store.Do(t.Context(), "FLUSHALL", ""); err != nil {
		t.Fatal(err)
	}
	p.BeatOnce(t.Context())
	if _, err := s.await(p, wish("11", 1)); !errors.Is(err, coordinator.ErrPlaceAgain) {
		t.Fatal(err)
	}
	if r := s.place(p, wish("11", 2)); r.State != coordinator.Placed {
		t.Fatalf("%+v", r)
	}
}

// P7: a place that was applied after its request was gone, and one that is too young to be judged.
func TestPlacementBeatGivesBackWhatNobodyKnows(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		p := s.replica("a", 1)
		s.place(p, wish("01", 1))
		old := time.Now().Add(-time.Minute).UnixMilli()
		for rid, placed := range map[string]int64{"02": old, "03": time.Now().Add(time.Minute).UnixMilli()} {
			if _, err := s.store.Do(t.Context(), "HSET", coordinator.Held("p", "a"), rid, fmt.Sprintf("1 b1 0 %d acme", placed)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.store.Do(t.Context(), "HINCRBY", coordinator.BackendRecord("p", "b1"), "held", "1"); err != nil {
				t.Fatal(err)
			}
		}
		p.BeatOnce(t.Context())
		if err := s.pipes.Drain(t.Context(), s.store); err != nil || s.held("b1") != 3 {
			t.Fatal("one beat is not enough to judge: replies may be on the way")
		}
		p.BeatOnce(t.Context())
		s.settles(2, 0)
		m, err := s.store.Do(t.Context(), "HGETALL", coordinator.Held("p", "a"))
		leases, _ := m.AsStrMap()
		if err != nil || leases["01"] == "" || leases["02"] != "" || leases["03"] == "" {
			t.Fatalf("%v, %v", leases, err)
		}
	})
}

func TestPlacementMapsIdsThatAreNotSafe(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	odd := "engine 1|{x}"
	views := []coordinator.PoolView{{Name: "p", Backends: []coordinator.BackendFacts{{ID: odd, Address: "x", Slots: 1}}}}
	s.pools = func() []coordinator.PoolView { return views }
	p := s.replica("a", 1)
	a := func(rid string) coordinator.Ask {
		a := wish(rid, 1)
		a.Candidates = []coordinator.Candidate{{ID: odd, Slots: 1}}
		return a
	}
	if r := s.place(p, a("01")); r.Backend != odd {
		t.Fatalf("%+v", r)
	}
	s.queue(p, a("02"))
	s.release(p, "01", 1)
	lab.Eventually(t, 20*time.Second, func() bool { return s.exists(coordinator.Queue("p")) == nil }, "not handed over")
	p.BeatOnce(t.Context())
	if backend, err := s.await(p, a("02")); backend != odd || err != nil {
		t.Fatalf("%q, %v", backend, err)
	}
	if key := coordinator.BackendRecord("p", coordinator.SafeID(odd)); strings.Contains(key, " ") || s.exists(key) == nil {
		t.Fatalf("no record %s", key)
	}
}
