package main

import (
	"context"
	"errors"
	"math"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// readings is the replicas' common knowledge of what runs on engines: placement's records in Redis.
type readings struct {
	placement *coordinator.Placement
	pipeline  *pipeline.Pipeline
}

// read asks engines until ctx ends.
func (r *replica) read(ctx context.Context) error {
	return cluster.NewReadings(r.name, r.cluster.Pools, readings{r.placement, r.pipeline}, r.roots, r.log).Run(ctx)
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
				KV: int64(math.Round(1e4 * one.KVUse)), KVTokens: one.KVTokens, Started: one.Started}
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
