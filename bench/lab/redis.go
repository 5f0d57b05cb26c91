package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout is generous: a machine that runs many test binaries at once starts processes slowly.
const startTimeout = 30 * time.Second

// RedisServer is one redis-server process. Its methods may be called from any goroutine, but fail the test (t.Fatal) like
// the test's own code would, so call them from the test's goroutine where failure is possible.
type RedisServer struct {
	Addr string // host:port clients connect to; a cluster node behind a relay: the node itself
	Port int

	t    testing.TB // nil = shared by several tests
	proc *process
}

// Redis starts a redis-server of its own for this test: a free port, no persistence. args are appended to its command
// line ("--maxmemory", "2mb"; "--appendonly", "yes" writes below the test's directory and survives Restart).
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s := startRedis(t, t.TempDir(), args...)
	s.t = t
	t.Cleanup(s.proc.close)
	return s
}

var shared struct {
	mu     sync.Mutex
	server *RedisServer
}

// SharedRedis returns the one server of this test binary, started by whoever asks first. Tests that share it use key roots
// of their own and neither FLUSHALL, CONFIG SET nor stop it.
func SharedRedis(t testing.TB) *RedisServer {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		shared.server = startRedis(t, "")
	}
	return shared.server
}

// startRedis tries a few ports: between finding one free and binding it, somebody else may have been faster.
func startRedis(t testing.TB, dir string, args ...string) *RedisServer {
	t.Helper()
	var err error
	for range 5 {
		s := newRedis(t, dir, freePort(t), args...)
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

func newRedis(t testing.TB, dir string, port int, args ...string) *RedisServer {
	t.Helper()
	line := []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--daemonize", "no", "--loglevel", "notice"}
	return &RedisServer{
		Addr: loopback(port),
		Port: port,
		proc: &process{path: binary(t, "redis-server"), args: append(line, args...), dir: dir},
	}
}

var errExited = errors.New("exited at once")

// start returns when the server answers PING and is the process we started. I1
func (s *RedisServer) start() error {
	if err := s.proc.start(); err != nil {
		return err
	}
	s.proc.mu.Lock()
	pid := s.proc.pid
	s.proc.mu.Unlock()
	var exited bool
	err := within(startTimeout, func() error {
		if !s.proc.alive() {
			exited = true
			return nil
		}
		info, err := ask(s.Addr, "INFO", "server")
		if err != nil {
			return err
		}
		if !strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", pid)) {
			return errors.New("another server has the port")
		}
		_, err = ask(s.Addr, "PING") // LOADING while an append-only file is read
		return err
	})
	if exited {
		return fmt.Errorf("lab: redis-server on %s %w:\n%s", s.Addr, errExited, s.proc.output())
	}
	if err != nil {
		return fmt.Errorf("lab: redis-server on %s does not answer: %w\n%s", s.Addr, err, s.proc.output())
	}
	return nil
}

// URL is redis://host:port/0.
func (s *RedisServer) URL() string { return "redis://" + s.Addr + "/0" }

// Kill is kill -9: connections are reset, the memory is lost. It returns when the process is gone.
func (s *RedisServer) Kill() { s.proc.kill() }

// Stop freezes the server (SIGSTOP): connections stay open, connects are accepted by the kernel, nothing is answered.
func (s *RedisServer) Stop() { s.signal(syscall.SIGSTOP) }

// Cont ends Stop.
func (s *RedisServer) Cont() { s.signal(syscall.SIGCONT) }

func (s *RedisServer) signal(sig syscall.Signal) {
	if err := s.proc.signal(sig); err != nil {
		s.fatal(err)
	}
}

// Restart starts the server again on its port, killing it first if it runs, and returns when it answers.
func (s *RedisServer) Restart() {
	s.proc.kill()
	if err := within(startTimeout, func() error {
		err := s.start()
		if err != nil {
			s.proc.kill()
		}
		return err
	}); err != nil {
		s.fatal(err)
	}
}

// CLI runs redis-cli against the server and returns what it prints, without the last newline: a plain reply as it is, an
// array as lines. An error reply fails the test.
func (s *RedisServer) CLI(args ...string) string {
	out, err := runCLI(s.Port, args...)
	if err != nil {
		s.fatal(err)
	}
	return out
}

func runCLI(port int, args ...string) (string, error) {
	path, err := exec.LookPath("redis-cli")
	if err != nil {
		return "", errors.New("lab: redis-cli is not on PATH: run `make tools`")
	}
	line := append([]string{"-e", "--no-auth-warning", "-h", "127.0.0.1", "-p", strconv.Itoa(port)}, args...)
	cmd := exec.Command(path, line...)
	cmd.Env = append(os.Environ(), "REDISCLI_HISTFILE=/dev/null")
	out, err := cmd.CombinedOutput()
	text := strings.TrimRight(string(out), "\n")
	if err != nil {
		return "", fmt.Errorf("lab: redis-cli %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

func (s *RedisServer) fatal(err error) {
	if s.t == nil {
		panic(err) // shared: no single test to fail
	}
	s.t.Helper()
	s.t.Fatal(err)
}
