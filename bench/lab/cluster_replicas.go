package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// ClusterReplicated is Cluster with one replica behind each primary; the replicas are in step when it returns. A primary that
// is silent for nodeTimeout (0: 5 s) is replaced by its replica, a second or two later. With less than five seconds a busy
// machine looks like a dead one.
func ClusterReplicated(t testing.TB, primaries int, nodeTimeout time.Duration) *RedisCluster {
	t.Helper()
	c := startCluster(t, clusterPlan{primaries: primaries, replicated: true, nodeTimeout: nodeTimeout})
	for i := range c.Nodes {
		Succeeds(t, startTimeout, func() error { return follows(c.Replicas[i], c.Nodes[i]) }, "replica %d is in step", i)
	}
	Succeeds(t, startTimeout, c.electable, "every node knows whose replicas there are, and of what slots")
	return c
}

// electable is nil when a failover can be voted on: a replica that has not heard of its primary's slots never stands for
// election, and nobody votes for one he takes for something else.
func (c *RedisCluster) electable() error {
	ids := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		id, err := ask(n.Addr, "CLUSTER", "MYID")
		if err != nil {
			return err
		}
		ids[i] = id
	}
	for _, n := range append(slices.Clone(c.Nodes), c.Replicas...) {
		known, err := ask(n.Addr, "CLUSTER", "NODES")
		if err != nil {
			return err
		}
		for i := range c.Nodes {
			first, last := slotRange(i, len(c.Nodes))
			primary, replica := false, false
			for line := range strings.Lines(known) {
				primary = primary || strings.HasPrefix(line, ids[i]) && strings.Contains(line, fmt.Sprintf(" %d-%d", first, last))
				replica = replica || strings.Contains(line, " "+c.Replicas[i].Addr+"@") && strings.Contains(line, "slave "+ids[i])
			}
			if !primary || !replica {
				return fmt.Errorf("%s knows slots of primary %d: %v, and its replica: %v", n.Addr, i, primary, replica)
			}
		}
	}
	return nil
}

// WaitFailover returns when the replica of Nodes[i], which was killed or frozen, serves in its place, and every living node
// knows. The two change places then: Nodes[i] is the new primary, Replicas[i] the old one as it was left.
func (c *RedisCluster) WaitFailover(i int) {
	c.t.Helper()
	old, heir := c.Nodes[i], c.Replicas[i]
	// A replica whose vote comes before the others have missed the primary is denied, and asks again after four node timeouts.
	if err := within(2*startTimeout, func() error { return leads(heir) }); err != nil {
		c.t.Fatalf("lab: the replica of node %d does not take over: %v; it says\n%s", i, err, heir.proc.output())
	}
	c.Nodes[i], c.Replicas[i] = heir, old
	Succeeds(c.t, startTimeout, c.agreed, "the cluster is ok after the failover of node %d", i) // I5
}

// addReplicas starts one for each primary and returns when all nodes know all others.
func (c *RedisCluster) addReplicas(plan clusterPlan) {
	c.t.Helper()
	for range c.Nodes {
		c.Replicas = append(c.Replicas, c.newNode(plan))
	}
	for i, r := range c.Replicas {
		host, port, _ := strings.Cut(r.Addr, ":")
		if _, err := ask(c.Nodes[0].Addr, "CLUSTER", "MEET", host, port, r.busPort()); err != nil {
			c.t.Fatalf("lab: cluster: %v", err)
		}
		id := c.Nodes[i].CLI("CLUSTER", "MYID")
		Succeeds(c.t, startTimeout, func() error { // refused until gossip has told the replica of its primary
			_, err := ask(r.Addr, "CLUSTER", "REPLICATE", id)
			return err
		}, "replica %d knows its primary", i)
	}
}

// leads is nil when the server calls itself a primary.
func leads(s *RedisServer) error {
	role, err := ask(s.Addr, "ROLE")
	if err == nil && !strings.HasPrefix(role, "master\n") {
		err = fmt.Errorf("%s is %.40q", s.Addr, role)
	}
	return err
}

// follows is nil when the replica is in step with the primary.
func follows(replica, primary *RedisServer) error {
	role, err := ask(replica.Addr, "ROLE")
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("slave\n127.0.0.1\n%d\nconnected\n", primary.Port); !strings.HasPrefix(role, want) {
		return errors.New("the replica is " + strings.ReplaceAll(role, "\n", " "))
	}
	return nil
}
