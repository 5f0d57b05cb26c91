package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCoarseSleeps: a program that calls it goes on as the same process, once, with the slack; a chosen one is left.
func TestCoarseSleeps(t *testing.T) {
	const child = "TEST_COARSE_SLEEPS"
	if os.Getenv(child) != "" {
		coarseSleeps()
		fmt.Printf("process %d slack %d\n", os.Getpid(), slackOfThread())
		return
	}
	t.Parallel()
	for chosen, want := range map[int]int{0: ownSlack(), 70_000: 70_000} {
		line := "exec " + os.Args[0] + " -test.run=^TestCoarseSleeps$"
		cmd := exec.Command("sh", "-c", line)
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := startedWithSlack(cmd, chosen)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if said := fmt.Sprintf("process %d slack %d\n", cmd.Process.Pid, want); strings.Count(out, "process ") != 1 || !strings.Contains(out, said) {
			t.Errorf("chosen %d: it said %q, want %q once", chosen, out, said)
		}
	}
}

// startedWithSlack runs cmd from a thread with that slack; 0 is the one threads begin with. The thread goes on after it, with
// the slack it had: with a thread that ends die the processes it started (Pdeathsig), and those may be other tests'.
func startedWithSlack(cmd *exec.Cmd, slack int) (string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := slackOfThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	return string(out), errors.Join(err, unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0))
}
