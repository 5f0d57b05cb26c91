package faults

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/lab"
)

// What may happen in a run. Replicas, engines and relays are counted from 0.

func killReplica(i int) func(*world)   { return func(w *world) { w.Replicas[i].Kill() } }
func freezeReplica(i int) func(*world) { return func(w *world) { w.Replicas[i].Stop() } }
func thawReplica(i int) func(*world)   { return func(w *world) { w.Replicas[i].Cont() } }
func termReplica(i int) func(*world)   { return func(w *world) { w.Replicas[i].Term() } }

// startReplica starts it again and returns when it is ready.
func startReplica(i int) func(*world) {
	return func(w *world) { w.Replicas[i].Restart(); w.Replicas[i].WaitReady() }
}

func freezeRedis(w *world)  { w.redis.Stop() }
func thawRedis(w *world)    { w.redis.Cont() }
func killRedis(w *world)    { w.redis.Kill() }
func restartRedis(w *world) { w.redis.Restart() }

// onRedis runs a command.
func onRedis(args ...string) func(*world) { return func(w *world) { w.redis.CLI(args...) } }

// partition keeps all bytes between a replica and Redis from arriving; heal lets them go on.
func partition(i int) func(*world) { return func(w *world) { w.toRedis[i].Freeze() } }
func heal(i int) func(*world)      { return func(w *world) { w.toRedis[i].Thaw() } }

func freezeConsul(w *world)  { w.consul.Stop() }
func thawConsul(w *world)    { w.consul.Cont() }
func killConsul(w *world)    { w.consul.Kill() }
func restartConsul(w *world) { w.consul.Restart() }

// leaderless freezes the server that the other one needs, and returns when that one has no leader; led ends it.
func leaderless(w *world) {
	w.servers.Other.Stop()
	lab.Eventually(w.t, 30*s, func() bool { return w.servers.Leader() != nil }, "consul has no leader")
}
func led(w *world) {
	w.servers.Other.Cont()
	lab.Succeeds(w.t, 30*s, w.servers.Leader, "consul has a leader")
}

func killEngine(i int) func(*world)   { return func(w *world) { w.engines[i].kill() } }
func freezeEngine(i int) func(*world) { return func(w *world) { w.engines[i].signal(syscall.SIGSTOP) } }
func thawEngine(i int) func(*world)   { return func(w *world) { w.engines[i].signal(syscall.SIGCONT) } }

// startEngine starts it again, well.
func startEngine(i int) func(*world) {
	return func(w *world) { w.engines[i].Loading = false; w.engines[i].start() }
}

// startLoading starts it again as engines come up: the port is open, /health says 503, requests get no answer.
func startLoading(i int) func(*world) {
	return func(w *world) { w.engines[i].Loading = true; w.engines[i].start() }
}

// ails makes an engine fail its requests in a way of package engine; well ends that.
func ails(i int, faults ...engine.Fault) func(*world) {
	return func(w *world) { w.engines[i].fault(faults...) }
}
func well(i int) func(*world) { return ails(i) }

// several is some steps as one.
func several(do ...func(*world)) func(*world) {
	return func(w *world) {
		for _, f := range do {
			f(w)
		}
	}
}

// rollingRestart ends each replica with SIGTERM, in turn, and starts it again when it has gone.
func rollingRestart(w *world) {
	for i, r := range w.Replicas {
		r.Term()
		if code := r.WaitExit(60 * s); code != 0 {
			w.t.Errorf("r%d ended with %d", i+1, code)
		}
		startReplica(i)(w)
	}
}

// leaves sends SIGTERM and waits for the end.
func leaves(i, want int) func(*world) {
	return func(w *world) {
		w.Replicas[i].Term()
		if code := w.Replicas[i].WaitExit(60 * s); code != want {
			w.t.Errorf("r%d ended with %d, want %d", i+1, code, want)
		}
	}
}

func sentinel(t *testing.T) database { return lab.Sentinel(t) }
func replicated(t *testing.T) database {
	return lab.ClusterReplicated(t, 3, 2*s)
}
func sharded(t *testing.T) database { return lab.Cluster(t, 3) }

