package bench

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/cluster"
)

// TestProbeFindsAHungEngine: an engine that hangs while its /health answers is found though nobody asks it anything: it is
// out of use for the fleet, its check in Consul is critical, and requests do not learn of it. Nobody pays for probes.
func TestProbeFindsAHungEngine(t *testing.T) {
	t.Parallel()
	s := newStack(t, 2, 2, engine.Options{Slots: 4, Speed: 50}, "HG_PROBE_IDLE=1s")
	consul, err := api.NewClient(&api.Config{Address: s.consul.Addr})
	if err != nil {
		t.Fatal(err)
	}
	check := &api.AgentCheckRegistration{ID: "b1-probe", Name: cluster.ProbeCheck, ServiceID: "b1",
		AgentServiceCheck: api.AgentServiceCheck{TTL: "45s"}}
	if err := consul.Agent().CheckRegister(check); err != nil {
		t.Fatal(err)
	}
	status := func() string {
		checks, err := consul.Agent().Checks()
		if err != nil || checks["b1-probe"] == nil {
			return "unknown"
		}
		return checks["b1-probe"].Status
	}
	record := func(field string) int64 {
		n, _ := strconv.ParseInt(s.redis.CLI("HGET", "hg:{p:qwen}:backend:b1", field), 10, 64)
		return n
	}
	out := func() bool { return record("cooldown_until") > time.Now().UnixMilli() }
	lab.Eventually(t, 60*time.Second, func() bool { return status() == "passing" }, "the check is kept")
	lab.Eventually(t, 60*time.Second, func() bool { return len(s.engines[0].Seen()) > 0 && len(s.engines[1].Seen()) > 0 }, "both are probed")

	hung := s.engines[0]
	if err := hung.SetFault(engine.Fault{Kind: engine.HangBeforeHead}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, 60*time.Second, func() bool { return record("probes_failed") >= 2 && out() }, "found hanging")
	lab.Eventually(t, 60*time.Second, func() bool { return status() == "critical" }, "its check is critical")
	key := s.Key("--tenant", "acme")
	for range 8 {
		if a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("qwen", "hi")); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	for _, seen := range hung.Seen() {
		if seen.RequestID != "headgate-probe" {
			t.Errorf("the hanging engine was given %s", seen.RequestID)
		}
	}
	lines := s.WaitLines(8)
	if len(lines) != 8 {
		t.Errorf("%d usage lines for 8 requests", len(lines))
	}
	for _, line := range lines {
		if line.Backend != "b2" || line.Attempts != 1 {
			t.Errorf("%s", line.Raw)
		}
	}

	if err := hung.SetFault(); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, 60*time.Second, func() bool { return record("probes_failed") == 0 && !out() }, "used again")
	lab.Eventually(t, 60*time.Second, func() bool { return status() == "passing" }, "its check is passing")
}
