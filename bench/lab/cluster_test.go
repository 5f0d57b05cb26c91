package lab

import (
	"strings"
	"testing"
	"time"
)

func TestClusterServesEveryKeyAtItsOwner(t *testing.T) {
	t.Parallel()
	c := Cluster(t, 3)
	owners := map[*RedisServer]bool{}
	for _, key := range []string{"a", "b", "c", "d", "hg:{t:acme}:open", "hg:{p:qwen}"} {
		if got := c.CLI(key, "SET", key, "v"); got != "OK" {
			t.Fatalf("SET %s: %q", key, got)
		}
		owners[c.Owner(key)] = true
	}
	if len(owners) != 3 {
		t.Fatalf("six keys on %d nodes of 3", len(owners))
	}
}

func TestRelayedClusterSendsClientsThroughRelays(t *testing.T) {
	t.Parallel()
	c := ClusterRelayed(t, 3, 15*time.Millisecond)
	for i, n := range c.Nodes {
		slots := n.CLI("CLUSTER", "SLOTS")
		for j, r := range c.Relays {
			if _, port, _ := strings.Cut(r.Addr, ":"); !strings.Contains(slots, "\n"+port+"\n") {
				t.Errorf("node %d does not name relay %d:\n%s", i, j, slots)
			}
		}
	}
	// A client that asks the wrong node is sent to a relay: redis-cli -c follows it, and the relay sees the command.
	wrong := c.Nodes[0]
	if c.Owner("key") == wrong {
		wrong = c.Nodes[1]
	}
	for _, r := range c.Relays {
		r.Reset()
	}
	if got := wrong.CLI("-c", "SET", "key", "v"); got != "OK" {
		t.Fatalf("SET = %q", got)
	}
	var through int64
	for _, r := range c.Relays {
		up, _ := r.Bytes()
		through += up
	}
	if through == 0 {
		t.Fatal("the redirected command went past the relays")
	}
}
