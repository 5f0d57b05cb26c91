package lab

import (
	"fmt"
	"strings"
	"testing"
)

// I5: a primary that was killed, then one that is frozen, are replaced; what was written before is there, and who asks the
// others is sent to the new one.
func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	c := ClusterReplicated(t, 3, 0)
	for i, stop := range []func(*RedisServer){(*RedisServer).Kill, (*RedisServer).Stop} {
		key, old := "k", c.Nodes[i]
		for c.Owner(key) != old {
			key += "k"
		}
		c.CLI(key, "SET", key, "v")
		if got := old.CLI("WAIT", "1", "5000"); got != "1" {
			t.Fatalf("the replica did not get it: %q", got)
		}
		stop(old)
		c.WaitFailover(i)
		if c.Nodes[i] == old || c.Replicas[i] != old || c.CLI(key, "GET", key) != "v" {
			t.Fatalf("node %d: %s, %q", i, c.Nodes[i].Addr, c.CLI(key, "GET", key))
		}
		if got := c.Nodes[2].CLI("-c", "GET", key); got != "v" {
			t.Fatalf("the others do not lead there: %q", got)
		}
	}
}

// I5: the same with sentinels; the killed one comes back as a replica.
func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	s := Sentinel(t)
	for _, stop := range []func(*RedisServer){(*RedisServer).Kill, (*RedisServer).Stop} {
		old := s.Primary
		s.CLI("INCR", "k")
		if got := s.CLI("WAIT", "1", "5000"); got != "1" {
			t.Fatalf("the replica did not get it: %q", got)
		}
		want := s.CLI("GET", "k")
		Succeeds(t, startTimeout, func() error {
			if got, err := ask(s.Replica.Addr, "GET", "k"); err != nil || got != want {
				return fmt.Errorf("%q %v", got, err)
			}
			return nil
		}, "the replica has it")
		stop(old)
		s.WaitFailover()
		if got := s.CLI("GET", "k"); s.Primary == old || s.Replica != old || got != want {
			t.Fatalf("%s has %q, want %s", s.Primary.Addr, got, want)
		}
		if !strings.HasSuffix(s.URL(), "/0?sentinel=lab") {
			t.Fatal(s.URL())
		}
		if old.proc.alive() {
			continue
		}
		old.Restart()
		Succeeds(t, startTimeout, func() error { return follows(old, s.Primary) }, "the old one follows")
		Succeeds(t, startTimeout, func() error { return s.know(s.Primary) }, "the sentinels know it")
	}
}
