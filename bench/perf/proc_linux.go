package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// cpu is processor time.
type cpu struct{ user, sys time.Duration }

func (c cpu) total() time.Duration       { return c.user + c.sys }
func (c cpu) minus(before cpu) cpu       { return cpu{c.user - before.user, c.sys - before.sys} }
func (c cpu) plus(other cpu) cpu         { return cpu{c.user + other.user, c.sys + other.sys} }
func per(c time.Duration, n int) float64 { return float64(c) / 1e3 / float64(max(n, 1)) } // µs

// tick is the unit of /proc/<pid>/stat.
const tick = 10 * time.Millisecond

// cpuOf is what the process and all it started, alive or reaped, have used so far. // I3
func cpuOf(pid int) (sum cpu) {
	for _, p := range tree(pid) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			continue
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		ticks := func(i int) time.Duration {
			n, _ := strconv.Atoi(string(fields[i]))
			return time.Duration(n) * tick
		}
		sum = sum.plus(cpu{ticks(11) + ticks(13), ticks(12) + ticks(14)})
	}
	return sum
}

// tree is the process and its children, and theirs.
func tree(pid int) []int {
	all := []int{pid}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, tree(n)...)
			}
		}
	}
	return all
}

// rss is the resident memory of the process tree in bytes.
func rss(pid int) (sum int64) {
	for _, p := range tree(pid) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p))
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			pages, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += pages * int64(os.Getpagesize())
		}
	}
	return sum
}

// load1 is how many processes waited for a processor in the last minute, on average.
func load1() string {
	text, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// bind puts this process on a processor, and with it everything it starts but what is bound elsewhere. It begins the
// program anew, so that no thread is left where it was.
func bind(core int) error {
	runtime.LockOSThread() // an affinity is a thread's, and only the thread that begins the program anew hands its own on
	defer runtime.UnlockOSThread()
	var want, have [128]byte
	want[core/8] = 1 << (core % 8)
	if _, _, e := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, uintptr(len(have)), uintptr(unsafe.Pointer(&have))); e != 0 {
		return e
	}
	if have == want {
		return nil
	}
	if os.Getenv("HEADGATE_BENCH_BOUND") != "" {
		return fmt.Errorf("processor %d cannot be had", core)
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, uintptr(len(want)), uintptr(unsafe.Pointer(&want))); e != 0 {
		return fmt.Errorf("processor %d: %w", core, e)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, append(os.Environ(), "HEADGATE_BENCH_BOUND=1"))
}

// raiseFiles allows as many open files as may be.
func raiseFiles() {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	}
}
