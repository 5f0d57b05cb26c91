package main

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// I1: what is counted was done, and nothing is left.
func TestRequestsAreCountedInFull(t *testing.T) {
	t.Parallel()
	b := &bench{}
	defer b.close()
	redis, w := lab.Redis(t), world{tenants: 2, pools: 2, backends: 8, slots: 64}
	r := newReplica(b, "gateway-0", redis.URL(), func() []coordinator.PoolView { return nil })
	if err := w.policies(t.Context(), r.store); err != nil {
		t.Fatal(err)
	}
	if err := w.register(t.Context(), r.store); err != nil {
		t.Fatal(err)
	}
	var next atomic.Int64
	before := usedBy(redis)
	if err := flood(context.Background(), w, []*replica{r}, &next, 100); err != nil {
		t.Fatal(err)
	}
	if runs := usedBy(redis).minus(before).runs; runs < 301 || runs > 420 { // settlements of one flush are one run
		t.Errorf("%v runs of scripts for 100 requests", runs)
	}
	piles := memory(b, r.store)
	for kind, want := range map[string]int64{"settled": 100, "usage": 100, "open": 0, "held": 0, "reservations": 0} {
		if got := piles[kind].entries; got != want {
			t.Errorf("%s: %d entries, want %d", kind, got, want)
		}
	}
	if piles["prefix"].entries < 26 {
		t.Errorf("the prefix index has %d entries", piles["prefix"].entries)
	}
}

// I2: every engine is read by two replicas of many.
func TestFleetReadsEachEngineTwice(t *testing.T) {
	t.Parallel()
	b := &bench{}
	defer b.close()
	f := settings{replicas: 4, engines: 12, pools: 3}.found(b)
	f.begin(func(ctx context.Context, one *board) { _ = one.placement.Run(ctx) })
	f.begin(f.read)
	lab.Eventually(t, time.Minute, func() bool {
		readers := map[string]int{}
		for _, one := range f.boards {
			one.mu.Lock()
			for engine := range one.polls {
				readers[engine]++
			}
			one.mu.Unlock()
		}
		for _, n := range readers {
			if n < 2 {
				return false
			}
		}
		return len(readers) == 12
	}, "an engine is not read by two replicas")
}
