package main

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// board is a replica's part of what all know of engines, as cmd/headgate has it, and counts.
type board struct {
	*replica

	mu    sync.Mutex
	polls map[string]int // answers of engines that were published, by engine
	calls int            // looks and publications, of one pool each
}

// anew begins to count.
func (b *board) anew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.polls, b.calls = map[string]int{}, 0
}

// counted is what came since: polls, calls, and how many engines were polled.
func (b *board) counted() (polls, calls, engines float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.polls {
		polls += float64(n)
	}
	return polls, float64(b.calls), float64(len(b.polls))
}

func (b *board) count(calls int, all []cluster.Published[coordinator.Standing]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls += calls
	for _, p := range all {
		for _, one := range p.Readings {
			b.polls[one.Backend]++
		}
	}
}

func (b *board) Living() []string { return b.placement.Living() }

func (b *board) Busy(pool string) bool {
	return b.placement.HeldIn(pool)+b.placement.WaitingIn(pool) > 0
}

func (b *board) Before(ctx context.Context, looks []cluster.Look) ([]coordinator.Standing, error) {
	batch, replies := b.pipeline.Batch(), make([]*pipeline.Handle[coordinator.Standing], len(looks))
	for i, l := range looks {
		replies[i] = b.placement.BeforeReading(batch, l.Pool, l.Backends)
	}
	b.count(len(looks), nil)
	held := make([]coordinator.Standing, len(looks))
	for i, reply := range replies {
		var err error
		if held[i], err = reply.Wait(ctx); err != nil {
			return nil, err
		}
	}
	return held, nil
}

func (b *board) Publish(ctx context.Context, all []cluster.Published[coordinator.Standing]) error {
	batch, replies := b.pipeline.Batch(), make([]*pipeline.Handle[int64], len(all))
	for i, p := range all {
		said := make([]coordinator.Reading, len(p.Readings))
		for j, one := range p.Readings {
			said[j] = coordinator.Reading{Backend: one.Backend, Running: one.Running, Waiting: one.Waiting, KV: int64(math.Round(1e4 * one.KVUse)),
				KVTokens: one.KVTokens, Started: one.Started, PrefixQueries: one.PrefixQueries, PrefixHits: one.PrefixHits}
		}
		replies[i] = b.placement.Reading(batch, p.Pool, p.Held, said...)
	}
	b.count(len(all), all)
	for _, reply := range replies {
		if _, err := reply.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// shareHealth asks every second who is out of use in each pool, as every replica does; nobody is.
func (b *board) shareHealth(ctx context.Context, pools []*cluster.Pool) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		batch, replies := b.pipeline.Batch(), make([]*pipeline.Handle[[]coordinator.OutOfUse], len(pools))
		for i, p := range pools {
			replies[i] = b.placement.Findings(batch, p.Name)
		}
		for _, reply := range replies {
			_, _ = reply.Wait(ctx)
		}
	}
}
