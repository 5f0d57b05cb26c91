package coordinator_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// P8: what one replica finds out of a backend holds for all.
func TestPlacementFailedBackendIsLeftAlone(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		a, b := s.replica("a", 1), s.replica("b", 1)
		fail := func(why coordinator.Failure) {
			post := s.pipes.Post()
			a.Failed(post, "p", "b1", why)
			post.Send()
			if err := s.pipes.Drain(t.Context(), s.store); err != nil {
				t.Fatal(err)
			}
		}
		fail(coordinator.FailedSilent)
		if r := s.place(b, wish("01", 1)); r.Backend != "b1" {
			t.Fatalf("after one timeout: %+v", r)
		}
		fail(coordinator.FailedConnect)
		if r := s.place(b, wish("02", 1)); r.Backend != "b2" {
			t.Fatalf("after a failed connection: %+v", r)
		}
		// It is used again when its time is over, and an answer there ends the row.
		lab.Eventually(t, 20*time.Second, func() bool {
			if s.place(b, wish("03", 1)).State == coordinator.Placed {
				return true
			}
			b.BeatOnce(t.Context())
			return b.Waiting() == 0
		}, "still cooling down")
		post := s.pipes.Post()
		b.Release(post, coordinator.Release{Pool: "p", RID: "03", Attempt: 1, Answered: true})
		post.Send()
		lab.Eventually(t, 20*time.Second, func() bool {
			m, err := s.store.Do(t.Context(), "HGET", coordinator.BackendRecord("p", "b1"), "failures")
			n, _ := m.ToString()
			return err == nil && n == "0"
		}, "the failures in a row are not over")
	})
}

func TestPlacementReadings(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		p := s.replica("a", 1)
		s.place(p, wish("01", 1))
		asked, err := p.BeforeReading(s.pipes.Batch(), "p", []string{"b1", "b2"}).Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.Reading(s.pipes.Batch(), "p", asked, coordinator.Reading{Backend: "b1", Running: 2},
			coordinator.Reading{Backend: "b2", KV: 9600}, coordinator.Reading{Backend: "not asked"}).Wait(t.Context())
		if n != 2 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		s.queue(p, wish("02", 1))                       // somebody else has b1's other slot, and b2 has no room for a prompt
		lab.Eventually(t, 20*time.Second, func() bool { // asked within one millisecond it is no news
			asked, _ := p.BeforeReading(s.pipes.Batch(), "p", []string{"b1"}).Wait(t.Context())
			n, err := p.Reading(s.pipes.Batch(), "p", asked, coordinator.Reading{Backend: "b1", Running: 1}).Wait(t.Context())
			return err == nil && n == 1
		}, "not taken")
		p.BeatOnce(t.Context())
		if backend, err := s.await(p, wish("02", 1)); backend != "b1" || err != nil {
			t.Fatalf("%q, %v", backend, err)
		}
	})
}

// What is known of an ask reaches the score: a prompt goes where its beginning is warm, and work never done is taken back.
func TestPlacementScores(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	p := s.replica("a", 1)
	first := chat(1, 30_000)
	ask := func(rid string, c coordinator.PromptParts, backends ...string) coordinator.Ask {
		a := wish(rid, 1)
		a.MU, a.OutputMU, a.PromptTokens, a.WarmMU, a.Prefix = 85_000, 10_000, c.Tokens, 9, coordinator.Fingerprints(c)
		a.Candidates = nil
		for _, b := range backends {
			a.Candidates = append(a.Candidates, coordinator.Candidate{ID: b, Slots: 4})
		}
		return a
	}
	release := func(r coordinator.Release) {
		r.Pool, r.Attempt = "p", 1
		post := s.pipes.Post()
		p.Release(post, r)
		post.Send()
		if err := s.pipes.Drain(t.Context(), s.store); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.place(p, ask("01", first, "b1", "b2")); r.Backend != "b1" || r.Matched != 0 || r.Expected != 375*time.Millisecond {
		t.Fatalf("%+v", r)
	}
	release(coordinator.Release{RID: "01", Unused: true})
	m, err := s.store.Do(t.Context(), "HGET", coordinator.BackendRecord("p", "b1"), "backlog")
	if backlog, _ := m.ToString(); err != nil || backlog != "0" {
		t.Fatalf("backlog %q, %v", backlog, err)
	}
	if r := s.place(p, ask("02", chat(1, 30_000, 400), "b2", "b1")); r.Backend != "b1" || r.Matched != first.Tokens {
		t.Fatalf("%+v", r)
	}
}
