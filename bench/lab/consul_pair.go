package lab

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// ConsulServers is two Consul servers that need each other: while one is frozen there is no leader.
type ConsulServers struct {
	Asked, Other *ConsulServer // Asked is the one whose address clients use
}

// ConsulPair starts them and returns when both have a leader.
func ConsulPair(t testing.TB) *ConsulServers {
	t.Helper()
	path := binary(t, "consul")
	ports := [2]int{freePort(t), freePort(t)} // of gossip
	var pair [2]*ConsulServer
	for i := range pair {
		http := freePort(t)
		s := &ConsulServer{Addr: loopback(http), Port: http, t: t, node: "lab-" + strconv.Itoa(http)}
		line := []string{"agent", "-server", "-bootstrap-expect", "2", "-data-dir", t.TempDir(), "-bind", "127.0.0.1", "-client", "127.0.0.1",
			"-node", s.node, "-log-level", "warn", "-http-port", strconv.Itoa(http), "-dns-port", "-1", "-grpc-port", "-1",
			"-server-port", strconv.Itoa(freePort(t)), "-serf-lan-port", strconv.Itoa(ports[i]), "-serf-wan-port", strconv.Itoa(freePort(t)),
			"-retry-join", loopback(ports[1-i]), "-retry-interval", "1s", "-hcl", "performance { raft_multiplier = 1 }"}
		if help, _ := exec.Command(path, "agent", "-help").CombinedOutput(); strings.Contains(string(help), "-grpc-tls-port") {
			line = append(line, "-grpc-tls-port", "-1")
		}
		s.proc = &process{path: path, args: line, dir: t.TempDir()}
		t.Cleanup(s.proc.close)
		pair[i] = s
	}
	var starting sync.WaitGroup
	var errs [2]error
	for i, s := range pair {
		starting.Go(func() { errs[i] = s.start() })
	}
	starting.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return &ConsulServers{Asked: pair[0], Other: pair[1]}
}

// Leader is nil while Asked knows of a leader.
func (p *ConsulServers) Leader() error {
	leader, err := p.Asked.get("/v1/status/leader")
	if err == nil && len(leader) < len(`"h:1"`) {
		err = fmt.Errorf("no leader: %s", leader)
	}
	return err
}
