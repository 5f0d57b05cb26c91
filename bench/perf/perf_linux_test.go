package main

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/load"
)

// TestPaired: each run of the candidate is set against the mean of the runs right before and after it. I1
func TestPaired(t *testing.T) {
	t.Parallel()
	machine := 10.0 // gets slower with every run
	var order []string
	f, err := paired(pair{"ours", "theirs"}, 3, func(who string) (float64, error) {
		order = append(order, who)
		machine++
		if who == "ours" {
			return 2 * machine, nil
		}
		return machine, nil
	})
	if err != nil || strings.Join(order, " ") != "theirs ours theirs ours theirs ours theirs" {
		t.Fatal(order, err)
	}
	median, least, most := f.ratio()
	if math.Abs(median-2) > 1e-9 || math.Abs(least-2) > 1e-9 || math.Abs(most-2) > 1e-9 {
		t.Error(f)
	}
	f.Ratios = []float64{3, 1, 2, 9}
	if f.String() != "2.50 (1.00..9.00)" {
		t.Error(f)
	}
}

// TestRefused: one error, or too little, and a run counts for nothing. I2
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []load.Outcome{{}, {Served: 9}, {Served: 100, Errors: 1}} {
		if refuse(bad, 10) == nil {
			t.Errorf("%v counts", bad)
		}
	}
	if err := refuse(load.Outcome{Served: 10}, 10); err != nil {
		t.Error(err)
	}
}

// TestCPU: a child's time is its parent's, while it runs and when it has ended. I3
func TestCPU(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", "sh -c 'i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done' ; sleep 60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var seen []time.Duration
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		used := cpuOf(cmd.Process.Pid).total()
		if len(seen) == 0 || used != seen[len(seen)-1] {
			seen = append(seen, used)
		}
		if len(seen) > 10 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if len(seen) < 5 || !slices.IsSorted(seen) {
		t.Errorf("seen %v", seen)
	}
	if n := rss(os.Getpid()); n < 1<<20 {
		t.Errorf("%d bytes resident", n)
	}
}
