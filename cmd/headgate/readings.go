package main

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// readings is the replicas' common knowledge of what runs on engines: placement's records in Redis.
type readings struct {
	placement *coordinator.Placement
	pipeline  *pipeline.Pipeline
}

// read asks engines, and shares what it learns of them, until ctx ends.
func (r *replica) read(ctx context.Context) error {
	board := readings{r.placement, r.pipeline}
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.cluster.ShareHealth(ctx, r.name, board) })
	if r.cfg.ProbeIdle > 0 {
		probes := cluster.NewProbes(cluster.ProbesConfig{Replica: r.name, Idle: r.cfg.ProbeIdle, Roots: r.roots, ConsulAddr: r.cfg.ConsulAddr},
			r.cluster.Pools, board, r.log)
		wg.Go(func() { _ = probes.Run(ctx) })
	}
	err := cluster.NewReadings(r.name, r.cluster.Pools, board, r.roots, r.log).Run(ctx)
	wg.Wait()
	return err
}

// Living are the replicas that share the reading.
func (r readings) Living() []string { return r.placement.Living() }

// Busy reports whether requests of this replica run or wait in a pool.
func (r readings) Busy(pool string) bool {
	return r.placement.HeldIn(pool)+r.placement.WaitingIn(pool) > 0
}

// Before looks at the leases there are.
func (r readings) Before(ctx context.Context, looks []cluster.Look) ([]coordinator.Standing, error) {
	batch, replies := r.pipeline.Batch(), make([]*pipeline.Handle[coordinator.Standing], len(looks))
	for i, l := range looks {
		replies[i] = r.placement.BeforeReading(batch, l.Pool, l.Backends)
	}
	held := make([]coordinator.Standing, len(looks))
	for i, reply := range replies {
		var err error
		if held[i], err = reply.Wait(ctx); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// Publish writes readings into the backends' records.
func (r readings) Publish(ctx context.Context, all []cluster.Published[coordinator.Standing]) error {
	batch, replies := r.pipeline.Batch(), make([]*pipeline.Handle[int64], len(all))
	for i, p := range all {
		said := make([]coordinator.Reading, len(p.Readings))
		for j, one := range p.Readings {
			said[j] = coordinator.Reading{Backend: one.Backend, Running: one.Running, Waiting: one.Waiting,
				KV: int64(math.Round(1e4 * one.KVUse)), KVTokens: one.KVTokens, Started: one.Started,
				PrefixQueries: one.PrefixQueries, PrefixHits: one.PrefixHits}
		}
		replies[i] = r.placement.Reading(batch, p.Pool, p.Held, said...)
	}
	var errs []error
	for _, reply := range replies {
		_, err := reply.Wait(ctx)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Share tells the fleet what this replica found of engines' health.
func (r readings) Share(ctx context.Context, all []cluster.Told) []cluster.Heard {
	batch, replies := r.pipeline.Batch(), make([]*pipeline.Handle[[]coordinator.OutOfUse], len(all))
	for i, t := range all {
		found := make([]coordinator.Finding, len(t.Findings))
		for j, f := range t.Findings {
			found[j] = coordinator.Finding(f)
		}
		replies[i] = r.placement.Findings(batch, t.Pool, found...)
	}
	heard := make([]cluster.Heard, len(all))
	for i, reply := range replies {
		out, err := reply.Wait(ctx)
		heard[i].Err = err
		for _, o := range out {
			heard[i].Out = append(heard[i].Out, cluster.OutOfUse(o))
		}
	}
	return heard
}

// Order asks which backends this replica shall probe.
func (r readings) Order(ctx context.Context, wishes []cluster.ProbeWish) []cluster.ProbeOrder {
	batch, replies := r.pipeline.Batch(), make([]*pipeline.Handle[coordinator.ProbeOrder], len(wishes))
	for i, w := range wishes {
		replies[i] = r.placement.Probes(batch, coordinator.ProbeWish(w))
	}
	orders := make([]cluster.ProbeOrder, len(wishes))
	for i, reply := range replies {
		if order, err := reply.Wait(ctx); err == nil { // else nobody probes there now
			orders[i] = cluster.ProbeOrder(order)
		}
	}
	return orders
}

// Probed tells the fleet what a probe said.
func (r readings) Probed(ctx context.Context, w cluster.ProbeWish, backend string, well bool) (int, error) {
	return r.placement.Probed(r.pipeline.Batch(), coordinator.ProbeWish(w), backend, well).Wait(ctx)
}
