package main

import (
	"context"
	"fmt"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/redis/rueidis"
)

// duties is what one call costs Redis of what replicas do without any request. A replica sends those for all pools in one flush;
// here they are 20, each in a pool of 64 backends.
func (s settings) duties() {
	s.title("Duties: one call, of 20 in a flush", "call", "Redis CPU µs")
	for _, replicas := range []int{1, 100, 256} {
		apart(func(b *bench) {
			d := newDesk(b)
			for i := range replicas {
				d.flush(d.flow(fmt.Sprintf("gateway-%d", i))) // which lapse after 15 s
			}
			d.measured(s, fmt.Sprintf("flow, %d replicas", replicas), d.flow("gateway-0"))
			for i := range replicas {
				d.flush(d.beat(fmt.Sprintf("gateway-%d", i), 0, time.Now().Add(time.Hour).UnixMilli())) // never late
			}
			for _, backends := range []int{0, 1, 10, 64} {
				d.measured(s, fmt.Sprintf("beat, %d backends, %d replicas", backends, replicas), d.beat("gateway-0", backends, 0))
			}
		})
	}
	apart(func(b *bench) {
		d := newDesk(b)
		for i := range 100 {
			d.flush(d.whole(fmt.Sprintf("gateway-%d", i)))
		}
		d.measured(s, "beat in the whole fleet, 100 replicas", d.whole("gateway-0"))
		for _, n := range []int{1, 10, 64} {
			d.measured(s, fmt.Sprintf("before + reading, %d engines", n), d.read(n))
		}
		d.measured(s, "findings, none", d.findings)
		d.measured(s, "a backend's record, read for /capacity", d.record)
		for _, n := range []int{1, 10, 100} {
			d.measured(s, fmt.Sprintf("renew, %d requests", n), d.renew(n))
		}
	})
}

// call declares one call in a pool and returns what waits for it.
type call func(batch *pipeline.Batch, pool int) (wait func())

// desk is one replica that calls.
type desk struct {
	*replica
	b     *bench
	redis *lab.RedisServer
	world world
}

const (
	deskPools      = 20
	flushesPerDuty = 20
)

// newDesk has pools with a prefix index, as there is wherever a request was.
func newDesk(b *bench) *desk {
	redis := node(b)
	d := &desk{b: b, redis: redis, world: world{tenants: deskPools, pools: deskPools, backends: 64, slots: 64}}
	d.replica = newReplica(b, "gateway-0", redis.URL(), func() []coordinator.PoolView { return nil })
	ctx := context.Background()
	b.must(d.world.policies(ctx, d.store))
	b.must(d.world.register(ctx, d.store))
	for pool := range deskPools {
		_, err := d.store.Do(ctx, "ZREM", coordinator.Replicas(poolName(pool)), "first")
		b.must(err)
		h, err := d.ask(ctx, d.world, turns*pool)
		b.must(err)
		d.end(h)
	}
	b.must(d.settled(ctx))
	return d
}

// flush makes a call in every pool, in one flush.
func (d *desk) flush(c call) {
	batch, waits := d.pipeline.Batch(), make([]func(), deskPools)
	for pool := range waits {
		waits[pool] = c(batch, pool)
	}
	for _, wait := range waits {
		wait()
	}
}

// measured prints what one call costs, median of five rounds.
func (d *desk) measured(s settings, name string, c call) {
	var all []used
	for range 5 {
		d.flush(c)
		all = append(all, during([]*lab.RedisServer{d.redis}, func() {
			for range flushesPerDuty {
				d.flush(c)
			}
		})[0].per(flushesPerDuty*deskPools))
	}
	s.row(name, median(all).cpu)
}

// waitFor is the end of a call whose reply nobody needs.
func waitFor[T any](b *bench, h *pipeline.Handle[T]) func() {
	return func() {
		_, err := h.Wait(context.Background())
		b.must(err)
	}
}

func (d *desk) beat(who string, backends int, nowMS int64) call {
	return func(batch *pipeline.Batch, pool int) func() {
		a := lua.BeatArgs{Replica: who, NowMS: nowMS}
		for i := range backends {
			a.Backends = append(a.Backends, lua.Registered{Backend: backendName(pool, i), Address: "10.0.0.1:8000", Slots: 64, CapacityMU: capacityMU,
				Models: []string{poolName(pool)}})
		}
		return waitFor(d.b, lua.Beat(batch, d.store, coordinator.PoolRoot(poolName(pool)), a))
	}
}

// whole is a beat in the pool without a name, where all who live are listed.
func (d *desk) whole(who string) call {
	return func(batch *pipeline.Batch, _ int) func() {
		return waitFor(d.b, lua.Beat(batch, d.store, coordinator.PoolRoot(""), lua.BeatArgs{Replica: who}))
	}
}

func (d *desk) flow(who string) call {
	return func(batch *pipeline.Batch, pool int) func() {
		return waitFor(d.b, lua.Flow(batch, d.store, coordinator.PoolRoot(poolName(pool)), who, "123456 123456 0 0", ""))
	}
}

// read is a round of readings: two calls, in two flushes.
func (d *desk) read(engines int) call {
	return func(batch *pipeline.Batch, pool int) func() {
		var ids []string
		var said []coordinator.Reading
		for i := range engines {
			ids = append(ids, backendName(pool, i))
			said = append(said, coordinator.Reading{Backend: ids[i], Running: 4, KV: 4200, KVTokens: 500_000, Started: "1764500000.12",
				PrefixQueries: 123_456_789, PrefixHits: 98_765_432})
		}
		asked := d.placement.BeforeReading(batch, poolName(pool), ids)
		return func() {
			standing, err := asked.Wait(context.Background())
			d.b.must(err)
			published := d.placement.Reading(batch, poolName(pool), standing, said...)
			if pool == deskPools-1 { // of the last: all have been declared
				waitFor(d.b, published)()
			}
		}
	}
}

func (d *desk) findings(batch *pipeline.Batch, pool int) func() {
	return waitFor(d.b, d.placement.Findings(batch, poolName(pool)))
}

func (d *desk) record(batch *pipeline.Batch, pool int) func() {
	return waitFor(d.b, pipeline.Declare(batch, pipeline.Command{Store: d.store, Name: "HMGET", Key: coordinator.BackendRecord(poolName(pool), backendName(pool, 0)),
		Args: []string{"slots", "held", "draining", "cooldown_until", "capacity_mu", "rate_mu", "backlog", "probes_failed", "read_at", "external", "running",
			"waiting", "kv", "prefix_queries", "prefix_hits"}}, func(rueidis.RedisMessage) (bool, error) { return true, nil }))
}

// renew has so many requests of each tenant go on.
func (d *desk) renew(n int) call {
	open := make([][]string, deskPools)
	for range n {
		for who := range open {
			r, _ := d.world.request(turns * who)
			_, err := d.ledger.Admit(d.pipeline.Batch(), r).Wait(context.Background())
			d.b.must(err)
			open[who] = append(open[who], r.RID)
		}
	}
	return func(batch *pipeline.Batch, who int) func() {
		return waitFor(d.b, lua.Renew(batch, d.store, coordinator.TenantRoot(tenant(who)), lua.ClaimText("gateway-0"), open[who]))
	}
}
