package cluster

import (
	"context"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/rs/zerolog"
)

// checks keeps the TTL checks named ProbeCheck of services in Consul: passing while probes are answered, critical while they
// fail. A service opts in by registering such a check, with a TTL of 45 s or more, at the agent of HG_CONSUL_ADDR: Consul lets
// only the agent that has a check change it. The zero value keeps none. It is used by one goroutine.
type checks struct {
	client *api.Client
	idle   func()
	log    zerolog.Logger
	told   map[string]bool // check ids of which a failure was logged
}

// checkTimeoutConsul bounds one call: the agent is near.
const checkTimeoutConsul = 2 * time.Second

func newChecks(addr string, log zerolog.Logger) checks {
	if addr == "" {
		return checks{}
	}
	client, idle, err := newConsul(addr)
	if err != nil {
		return checks{} // the watch says so
	}
	return checks{client: client, idle: idle, log: log, told: map[string]bool{}}
}

func (c checks) close() {
	if c.idle != nil {
		c.idle()
	}
}

// say has the check of b, if it has one, tell what its probes say.
func (c checks) say(ctx context.Context, b *Backend, failing bool) {
	if c.client == nil || b.probeCheck == "" {
		return
	}
	status, text := api.HealthPassing, "probes are answered, or need not be made"
	if failing {
		status, text = api.HealthCritical, "it generates nothing for a probe"
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeoutConsul)
	defer cancel()
	err := c.client.Agent().UpdateTTLOpts(b.probeCheck, text, status, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil && !c.told[b.probeCheck] && ctx.Err() == nil {
		c.log.Warn().Err(err).Str("backend", b.ID).Str("check", b.probeCheck).Msg("the check in consul cannot be kept: is it another agent's?")
	}
	c.told[b.probeCheck] = err != nil
}
