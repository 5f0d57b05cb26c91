package pipeline_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// A primary that is frozen resets no connection and says nothing: the store follows to the one that took over all the same,
// and names it.
func TestFollowsAFrozenPrimary(t *testing.T) {
	t.Parallel()
	const key = "{a}k"
	for name, start := range map[string]func(*testing.T) (string, lab.Pair){
		"cluster": func(t *testing.T) (string, lab.Pair) {
			c := lab.ClusterReplicated(t, 3, 0)
			return c.URL(), c.Shard(key)
		},
		"sentinel": func(t *testing.T) (string, lab.Pair) { s := lab.Sentinel(t); return s.URL(), s.Pair() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, pair := start(t)
			s := newStore(t, url, 450*time.Millisecond)
			set := func() bool { _, err := s.Do(t.Context(), "SET", key, "v"); return err == nil }
			lab.Eventually(t, 10*time.Second, set, "it is written")
			before, err := s.Primaries(t.Context())
			if err != nil || len(before) == 0 {
				t.Fatalf("%v, %v", before, err)
			}
			pair.Freeze()
			lab.Eventually(t, 10*time.Second, func() bool { _, err := s.Primaries(t.Context()); return err != nil }, "it is missed")
			pair.Wait()
			over := time.Now()
			lab.Eventually(t, 20*time.Second, set, "it is written where the new primary is")
			t.Logf("%v after the failover", time.Since(over).Round(time.Millisecond))
			lab.Eventually(t, 20*time.Second, func() bool {
				after, err := s.Primaries(t.Context())
				return err == nil && len(after) == len(before) && !slices.Equal(before, after)
			}, "another is named")
		})
	}
}
