package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// openAtOnce is how many requests are open while their reservations and leases are weighed.
const openAtOnce = 4000

// memory is what requests leave in Redis, and what they take while they run.
func (s settings) memory() {
	ctx := context.Background()
	apart(func(b *bench) {
		redis, w := node(b), world{tenants: 4, pools: 4, backends: 8, slots: 1000}
		r := newReplica(b, "gateway-0", redis.URL(), func() []coordinator.PoolView { return nil })
		b.must(w.policies(ctx, r.store))
		b.must(w.register(ctx, r.store))
		var next atomic.Int64
		n := s.rounds * s.perRound
		b.must(flood(ctx, w, []*replica{r}, &next, n))
		s.weigh(b, r.store, fmt.Sprintf("Memory: what %d requests left (%d turns of a conversation, %d fingerprints each)", n, turns, prints), n)

		running := make([]held, 0, openAtOnce)
		for range openAtOnce {
			h, err := r.ask(ctx, w, int(next.Add(1)))
			b.must(err)
			running = append(running, h)
		}
		s.weigh(b, r.store, fmt.Sprintf("Memory: with %d more that run", openAtOnce), openAtOnce)
		for _, h := range running {
			r.end(h)
		}
		b.must(r.settled(ctx))
	})
}

// weigh prints what Redis holds by the kind of key.
func (s settings) weigh(b *bench, store *pipeline.Store, title string, requests int) {
	s.title(title, "kind", "keys", "entries", "bytes", "bytes per entry", "bytes per request")
	piles := memory(b, store)
	for _, kind := range slices.Sorted(maps.Keys(piles)) {
		p := piles[kind]
		s.row(kind, p.keys, p.entries, p.bytes, float64(p.bytes)/float64(max(p.entries, 1)), float64(p.bytes)/float64(requests))
	}
}
