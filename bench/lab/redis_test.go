package lab

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestRedis(t *testing.T) {
	t.Parallel()
	s := Redis(t, "--maxmemory", "64mb")
	if got := s.CLI("SET", "k", "v w"); got != "OK" {
		t.Fatalf("SET = %q", got)
	}
	if got := s.CLI("GET", "k"); got != "v w" {
		t.Fatalf("GET = %q", got)
	}
	if got := s.CLI("CONFIG", "GET", "maxmemory"); got != "maxmemory\n67108864" {
		t.Fatalf("extra arguments did not arrive: %q", got)
	}
	s.Kill()
	if _, err := ask(s.Addr, "PING"); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Restart()
	if got := s.CLI("EXISTS", "k"); got != "0" {
		t.Fatal("a server without persistence kept a key over kill -9")
	}
}

func TestRedisStopAnswersNothingUntilCont(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	s.Stop()
	answer := make(chan error, 1)
	go func() { _, err := ask(s.Addr, "PING"); answer <- err }()
	if err := <-answer; err == nil {
		t.Fatal("a stopped server answered")
	}
	s.Cont()
	Succeeds(t, 5*time.Second, func() error { _, err := ask(s.Addr, "PING"); return err }, "answers again")
}

func TestAppendOnlyFileSurvivesRestart(t *testing.T) {
	t.Parallel()
	s := Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	s.CLI("SET", "k", "v")
	s.Restart()
	if got := s.CLI("GET", "k"); got != "v" {
		t.Fatalf("after restart %q", got)
	}
}

func TestSharedRedisIsOne(t *testing.T) {
	t.Parallel()
	if a, b := SharedRedis(t), SharedRedis(t); a != b || a.CLI("PING") != "PONG" {
		t.Fatal("two shared servers")
	}
}

// I1: the port is taken by a server of somebody else between the choice and the start.
func TestServerOfSomebodyElseIsNotHandedOut(t *testing.T) {
	t.Parallel()
	other := Redis(t)
	s := newRedis(t, t.TempDir(), other.Port)
	defer s.proc.close()
	if err := s.start(); err == nil {
		t.Fatal("a server that could not bind its port was handed out")
	}
}

// I2: this test binary runs itself as a child that starts a server and dies without any cleanup.
func TestNothingOutlivesTheTestBinary(t *testing.T) {
	if os.Getenv("LAB_DIE") != "" {
		s := SharedRedis(t)
		fmt.Println("dir", lasting{}.TempDir())
		fmt.Println("addr", s.Addr)
		os.Exit(3)
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestNothingOutlivesTheTestBinary$")
	cmd.Env = append(os.Environ(), "LAB_DIE=1")
	out, _ := cmd.Output()
	_, rest, ok := strings.Cut(string(out), "addr ")
	if !ok {
		t.Fatalf("the child said %q", out)
	}
	addr := strings.Fields(rest)[0]
	_, dir, _ := strings.Cut(string(out), "dir ")
	dir, _, _ = strings.Cut(dir, "\n")
	Eventually(t, 10*time.Second, func() bool {
		_, err := ask(addr, "PING")
		return err != nil && strings.Contains(err.Error(), "refused")
	}, "the server of a dead test binary is gone")
	Eventually(t, 10*time.Second, func() bool {
		_, err := os.Stat(dir)
		return dir != "" && os.IsNotExist(err)
	}, "the directory of a dead test binary is gone")
}
