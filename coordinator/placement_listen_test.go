package coordinator_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

// Who may not use channels is told so, and told again when that was mended; grants come with the beat meanwhile.
func TestPlacementSaysThatItHearsNothing(t *testing.T) {
	t.Parallel()
	for _, rights := range []string{"resetchannels", "-subscribe"} {
		t.Run(rights, func(t *testing.T) {
			t.Parallel()
			redis := lab.Redis(t)
			redis.CLI("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", rights)
			s := newSite(t, pipeline.StoreConfig{URL: "redis://app:pw@" + redis.Addr + "/0"})
			p := s.replica("a", 10)
			s.run(p)
			lab.Eventually(t, 20*time.Second, func() bool { return p.Hearing() != nil }, "nothing is said")
			s.fill(p)
			s.queue(p, wish("04", 1))
			s.release(p, "01", 1)
			if backend, err := s.await(p, wish("04", 1)); backend == "" || err != nil {
				t.Fatalf("%q, %v", backend, err)
			}
			redis.CLI("ACL", "SETUSER", "app", "+@all", "&*")
			lab.Succeeds(t, 20*time.Second, p.Hearing, "mended, and nothing is said")
		})
	}
}

func TestPlacementHears(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		p := s.replica("a", 1)
		s.run(p)
		lab.Eventually(t, 20*time.Second, p.Heard, "its own hello was not heard")
		if err := p.Hearing(); err != nil {
			t.Fatal(err)
		}
	})
}
