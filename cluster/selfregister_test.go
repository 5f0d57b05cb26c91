package cluster_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/cluster"
	"github.com/rs/zerolog"
)

func TestSelfRegistrationAddress(t *testing.T) {
	t.Parallel()
	bound := &net.TCPAddr{IP: net.IPv4zero, Port: 4711}
	for listen, want := range map[string]string{
		":8080": "", "0.0.0.0:8080": "", "[::]:0": "", "[::ffff:0.0.0.0]:80": "",
		"10.0.0.7:8080": "10.0.0.7", "[fd00::7]:8080": "fd00::7", "gateway.lan:80": "gateway.lan", "127.0.0.1:0": "127.0.0.1",
	} {
		r := cluster.SelfRegistration("r1", listen, bound, nil)
		if r.Address != want || r.Port != 4711 || r.ID != "r1" || r.Service != "headgate" || r.TTL <= 0 {
			t.Errorf("%s: %+v", listen, r)
		}
	}
}

func TestSelfRegistration(t *testing.T) {
	t.Parallel()
	consul := lab.Consul(t)
	client := agent(t, consul.Addr)
	var ready atomic.Bool
	fault := func() error {
		if ready.Load() {
			return nil
		}
		return errors.New("redis is away")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- cluster.Register(ctx, consul.Addr, cluster.SelfRegistration("r1", ":80", &net.TCPAddr{Port: 80}, fault), zerolog.Nop())
	}()
	// is reports whether the replica is registered with the agent's own address, and its check.
	is := func(status, output string) bool {
		entries, _, err := client.Health().Service("headgate", "", false, nil)
		if err != nil || len(entries) != 1 || entries[0].Service.Address != "" || entries[0].Service.Port != 80 {
			return false
		}
		checks, err := client.Agent().Checks() // the catalogue learns of a new text minutes later
		c := checks["service:r1"]
		return err == nil && c != nil && c.Status == status && c.Output == output && entries[0].Checks.AggregatedStatus() == status
	}
	lab.Eventually(t, patience, func() bool { return is("critical", "redis is away") }, "registered, not ready")
	ready.Store(true)
	lab.Eventually(t, patience, func() bool { return is("passing", "") }, "passing")
	ready.Store(false)
	lab.Eventually(t, patience, func() bool { return is("critical", "redis is away") }, "not ready again")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if entries, _, err := client.Health().Service("headgate", "", false, nil); err != nil || len(entries) != 0 {
		t.Errorf("after the end: %d entries, %v", len(entries), err)
	}
}
