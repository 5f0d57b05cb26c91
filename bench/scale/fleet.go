package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/rs/zerolog"
)

// fleet runs what all replicas of a fleet do without requests, in real time and in one process: the beats, the looks for
// /capacity, the findings of health, and the readings of all engines' /metrics, with the product's own code. // I2
func (s settings) fleet() {
	apart(func(b *bench) {
		f := s.found(b)
		s.title(fmt.Sprintf("Fleet: %d replicas, %d engines in %d pools, no requests", s.replicas, s.engines, s.pools), "state",
			"Redis CPU ms per second", "scripts run per second", "commands per second", "polls per second", "looks and publications per second",
			"engines read by a replica: mean", "most")
		f.begin(func(ctx context.Context, one *board) { _ = one.placement.Run(ctx) })
		for end := time.Now().Add(patience); time.Now().Before(end) && !s.allLive(f.boards); {
			time.Sleep(100 * time.Millisecond)
		}
		s.state(f, "beats, looks for /capacity")
		f.begin(func(ctx context.Context, one *board) { one.shareHealth(ctx, f.cluster.Pools()) })
		s.state(f, "and health")
		f.begin(f.read)
		s.state(f, "and engines read, idle: every 1 s")
		f.engines.busy.Store(true)
		s.state(f, "and engines read, busy: every 250 ms")
		f.end()
		s.weigh(b, b.store(f.redis.URL()), "Fleet: what Redis holds of it", s.engines)
	})
}

// fleet is some replicas, none of which does anything yet, and engines that are well.
type fleet struct {
	ctx     context.Context
	stop    context.CancelFunc
	running *sync.WaitGroup
	redis   *lab.RedisServer
	engines *engines
	cluster *cluster.Cluster
	boards  []*board
}

func (s settings) found(b *bench) *fleet {
	f := &fleet{running: &sync.WaitGroup{}, redis: node(b), engines: startEngines(b), boards: make([]*board, s.replicas)}
	f.ctx, f.stop = context.WithCancel(context.Background())
	b.Cleanup(f.end)
	f.cluster = s.cluster(b, f)
	views := viewsOf(f.cluster.Pools())
	for i := range f.boards {
		r := newReplica(b, fmt.Sprintf("gateway-%03d", i), f.redis.URL(), func() []coordinator.PoolView { return views })
		f.boards[i] = &board{replica: r, polls: map[string]int{}}
	}
	b.Cleanup(f.end) // before the stores go
	b.must(world{}.policies(f.ctx, f.boards[0].store))
	return f
}

// end stops the fleet; what it left in Redis stays.
func (f *fleet) end() {
	f.stop()
	f.running.Wait()
}

// begin has every replica do something until the end.
func (f *fleet) begin(do func(context.Context, *board)) {
	for _, one := range f.boards {
		f.running.Go(func() { do(f.ctx, one) })
	}
}

func (f *fleet) read(ctx context.Context, one *board) {
	_ = cluster.NewReadings(one.name, f.cluster.Pools, one, nil, zerolog.Nop()).Run(ctx)
}

// patience is how long the replicas have to see one another. On a machine that is too busy for their beats some never see all; the
// figures say so: engines are then read by more than two.
const patience = 30 * time.Second

func (s settings) allLive(boards []*board) bool {
	for _, one := range boards {
		if len(one.Living()) < min(s.replicas, mostSeen) {
			return false
		}
	}
	return true
}

// mostSeen is how many others a beat's reply names at most, and this one.
const mostSeen = 257

// state measures for a window, after what was just begun has come to its pace.
func (s settings) state(f *fleet, name string) {
	time.Sleep(s.window / 2)
	for _, one := range f.boards {
		one.anew()
	}
	began := time.Now()
	u := during([]*lab.RedisServer{f.redis}, func() { time.Sleep(s.window) })[0]
	seconds := time.Since(began).Seconds()
	var polls, calls, reads, most float64
	for _, one := range f.boards {
		p, c, engines := one.counted()
		polls, calls, reads, most = polls+p, calls+c, reads+engines, max(most, engines)
	}
	s.row(name, u.cpu/seconds/1000, u.runs/seconds, u.commands/seconds, polls/seconds, calls/seconds, reads/float64(len(f.boards)), most)
}

// cluster knows all engines and has found them well. One stands for those of all replicas: they know the same.
func (s settings) cluster(b *bench, f *fleet) *cluster.Cluster {
	var static []cluster.Static
	for i := range s.engines {
		name := backendName(i%s.pools, i/s.pools)
		static = append(static, cluster.Static{Pool: poolName(i % s.pools), ID: name, URL: f.engines.url(name), Slots: 16})
	}
	c := cluster.New(cluster.Config{Static: static}, catalogue.NewStore(&catalogue.Catalogue{}), zerolog.Nop())
	f.running.Go(func() { _ = c.Run(f.ctx) })
	lab.Eventually(b, time.Minute, func() bool {
		well := 0
		for _, p := range c.Pools() {
			for _, one := range p.Backends {
				if one.Usable() {
					well++
				}
			}
		}
		return well == s.engines
	}, "all engines are well")
	return c
}

// viewsOf is what placement sees of pools.
func viewsOf(pools []*cluster.Pool) (views []coordinator.PoolView) {
	for _, p := range pools {
		v := coordinator.PoolView{Name: p.Name}
		for _, one := range p.Backends {
			v.Backends = append(v.Backends, coordinator.BackendFacts{ID: one.ID, Address: one.Host, Slots: one.Slots, CapacityMU: capacityMU,
				Models: one.Models[0]})
		}
		views = append(views, v)
	}
	return views
}
