package lab

import "testing"

// Pair is a primary and its replica, in a cluster or a Sentinel set. Primary and Replica change places with a failover.
type Pair struct {
	t                testing.TB
	primary, replica func() *RedisServer
	wait             func()
}

// Shard is the pair that owns the key.
func (c *RedisCluster) Shard(key string) Pair {
	c.t.Helper()
	owner := c.Owner(key)
	for i := range c.Nodes {
		if c.Nodes[i] == owner {
			return Pair{c.t, func() *RedisServer { return c.Nodes[i] }, func() *RedisServer { return c.Replicas[i] }, func() { c.WaitFailover(i) }}
		}
	}
	return Pair{}
}

// Pair is the set's only pair.
func (s *SentinelSet) Pair() Pair {
	return Pair{s.t, func() *RedisServer { return s.Primary }, func() *RedisServer { return s.Replica }, s.WaitFailover}
}

// CLI runs redis-cli against the primary.
func (p Pair) CLI(args ...string) string {
	p.t.Helper()
	return p.primary().CLI(args...)
}

// Detach first lets the replica catch up and then holds it back: what is written from now on goes with the primary.
func (p Pair) Detach() {
	p.t.Helper()
	if got := p.CLI("WAIT", "1", "5000"); got != "1" {
		p.t.Fatalf("lab: the replica is not in step: WAIT says %s", got)
	}
	p.replica().Stop()
	p.CLI("CLIENT", "KILL", "TYPE", "replica") // nothing waits in its socket
}

// Kill is kill -9 of the primary; a replica that was held back goes on.
func (p Pair) Kill() {
	p.t.Helper()
	p.primary().Kill()
	p.replica().Cont()
}

// Freeze stops the primary (SIGSTOP): nothing is reset, nothing is answered.
func (p Pair) Freeze() {
	p.t.Helper()
	p.primary().Stop()
}

// Wait is WaitFailover.
func (p Pair) Wait() {
	p.t.Helper()
	p.wait()
}
