package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// clients ask at the same time, whatever the number of replicas.
const clients = 32

// requests is what one request costs Redis, by the number of replicas that share it.
func (s settings) requests() {
	s.title("Requests: admit + place + settle + release (3 scopes, 8 candidates, 12 fingerprints), replicas on one Redis",
		"replicas", "Redis CPU µs/request", "requests per second of one Redis core", "settlements per run")
	w := world{tenants: 24, pools: 24, backends: 8, slots: 64}
	for _, n := range []int{1, 4, 16} {
		apart(func(b *bench) {
			redis := node(b)
			one := median(s.asked(b, asking{world: w, nodes: []*lab.RedisServer{redis}, url: redis.URL(), replicas: n}).total())
			s.row(n, one.cpu, 1e6/one.cpu, 1/(one.runs-3))
		})
	}
}

// primaries is how requests spread over the nodes of a cluster.
func (s settings) primaries() {
	s.title("Primaries: the same, four replicas, tenants and pools spread over a cluster", "primaries", "Redis CPU µs/request, all nodes",
		"share of the busiest", "requests per second until the busiest is full", "if all were as full")
	w := world{tenants: 48, pools: 48, backends: 8, slots: 64}
	for n := 1; n <= 3; n++ {
		apart(func(b *bench) {
			c := lab.Cluster(b, n)
			rounds := s.asked(b, asking{world: w, nodes: c.Nodes, url: c.URL(), replicas: 4})
			all, share := median(rounds.total()).cpu, rounds.busiest()
			s.row(n, all, fmt.Sprintf("%.0f %%", 100*share), 1e6/all/share, float64(n)*1e6/all)
		})
	}
}

// rounds is what each node did per request, by round.
type rounds [][]used

func (r rounds) total() (all []used) {
	for _, nodes := range r {
		var sum used
		for _, u := range nodes {
			sum = sum.plus(u)
		}
		all = append(all, sum)
	}
	return all
}

// busiest is the share of the busiest node, median of the rounds.
func (r rounds) busiest() float64 {
	var shares []float64
	for i, nodes := range r {
		most := 0.0
		for _, u := range nodes {
			most = max(most, u.cpu)
		}
		shares = append(shares, most/r.total()[i].cpu)
	}
	slices.Sort(shares)
	return shares[len(shares)/2]
}

// halves is what each owner costs alone: one tenant lies on one core, and so does one pool.
func (s settings) halves() {
	s.title("Halves: the largest tenant, and the hottest pool, which has one core", "half", "Redis CPU µs/request",
		"requests per second of one Redis core")
	for _, h := range []struct {
		name     string
		half     half
		backends int
	}{{"admit + settle, one tenant", ledgerAlone, 8}, {"place + release, one pool of 8", placementAlone, 8},
		{"place + release, one pool of 32 or more", placementAlone, 32}} {
		apart(func(b *bench) {
			redis, w := node(b), world{tenants: 1, pools: 1, backends: h.backends, slots: 64}
			one := median(s.asked(b, asking{w, []*lab.RedisServer{redis}, redis.URL(), 4, h.half}).total())
			s.row(h.name, one.cpu, 1e6/one.cpu)
		})
	}
}

// asking is who asks whom.
type asking struct {
	world    world
	nodes    []*lab.RedisServer
	url      string
	replicas int
	half     half
}

// asked has replicas ask, in rounds, after one that does not count.
func (s settings) asked(b *bench, a asking) (all rounds) {
	ctx, fleet := context.Background(), make([]*replica, a.replicas)
	for i := range fleet {
		fleet[i] = newReplica(b, fmt.Sprintf("gateway-%d", i), a.url, func() []coordinator.PoolView { return nil })
		fleet[i].half = a.half
	}
	b.must(a.world.policies(ctx, fleet[0].store))
	b.must(a.world.register(ctx, fleet[0].store))
	var next atomic.Int64
	b.must(flood(ctx, a.world, fleet, &next, s.perRound/4+a.replicas*a.world.tenants*turns))
	for range s.rounds {
		each := during(a.nodes, func() { b.must(flood(ctx, a.world, fleet, &next, s.perRound)) })
		for i := range each {
			each[i] = each[i].per(float64(s.perRound))
		}
		all = append(all, each)
	}
	return all
}

// flood runs so many requests, each as soon as a client is free, and returns when all are settled.
func flood(ctx context.Context, w world, fleet []*replica, next *atomic.Int64, requests int) error {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(requests))
	errs := make(chan error, clients)
	for client := range clients {
		r := fleet[client%len(fleet)]
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				h, err := r.ask(ctx, w, int(next.Add(1)))
				if err != nil {
					errs <- err
					return
				}
				r.end(h)
			}
		})
	}
	wg.Wait()
	for _, r := range fleet {
		if err := r.settled(ctx); err != nil {
			return err
		}
	}
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}
