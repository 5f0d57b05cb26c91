package main

import (
	"context"

	"github.com/headgate/headgate/cluster"
)

// register keeps this replica registered in Consul while it takes requests: until ctx ends or the replica begins to leave.
// What Consul does with it ends nobody's work.
func (r *replica) register(ctx context.Context) error {
	if r.cfg.ConsulAddr == "" {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.leaving, cancel)()
	self := cluster.SelfRegistration(r.name, r.cfg.Listen, r.public.Addr(), r.admin.Fault)
	if err := cluster.Register(ctx, r.cfg.ConsulAddr, self, r.log); err != nil {
		r.log.Warn().Err(err).Msg("this replica is not registered in consul")
	}
	return nil
}
