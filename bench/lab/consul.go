package lab

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ConsulServer is one Consul agent in development mode: server and client in one, everything in memory.
type ConsulServer struct {
	Addr string // host:port of its HTTP API
	Port int

	t    testing.TB
	node string
	proc *process
}

// Consul starts a Consul agent of its own for this test, on ports of its own (any number may run at once), and returns when
// it has a leader and its catalogue names the node. args are appended to its command line.
func Consul(t testing.TB, args ...string) *ConsulServer {
	t.Helper()
	var err error
	for range 5 {
		s := newConsul(t, args...)
		t.Cleanup(s.proc.close)
		if err = s.start(); err == nil {
			return s
		}
		s.proc.close()
		if !errors.Is(err, errExited) {
			break
		}
	}
	t.Fatal(err)
	return nil
}

func newConsul(t testing.TB, args ...string) *ConsulServer {
	t.Helper()
	port := func() string { return strconv.Itoa(freePort(t)) }
	http := freePort(t)
	s := &ConsulServer{Addr: loopback(http), Port: http, t: t, node: "lab-" + strconv.Itoa(http)}
	line := []string{"agent", "-dev", "-bind", "127.0.0.1", "-client", "127.0.0.1", "-node", s.node, "-log-level", "warn",
		"-http-port", strconv.Itoa(http), "-dns-port", "-1", "-grpc-port", "-1",
		"-server-port", port(), "-serf-lan-port", port(), "-serf-wan-port", port()}
	path := binary(t, "consul")
	// Releases from 1.14 on open one more port, which older ones have no flag for.
	if help, _ := exec.Command(path, "agent", "-help").CombinedOutput(); strings.Contains(string(help), "-grpc-tls-port") {
		line = append(line, "-grpc-tls-port", "-1")
	}
	s.proc = &process{path: path, args: append(line, args...), dir: t.TempDir()}
	return s
}

func (s *ConsulServer) start() error {
	if err := s.proc.start(); err != nil {
		return err
	}
	var exited bool
	err := within(startTimeout, func() error {
		if !s.proc.alive() {
			exited = true
			return nil
		}
		leader, err := s.get("/v1/status/leader")
		if err != nil {
			return err
		}
		if len(leader) < len(`"h:1"`) {
			return errors.New("no leader")
		}
		nodes, err := s.get("/v1/catalog/nodes")
		if err == nil && !strings.Contains(nodes, `"`+s.node+`"`) { // I1: the name is this agent's own
			err = errors.New("the agent is not in its catalogue")
		}
		return err
	})
	if exited {
		return fmt.Errorf("lab: consul on %s %w:\n%s", s.Addr, errExited, s.proc.output())
	}
	if err != nil {
		return fmt.Errorf("lab: consul on %s is not ready: %w\n%s", s.Addr, err, s.proc.output())
	}
	return nil
}

func (s *ConsulServer) get(path string) (string, error) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.Addr + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", path, resp.StatusCode, body)
	}
	return string(body), err
}

// Kill is kill -9; it returns when the process is gone.
func (s *ConsulServer) Kill() { s.proc.kill() }

// Stop freezes the agent (SIGSTOP).
func (s *ConsulServer) Stop() { s.signal(syscall.SIGSTOP) }

// Cont ends Stop.
func (s *ConsulServer) Cont() { s.signal(syscall.SIGCONT) }

// Restart starts the agent again on its ports, killing it first if it runs. A development agent forgets everything.
func (s *ConsulServer) Restart() {
	s.t.Helper()
	s.proc.kill()
	Succeeds(s.t, startTimeout, func() error {
		err := s.start()
		if err != nil {
			s.proc.kill()
		}
		return err
	}, "consul on %s is back", s.Addr)
}

func (s *ConsulServer) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.proc.signal(sig); err != nil {
		s.t.Fatal(err)
	}
}
