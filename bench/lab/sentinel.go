package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sentinelName is what the sentinels call the set they watch.
const sentinelName = "lab"

// downAfter is how long a primary may be silent before the sentinels call it down; the failover takes a second more. A replica
// that lost its primary more than ten times as long before that (Pair.Detach) would not be taken.
const downAfter = 2 * time.Second

// SentinelSet is a Redis with a replica, and three sentinels that watch them.
type SentinelSet struct {
	Primary, Replica *RedisServer
	Sentinels        []*RedisServer

	t testing.TB
}

// Sentinel starts a set and returns when the replica is in step and each sentinel knows it and the two others.
func Sentinel(t testing.TB) *SentinelSet {
	t.Helper()
	s := &SentinelSet{t: t, Primary: Redis(t, "--repl-diskless-sync-delay", "0")}
	s.Replica = Redis(t, "--replicaof", "127.0.0.1 "+fmt.Sprint(s.Primary.Port), "--repl-diskless-sync-delay", "0")
	Succeeds(t, startTimeout, func() error { return follows(s.Replica, s.Primary) }, "the replica is in step")
	for range 3 {
		s.Sentinels = append(s.Sentinels, s.newSentinel())
	}
	Succeeds(t, startTimeout, func() error { return s.know(s.Primary) }, "the sentinels know everybody")
	return s
}

// URL names the sentinels: redis://a:1,b:2,c:3/0?sentinel=lab.
func (s *SentinelSet) URL() string {
	var addrs []string
	for _, one := range s.Sentinels {
		addrs = append(addrs, one.Addr)
	}
	return "redis://" + strings.Join(addrs, ",") + "/0?sentinel=" + sentinelName
}

// CLI runs redis-cli against the primary.
func (s *SentinelSet) CLI(args ...string) string {
	s.t.Helper()
	return s.Primary.CLI(args...)
}

// WaitFailover returns when the replica serves in place of the primary, which was killed or frozen, and every sentinel names
// it. The two change places then: Primary is the new one, Replica the old one as it was left.
func (s *SentinelSet) WaitFailover() {
	s.t.Helper()
	old, heir := s.Primary, s.Replica
	Succeeds(s.t, startTimeout, func() error { return leads(heir) }, "the replica takes over")
	Succeeds(s.t, startTimeout, func() error { return s.know(heir) }, "the sentinels name the new primary") // I5
	s.Primary, s.Replica = heir, old
}

func (s *SentinelSet) newSentinel() *RedisServer {
	s.t.Helper()
	var err error
	for range 5 {
		var one *RedisServer
		if one, err = s.trySentinel(); err == nil {
			return one
		}
		if !errors.Is(err, errExited) {
			break
		}
	}
	s.t.Fatal(err)
	return nil
}

// trySentinel starts one on its configuration file, which a sentinel also writes.
func (s *SentinelSet) trySentinel() (*RedisServer, error) {
	dir, port := s.t.TempDir(), freePort(s.t)
	path := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\nsentinel monitor %s 127.0.0.1 %d 2\nsentinel down-after-milliseconds %s %d\n"+
		"sentinel failover-timeout %s 5000\n", port, sentinelName, s.Primary.Port, sentinelName, downAfter.Milliseconds(), sentinelName)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	one := newRedis(s.t, dir, port)
	one.t = s.t
	one.proc.args = []string{path, "--sentinel"}
	s.t.Cleanup(one.proc.close)
	return one, one.start()
}

// know is nil when each sentinel names primary, a replica of it and the other sentinels.
func (s *SentinelSet) know(primary *RedisServer) error {
	for _, one := range s.Sentinels {
		addr, err := ask(one.Addr, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinelName)
		if err != nil {
			return err
		}
		info, err := ask(one.Addr, "INFO", "sentinel")
		if err != nil {
			return err
		}
		if addr != fmt.Sprintf("127.0.0.1\n%d", primary.Port) || !strings.Contains(info, fmt.Sprintf("slaves=1,sentinels=%d", len(s.Sentinels))) {
			return fmt.Errorf("%s names %q, %q", one.Addr, addr, info[max(0, len(info)-90):])
		}
	}
	return nil
}
