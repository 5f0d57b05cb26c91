package coordinator_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

func (s *site) keep(r *coordinator.Responses, tenant, id, backend string) {
	s.t.Helper()
	post := s.pipes.Post()
	r.Keep(post, tenant, id, backend)
	post.Send()
	if err := s.pipes.Drain(context.Background(), s.store); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) find(r *coordinator.Responses, tenant, id string) string {
	s.t.Helper()
	backend, err := r.Find(s.pipes.Batch(), tenant, id).Wait(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return backend
}

func TestResponsesAreFoundByEveryReplicaOfTheirTenant(t *testing.T) { // R1, R2
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		here := coordinator.NewResponses(coordinator.ResponsesConfig{Store: s.store})
		there := coordinator.NewResponses(coordinator.ResponsesConfig{Store: s.store})
		long := "resp_" + strings.Repeat("x", 200) // too long for a key's name
		for _, id := range []string{"resp_1", long} {
			s.keep(here, "acme", id, "b 1")
			if b, known := here.Known("acme", id); !known || b != "b 1" {
				t.Errorf("%.20s: the replica that kept it: %q %v", id, b, known)
			}
			if _, known := there.Known("acme", id); known {
				t.Errorf("%.20s: known without asking", id)
			}
			if b := s.find(there, "acme", id); b != "b 1" {
				t.Errorf("%.20s: found %q", id, b)
			}
			if b, known := there.Known("acme", id); !known || b != "b 1" {
				t.Errorf("%.20s: not remembered once found", id)
			}
			if _, known := here.Known("other", id); known || s.find(there, "other", id) != "" {
				t.Errorf("%.20s: another tenant finds it", id)
			}
		}
		if b := s.find(there, "acme", "resp_2"); b != "" {
			t.Errorf("nobody kept it: %q", b)
		}
		m, err := s.store.Do(t.Context(), "PTTL", "hg:{t:acme}:response:resp_1")
		if ttl, _ := m.AsInt64(); err != nil || ttl < 86_000_000 || ttl > 86_400_000 {
			t.Errorf("ttl %d ms, %v", ttl, err)
		}
	})
}

func TestResponsesRememberABoundedNumber(t *testing.T) { // R3
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	r := coordinator.NewResponses(coordinator.ResponsesConfig{Store: s.store})
	const n, least, most = 160_000, 50_000, 100_000
	post := s.pipes.Post() // never sent
	for i := range n {
		r.Keep(post, "acme", strconv.Itoa(i), "b1")
	}
	known := 0
	for i := range n {
		_, ok := r.Known("acme", strconv.Itoa(i))
		if ok {
			known++
		} else if i >= n-least {
			t.Fatalf("%d of %d was forgotten", i, n)
		}
	}
	if known > most {
		t.Errorf("%d are remembered", known)
	}
}
