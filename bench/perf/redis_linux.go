package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/bench/load"
	"github.com/headgate/headgate/bench/peers"
)

// redisCost is what a request costs the Redis that coordinates it: beside the naive scripts, with more replicas, and with
// more primaries.
func redisCost(b *bench) error {
	f, err := paired(pair{headgate, luaRedis}, b.rounds, func(who string) (float64, error) {
		r, err := b.measure(who, b.smallShape())
		return per(r.redis.total(), r.out.Served), err
	})
	if err != nil {
		return err
	}
	header("", "CPU µs/request", "user / sys", "requests/s", "p50 / p99 ms", "Redis CPU µs/request")
	b.row(luaRedis)
	b.row(headgate)
	fmt.Println()
	if err := b.ratios("Redis CPU per request", []finding{f}); err != nil {
		return err
	}
	b.stop(headgate)
	b.stop(luaRedis)
	fmt.Println()
	if err := replicas(b); err != nil {
		return fmt.Errorf("replicas: %w", err)
	}
	fmt.Println()
	return primaries(b)
}

// fleet is some replicas and the Redis nodes behind them.
type fleet struct {
	replicas, nodes []*peers.Process
}

// spread runs small requests through all replicas and returns the outcome and what each node used.
func (b *bench) spread(f fleet, requests [][]byte) (out load.Outcome, nodes []time.Duration, err error) {
	var more []netip.AddrPort
	for _, p := range f.replicas[1:] {
		more = append(more, p.Addr)
	}
	s := b.smallShape()
	if err := load.Tell(b.url, s.plan); err != nil {
		return out, nil, err
	}
	used := func() (all []cpu) {
		for _, p := range f.nodes {
			all = append(all, cpuOf(p.PID))
		}
		return all
	}
	var before, after []cpu
	out, err = load.Run(load.Job{Addr: f.replicas[0].Addr, More: more, Requests: requests, Clients: s.clients, Warm: 2 * s.warm, Window: s.window,
		Begin: func() { before = used() }, End: func() { after = used() }})
	if err == nil {
		err = refuse(out, s.least)
	}
	for i := range after {
		nodes = append(nodes, after[i].minus(before[i]).total())
	}
	return out, nodes, err
}

// replicas is how Redis' cost of a request depends on how many replicas share it.
func replicas(b *bench) error {
	header("replicas on one Redis", "requests/s", "Redis CPU µs/request, median (min..max)", "decisions per second of Redis CPU")
	var f fleet
	f.nodes = []*peers.Process{b.redis}
	defer func() { b.site.End(f.replicas...) }()
	var points [][2]float64
	for _, n := range []int{1, 2, 4, 8, 16} {
		for len(f.replicas) < n {
			p, err := b.site.Headgate("n"+strconv.Itoa(len(f.replicas)+1), b.redisURL())
			if err != nil {
				return err
			}
			f.replicas = append(f.replicas, p)
		}
		var cost, rate []float64
		for range b.rounds {
			out, nodes, err := b.spread(f, b.requests(load.Ask{Key: b.site.Key, Bytes: 294, Tokens: 100}, 64))
			if err != nil {
				return err
			}
			cost, rate = append(cost, per(nodes[0], out.Served)), append(rate, float64(out.Served)/out.Window.Seconds())
		}
		slices.Sort(cost)
		slices.Sort(rate)
		line(n, fmt.Sprintf("%.0f", middle(rate)), finding{Ratios: cost}, fmt.Sprintf("%.0f", 1e6/middle(cost)))
		points = append(points, [2]float64{float64(n), middle(cost)})
	}
	return b.keep("replicas", points)
}

// primaries is how decisions spread over the nodes of a cluster: twelve tenants, each with a pool of its own.
func primaries(b *bench) error {
	const tenants = 12
	header("Redis primaries", "requests/s", "Redis CPU µs/request, all nodes", "share of the busiest", "decisions per second until the busiest is full")
	b.site.Pools = tenants
	defer func() { b.site.Pools = 0 }()
	for n := 1; n <= 3; n++ {
		if err := b.onCluster(n, tenants); err != nil {
			return fmt.Errorf("%d primaries: %w", n, err)
		}
	}
	return nil
}

func (b *bench) onCluster(n, tenants int) error {
	nodes, url, err := b.site.Cluster(n)
	if err != nil {
		return err
	}
	defer b.site.End(nodes...)
	p, err := b.site.Headgate("c"+strconv.Itoa(n), url)
	if err != nil {
		return err
	}
	defer b.site.End(p)
	var requests [][]byte
	for i := range tenants {
		key, err := b.site.CreateKey(url, "tenant"+strconv.Itoa(i+1))
		if err != nil {
			return err
		}
		for salt := range 5 {
			requests = append(requests, load.Ask{Key: key, Model: peers.ModelName(i + 1), Bytes: 294, Tokens: 100, Salt: 5*i + salt}.Wire())
		}
	}
	var cost, busiest, rate []float64
	for range b.rounds {
		out, used, err := b.spread(fleet{[]*peers.Process{p}, nodes}, requests)
		if err != nil {
			return err
		}
		var sum time.Duration
		for _, u := range used {
			sum += u
		}
		cost, rate = append(cost, per(sum, out.Served)), append(rate, float64(out.Served)/out.Window.Seconds())
		busiest = append(busiest, float64(slices.Max(used))/float64(sum))
	}
	slices.Sort(cost)
	slices.Sort(busiest)
	slices.Sort(rate)
	line(n, fmt.Sprintf("%.0f", middle(rate)), middle(cost), fmt.Sprintf("%.0f %%", 100*middle(busiest)), fmt.Sprintf("%.0f", 1e6/middle(cost)/middle(busiest)))
	return nil
}
