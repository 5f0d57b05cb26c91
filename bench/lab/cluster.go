package lab

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// RedisCluster is a Redis Cluster of primaries; the 16,384 slots are divided evenly, in order.
type RedisCluster struct {
	Nodes    []*RedisServer // the primaries
	Relays   []*RelayServer // Relays[i] stands in front of Nodes[i]; empty without relays
	Replicas []*RedisServer // Replicas[i] follows Nodes[i]; empty without replicas

	t testing.TB
}

// Cluster starts a Redis Cluster of its own processes and returns when every node says ok and knows all others.
func Cluster(t testing.TB, primaries int) *RedisCluster {
	t.Helper()
	return startCluster(t, clusterPlan{primaries: primaries})
}

// ClusterRelayed is Cluster with a relay in front of every node. The nodes announce the relays' ports, so a client that
// follows CLUSTER SLOTS, MOVED or ASK never gets past the relays; the nodes talk to each other without them.
func ClusterRelayed(t testing.TB, primaries int, delay time.Duration) *RedisCluster {
	t.Helper()
	return startCluster(t, clusterPlan{primaries: primaries, relayed: true, delay: delay})
}

// Addrs are the addresses for clients: the relays' where there are relays, else the nodes'.
func (c *RedisCluster) Addrs() []string {
	var addrs []string
	for i, n := range c.Nodes {
		if len(c.Relays) > 0 {
			addrs = append(addrs, c.Relays[i].Addr)
		} else {
			addrs = append(addrs, n.Addr)
		}
	}
	return addrs
}

// URL names all nodes as seeds: redis://a:1,b:2,c:3.
func (c *RedisCluster) URL() string { return "redis://" + strings.Join(c.Addrs(), ",") }

// SetDelay sets the delay of every relay.
func (c *RedisCluster) SetDelay(d time.Duration) {
	for _, r := range c.Relays {
		r.SetDelay(d)
	}
}

// Owner is the node the key's slot was given to at the start, or the one that took over from it (WaitFailover).
func (c *RedisCluster) Owner(key string) *RedisServer {
	c.t.Helper()
	slot := -1
	for _, n := range slices.Concat(c.Nodes, c.Replicas) { // whichever lives
		if text, err := ask(n.Addr, "CLUSTER", "KEYSLOT", key); err == nil {
			slot, _ = strconv.Atoi(text)
			break
		}
	}
	if slot < 0 {
		c.t.Fatal("lab: no node answers")
	}
	for i := range c.Nodes {
		if _, last := slotRange(i, len(c.Nodes)); slot <= last {
			return c.Nodes[i]
		}
	}
	return nil
}

// CLI runs redis-cli against the node that owns the key, past the relays: CLI("acme", "HGETALL", "hg:{t:acme}").
func (c *RedisCluster) CLI(key string, args ...string) string {
	c.t.Helper()
	return c.Owner(key).CLI(args...)
}

// clusterPlan says what cluster to start.
type clusterPlan struct {
	primaries   int
	replicated  bool
	nodeTimeout time.Duration // a node that is silent for so long is failing; 0: 5 s
	relayed     bool
	delay       time.Duration // of the relays
}

func startCluster(t testing.TB, plan clusterPlan) *RedisCluster {
	t.Helper()
	if plan.nodeTimeout == 0 {
		plan.nodeTimeout = 5 * time.Second
	}
	c := &RedisCluster{t: t}
	for range plan.primaries {
		c.Nodes = append(c.Nodes, c.newNode(plan))
	}
	if err := c.join(); err != nil {
		t.Fatalf("lab: cluster: %v", err)
	}
	if plan.replicated {
		c.addReplicas(plan)
	}
	Succeeds(t, startTimeout, c.agreed, "cluster of %d is ok everywhere", plan.primaries) // I4
	return c
}

func (c *RedisCluster) newNode(plan clusterPlan) *RedisServer {
	c.t.Helper()
	var node *RedisServer
	var err error
	for range 5 {
		if node, err = c.tryNode(plan); err == nil || !errors.Is(err, errExited) {
			break
		}
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return node
}

func (c *RedisCluster) tryNode(plan clusterPlan) (*RedisServer, error) {
	port, bus := freePort(c.t), freePort(c.t)
	args := []string{"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", strconv.Itoa(bus),
		"--cluster-node-timeout", strconv.FormatInt(plan.nodeTimeout.Milliseconds(), 10), "--cluster-announce-ip", "127.0.0.1",
		"--cluster-announce-bus-port", strconv.Itoa(bus), "--cluster-replica-validity-factor", "0",
		"--cluster-allow-replica-migration", "no", "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"}
	var relay *RelayServer
	if plan.relayed {
		relay = Relay(c.t, loopback(port), plan.delay)
		_, relayPort, _ := strings.Cut(relay.Addr, ":")
		args = append(args, "--cluster-announce-port", relayPort)
	}
	node := newRedis(c.t, c.t.TempDir(), port, args...)
	node.t = c.t
	c.t.Cleanup(node.proc.close)
	if err := node.start(); err != nil {
		return nil, err
	}
	if plan.relayed {
		c.Relays = append(c.Relays, relay)
	}
	return node, nil
}

// join gives out the slots and introduces the first node to all others; gossip does the rest.
func (c *RedisCluster) join() error {
	addrs := c.Addrs()
	for i, n := range c.Nodes {
		first, last := slotRange(i, len(c.Nodes))
		if _, err := ask(n.Addr, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)); err != nil {
			return err
		}
		if _, err := ask(n.Addr, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		host, port, _ := strings.Cut(addrs[i], ":")
		if _, err := ask(c.Nodes[0].Addr, "CLUSTER", "MEET", host, port, n.busPort()); err != nil {
			return err
		}
	}
	return nil
}

// agreed is nil when every node is ok and its CLUSTER SLOTS name every node by its address for clients.
func (c *RedisCluster) agreed() error {
	for _, n := range c.Nodes {
		info, err := ask(n.Addr, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_slots_ok:16384") {
			return fmt.Errorf("%s: %.80q", n.Addr, info)
		}
		slots, err := ask(n.Addr, "CLUSTER", "SLOTS")
		if err != nil {
			return err
		}
		for i, addr := range c.Addrs() {
			host, port, _ := strings.Cut(addr, ":")
			first, last := slotRange(i, len(c.Nodes))
			if want := fmt.Sprintf("%d\n%d\n%s\n%s\n", first, last, host, port); !strings.Contains(slots+"\n", want) {
				return fmt.Errorf("%s does not know %s", n.Addr, addr)
			}
		}
	}
	return nil
}

func (s *RedisServer) busPort() string {
	for i, arg := range s.proc.args {
		if arg == "--cluster-port" {
			return s.proc.args[i+1]
		}
	}
	return ""
}

// slotRange returns the first and the last slot of node i of n.
func slotRange(i, n int) (first, last int) {
	const slots = 16384
	return i * slots / n, (i+1)*slots/n - 1
}
