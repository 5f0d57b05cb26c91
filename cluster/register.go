package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/rs/zerolog"
)

// Registration is one instance of a service, as it shall stand in Consul.
type Registration struct {
	ID      string
	Service string
	Address string
	Port    int
	Tags    []string
	Meta    map[string]string

	// TTL: the check is passing for as long as this process says so, and critical
	// once it has said nothing for that long. 0 = HealthURL is asked instead.
	TTL time.Duration
	// Fault is asked each time this process says so, and makes the check critical while it returns an error; its text is
	// shown. nil: there is never one. It must not block.
	Fault func() error
	// HealthURL is what Consul asks every Interval (0 = 1 s).
	HealthURL string
	Interval  time.Duration
}

const (
	registerRetry   = time.Second
	registerRefresh = 10 * time.Second
	registerTimeout = 5 * time.Second
	// forgetAfter is Consul's smallest time from critical to deregistered: who
	// was killed does not stay registered for ever.
	forgetAfter = time.Minute
	// forgetFaulty is the same for who lives and says itself that it is of no use now.
	forgetFaulty = 10 * time.Minute
)

// Register keeps r registered until ctx ends, then deregisters it and returns
// nil. It registers again what Consul has lost and waits for a Consul that is
// away; an error means that r or consulAddr can never work.
func Register(ctx context.Context, consulAddr string, r Registration, log zerolog.Logger) error {
	if r.ID == "" || r.Service == "" || r.Port == 0 {
		return errors.New("a registration needs id, service and port")
	}
	client, idle, err := newConsul(consulAddr)
	if err != nil {
		return err
	}
	defer idle()
	defer deregister(client, r.ID, log)
	every := registerRefresh
	if r.TTL > 0 {
		every = min(every, r.TTL/3)
	}
	told := false // that the first registration fails
	for registered := false; ; {
		err := keep(ctx, client, r, registered)
		if ctx.Err() != nil {
			return nil
		}
		var status api.StatusError
		if errors.As(err, &status) && status.Code == 400 {
			return fmt.Errorf("consul refuses the registration of %s: %w", r.ID, err)
		}
		switch {
		case err != nil && registered:
			log.Warn().Err(err).Str("service", r.ID).Msg("registration lost: trying again")
		case err != nil && !told:
			told = true
			log.Warn().Err(err).Str("consul", consulAddr).Str("service", r.ID).Msg("not registered yet: consul does not answer, trying on")
		case err == nil && !registered:
			log.Info().Str("consul", consulAddr).Str("service", r.ID).Msg("registered")
			told = false
		}
		pause := every
		if registered = err == nil; !registered {
			pause = min(every, jittered(registerRetry))
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// keep registers, or tells an existing registration's check that we live. An
// error of a registration that was lost makes the next call register.
func keep(ctx context.Context, client *api.Client, r Registration, registered bool) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	agent := client.Agent()
	if !registered {
		if err := agent.ServiceRegisterOpts(r.service(), api.ServiceRegisterOpts{}.WithContext(ctx)); err != nil {
			return err
		}
	}
	if r.TTL > 0 {
		status, text := api.HealthPassing, ""
		if r.Fault != nil {
			if fault := r.Fault(); fault != nil {
				status, text = api.HealthCritical, fault.Error()
			}
		}
		return agent.UpdateTTLOpts(r.check(), text, status, (&api.QueryOptions{}).WithContext(ctx))
	}
	_, _, err := agent.Service(r.ID, (&api.QueryOptions{}).WithContext(ctx))
	return err
}

func deregister(client *api.Client, id string, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout/2)
	defer cancel()
	if err := client.Agent().ServiceDeregisterOpts(id, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
		log.Warn().Err(err).Str("service", id).Msg("not deregistered")
	}
}

func (r Registration) check() string { return "service:" + r.ID }

func (r Registration) service() *api.AgentServiceRegistration {
	status, forget := api.HealthPassing, forgetAfter
	if r.Fault != nil {
		status, forget = api.HealthCritical, forgetFaulty // until it was asked
	}
	check := &api.AgentServiceCheck{
		CheckID: r.check(), Status: status, DeregisterCriticalServiceAfter: forget.String(),
	}
	switch {
	case r.TTL > 0:
		check.TTL = r.TTL.String()
	case r.HealthURL != "":
		interval := r.Interval
		if interval == 0 {
			interval = time.Second
		}
		check.HTTP, check.Interval, check.Timeout = r.HealthURL, interval.String(), checkTimeout.String()
	default:
		check = nil
	}
	return &api.AgentServiceRegistration{
		ID: r.ID, Name: r.Service, Address: r.Address, Port: r.Port, Tags: r.Tags, Meta: r.Meta, Check: check,
	}
}
