package coordinator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// P7: a replica that stood still was cleared; its requests go on, and others were placed meanwhile.
func TestPlacementTakesLeasesBackAfterAWrongClear(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		a, b := s.replica("a", 100), s.replica("b", 1)
		a.BeatOnce(t.Context())
		s.fill(a)
		if _, err := lua.Clear(s.pipes.Batch(), s.store, coordinator.PoolRoot("p"), lua.ClearArgs{Replica: "a", Most: 100}).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.settles(0, 0)
		s.place(b, wish("11", 1))
		lab.Eventually(t, 20*time.Second, func() bool { // not before they are old enough to be judged
			b.BeatOnce(t.Context()) // by a's clocks it would be dead in 120 ms
			a.BeatOnce(t.Context())
			return s.held("b1") == 3 && s.held("b2") == 1
		}, "not taken back")
		if a.Leases() != 3 {
			t.Fatalf("%d leases", a.Leases())
		}
		s.queue(b, wish("12", 1)) // b1 runs three of two
		s.release(a, "01", 1)
		s.release(a, "02", 1)
		s.release(a, "03", 1)
		lab.Eventually(t, 20*time.Second, func() bool { return s.exists(coordinator.Queue("p"), coordinator.Held("p", "a")) == nil }, "left")
		s.release(b, "11", 1)
		s.release(b, "12", 1)
		s.settles(0, 0)
	})
}

// P7: a count that was edited by hand.
func TestPlacementRepairsCounts(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		a, b := s.replica("a", 1), s.replica("b", 1)
		a.BeatOnce(t.Context())
		s.place(a, wish("01", 1))
		for id, n := range map[string]string{"b1": "2", "b2": "1"} {
			if _, err := s.store.Do(t.Context(), "HSET", coordinator.BackendRecord("p", id), "held", n); err != nil {
				t.Fatal(err)
			}
		}
		s.queue(b, wish("02", 1))
		for range 31 { // the second by name leaves it to the first
			b.BeatOnce(t.Context())
		}
		if s.held("b1") != 2 {
			t.Fatal("repaired by another than the first")
		}
		for range 31 {
			a.BeatOnce(t.Context())
		}
		s.settles(2, 0) // and the one who waited got what was free
		if backend, err := func() (string, error) { b.BeatOnce(t.Context()); return s.await(b, wish("02", 1)) }(); backend != "b1" || err != nil {
			t.Fatalf("%q, %v", backend, err)
		}
	})
}

func TestPlacementExplains(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	p := s.replica("a", 1)
	s.fill(p)
	s.queue(p, wish("04", 1))
	s.release(p, "04", 1)
	s.release(p, "01", 1)
	s.settles(1, 1)
	a := wish("05", 1)
	a.MU = 40_000
	e, err := p.Explain(s.pipes.Batch(), a).Wait(t.Context())
	if err != nil || len(e.Backends) != 2 || e.Waiting != 0 {
		t.Fatalf("%+v, %v", e, err)
	}
	b1, b2 := e.Backends[0], e.Backends[1]
	if !b1.Chosen || b1.WhyNot != "" || b1.Held != 1 || b1.Slots != 2 || b1.UncachedMU != 40_000 || b1.RateMU != 200_000 || b1.Score != 200*time.Millisecond {
		t.Fatalf("%+v", b1)
	}
	if b2.Chosen || b2.WhyNot != "no_free_slot" {
		t.Fatalf("%+v", b2)
	}
	if fmt.Sprint(s.held("b1"), p.Leases()) != "1 2" {
		t.Fatal("explaining placed something")
	}
}
