package coordinator_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// What is answered through one replica puts off the probes of all; two that failed take a backend out of use.
func TestPlacementProbes(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		a, b := s.replica("a", 1), s.replica("b", 1)
		w := coordinator.ProbeWish{Pool: "p", Idle: 300 * time.Millisecond, Lasts: time.Minute, Most: 9, Backends: []string{"b1", "an id/with more", "b2"}}
		order := func(p *coordinator.Placement) coordinator.ProbeOrder {
			t.Helper()
			o, err := p.Probes(s.pipes.Batch(), w).Wait(t.Context())
			if err != nil || !o.Known {
				t.Fatalf("%+v, %v", o, err)
			}
			return o
		}
		if o := order(a); len(o.Due) != 0 {
			t.Fatalf("due at first sight: %v", o.Due)
		}
		var due []string
		lab.Eventually(t, 20*time.Second, func() bool {
			// b answers on b1 all the time, and says so.
			s.place(b, wish("01", 1))
			post := s.pipes.Post()
			b.Release(post, coordinator.Release{Pool: "p", RID: "01", Attempt: 1, Answered: true})
			post.Send()
			if err := s.pipes.Drain(t.Context(), s.store); err != nil {
				t.Fatal(err)
			}
			for _, p := range []*coordinator.Placement{b, a} {
				due = append(due, order(p).Due...)
			}
			return len(due) >= 2
		}, "due")
		if slices.Sort(due); !slices.Equal(due, []string{"an id/with more", "b2"}) {
			t.Fatalf("due %q", due)
		}
		for i := range 2 {
			if n, err := a.Probed(s.pipes.Batch(), w, "b2", false).Wait(t.Context()); n != i+1 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		if o := order(b); o.Failing["b2"] != 2 || len(o.Failing) != 1 {
			t.Fatalf("%+v", o)
		}
		only := wish("02", 1)
		only.Candidates = only.Candidates[1:]
		s.queue(a, only)
	})
}

// What two replicas find unwell is out of use under the id by which it is registered.
func TestPlacementFindings(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		views := []coordinator.PoolView{{Name: "p", Backends: []coordinator.BackendFacts{{ID: "an id/with more", Slots: 1}}}}
		s.pools = func() []coordinator.PoolView { return views }
		f := coordinator.Finding{Backend: "an id/with more", Place: "h:1", Readers: 2, Unwell: true}
		for i, p := range []*coordinator.Placement{s.replica("a", 1), s.replica("b", 1)} {
			out, err := p.Findings(s.pipes.Batch(), "p", f).Wait(t.Context())
			if err != nil || len(out) != i {
				t.Fatalf("%v, %v", out, err)
			}
			if i == 1 && out[0] != (coordinator.OutOfUse{Backend: "an id/with more", Place: "h:1"}) {
				t.Fatalf("%v", out)
			}
		}
	})
}

// The figures of a pool are the fleet's, also where another replica has the requests.
func TestPlacementCapacity(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		a, b := s.replica("a", 1), s.replica("b", 1)
		s.run(a)
		s.run(b)
		of := func(p *coordinator.Placement) coordinator.Capacity {
			for _, c := range p.Capacity() {
				return c
			}
			return coordinator.Capacity{}
		}
		lab.Eventually(t, 30*time.Second, func() bool { return of(a).Slots == 3 && of(b).Slots == 3 }, "three slots")
		s.fill(a)
		waits := wish("11", 1)
		waits.MU = 7_000
		s.queue(a, waits)
		for _, p := range []*coordinator.Placement{a, b} {
			lab.Eventually(t, 30*time.Second, func() bool {
				c := of(p)
				return c.Held == 3 && c.Utilisation == 1 && c.Waiting == 1 && c.WaitingMU == 7 && c.OfferedMU > 0 && c.ServedMU == 0 && c.CapacityMU == 400 && c.Desired == 4
			}, "what a has")
		}
	})
}
