package main

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// How late the kernel may wake a thread from a sleep, in nanoseconds.
const (
	kernelsSlack = 50_000 // unless somebody chose another
	aloneSlack   = 1_000_000
	sharedSlack  = 250_000 // on several processors: there one that looks for work sleeps now and then too
)

// coarseSleeps lets the process' threads be woken a little late, at most a millisecond. The scheduler of Go has a thread that looks for
// blocked ones, and while work comes and goes it asks to be woken every 20 µs, for a look that then costs a tenth of all the
// processor's time and breaks off whoever runs. A thread has its slack from the one that made it, and the first of all
// keeps it over an exec: so the program begins anew, once, under the same process id. Where that cannot be, or a slack was
// chosen for it (systemd: TimerSlackNSec=), nothing happens.
func coarseSleeps() {
	runtime.LockOSThread() // the slack is this thread's, and exec is to find it
	defer runtime.UnlockOSThread()
	if slackOfThread() != kernelsSlack {
		return
	}
	self, err := os.Executable()
	if err != nil || unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(ownSlack()), 0, 0, 0) != nil || slackOfThread() != ownSlack() {
		return
	}
	_ = syscall.Exec(self, os.Args, os.Environ())
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, kernelsSlack, 0, 0, 0)
}

func ownSlack() int {
	if runtime.GOMAXPROCS(0) == 1 {
		return aloneSlack
	}
	return sharedSlack
}

// slackOfThread is that of the thread that asks; 0: unknown.
func slackOfThread() int {
	n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return n
}