// primaryDies kills or freezes the primary of a Sentinel set and returns when its replica serves.
func primaryDies(how func(*lab.RedisServer)) func(*world) {
	return func(w *world) {
		set := w.db.(*lab.SentinelSet)
		how(set.Primary)
		set.WaitFailover()
	}
}

// shardDies kills the primary that has what matters and returns when its replica serves.
func shardDies(key string) func(*world) {
	return func(w *world) {
		c := w.db.(*lab.RedisCluster)
		i := shardOf(w, key)
		c.Nodes[i].Kill()
		c.WaitFailover(i)
	}
}

// shardOf is the number of the node a key's slot was given to.
func shardOf(w *world, key string) int {
	c := w.db.(*lab.RedisCluster)
	owner := c.Owner(key)
	for i, n := range c.Nodes {
		if n == owner {
			return i
		}
	}
	w.t.Fatalf("nobody owns %s", key)
	return 0
}

// reshard moves all slots of the node that has key to its neighbour, with their keys, as operators do.
func reshard(key string) func(*world) {
	return func(w *world) {
		c := w.db.(*lab.RedisCluster)
		from := shardOf(w, key)
		source, target := c.Nodes[from], c.Nodes[(from+1)%len(c.Nodes)]
		out, err := exec.Command("redis-cli", "--cluster", "reshard", source.Addr, "--cluster-from", source.CLI("CLUSTER", "MYID"),
			"--cluster-to", target.CLI("CLUSTER", "MYID"), "--cluster-slots", "5461", "--cluster-yes").CombinedOutput()
		if err != nil {
			w.t.Fatalf("reshard: %v: %s", err, out[max(0, len(out)-500):])
		}
	}
}

// full makes Redis refuse every write that needs memory; roomy ends that.
func full(w *world)  { w.redis.CLI("CONFIG", "SET", "maxmemory", "1") }
func roomy(w *world) { w.redis.CLI("CONFIG", "SET", "maxmemory", "0") }

// restartEmpty starts a Redis that has lost everything and puts back what a backup has: tenants, keys and policies.
func restartEmpty(w *world) {
	w.redis.Restart()
	for key, dump := range w.directory {
		if _, err := w.reader.Do(w.t.Context(), "RESTORE", key, "0", dump, "REPLACE"); err != nil {
			w.t.Fatalf("restore %s: %v", key, err)
		}
	}
}

// backUp notes tenants, keys and policies for restartEmpty.
func (w *world) backUp() {
	w.t.Helper()
	w.directory = map[string]string{}
	names := []string{"hg:tenants"}
	for _, t := range []string{tenant, tight} {
		keys, err := w.keysOf(root(t) + "*")
		if err != nil {
			w.t.Fatal(err)
		}
		names = append(names, keys...)
	}
	for _, key := range names {
		m, err := w.reader.Do(w.t.Context(), "DUMP", key)
		if err != nil {
			w.t.Fatal(err)
		}
		if w.directory[key], err = m.ToString(); err != nil {
			w.t.Fatalf("dump %s: %v", key, err)
		}
	}
}

// losesReplies has the relay of replica i let the next settlement through to Redis, drop the reply and reset the connection.
func losesReplies(i int) func(*world) {
	return func(w *world) { w.toRedis[i].LoseReply(`"outcome":"ok"`) }
}

// smallDisk gives every replica a spool on a file system of so many bytes.
func smallDisk(size int) func(*testing.T, int) []string {
	return func(t *testing.T, i int) []string {
		dir := t.TempDir()
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", size), "tmpfs", dir).CombinedOutput(); err != nil {
			t.Fatalf("a small file system needs root: %v: %s", err, out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
				t.Errorf("umount: %v: %s", err, strings.TrimSpace(string(out)))
			}
		})
		return []string{"HG_SPOOL_DIR=" + dir}
	}
}

// slowRedis delays every byte between replicas and Redis, each way.
func slowRedis(each time.Duration) func(*world) {
	return func(w *world) {
		for _, r := range w.toRedis {
			r.SetDelay(each)
		}
	}
}
