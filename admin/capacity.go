package admin

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/coordinator"
)

// poolCapacity is one pool in the answer of /capacity. Work is in model units; what is per second is smoothed over half a
// minute.
type poolCapacity struct {
	CapacityMU  float64 `json:"capacity_mu"` // per second
	ServedMU    float64 `json:"served_mu"`   // per second
	OfferedMU   float64 `json:"offered_mu"`  // per second
	WaitingMU   float64 `json:"waiting_mu"`
	Utilisation float64 `json:"utilisation"`
	Desired     int     `json:"desired_replicas"`

	Backends int    `json:"backends"`
	InUse    int    `json:"backends_in_use"`
	Slots    int64  `json:"slots"`
	Held     int64  `json:"slots_held"`
	External int64  `json:"external"`
	Waiting  int64  `json:"waiting"`
	AsOf     string `json:"as_of"`
}

// capacity answers with what the pools can do and have to do, for the whole fleet: the same on every replica, a few seconds
// old. Nobody waits for Redis; a pool of which nothing is known now is left out.
func (s *Server) capacity(w http.ResponseWriter, _ *http.Request) {
	pools := map[string]poolCapacity{}
	for _, c := range s.cfg.Capacity() {
		pools[c.Pool] = poolCapacity{CapacityMU: c.CapacityMU, ServedMU: c.ServedMU, OfferedMU: c.OfferedMU, WaitingMU: c.WaitingMU,
			Utilisation: c.Utilisation, Desired: c.Desired, Backends: c.Backends, InUse: c.Used, Slots: c.Slots, Held: c.Held,
			External: c.External, Waiting: c.Waiting, AsOf: c.At.UTC().Format("2006-01-02T15:04:05.000Z")}
	}
	reply(w, http.StatusOK, map[string]any{"pools": pools})
}

// capacities shows the same as metrics, and what engines say of themselves.
type capacities struct{ read func() []coordinator.Capacity }

type capacityGauge struct {
	desc *prometheus.Desc
	of   func(c *coordinator.Capacity) float64
}

type engineGauge struct {
	desc *prometheus.Desc
	of   func(e *coordinator.EngineState) float64
	says bool // the engine itself says it: left out while it was not read of late
}

func ofPool(name, help string, of func(c *coordinator.Capacity) float64) capacityGauge {
	return capacityGauge{prometheus.NewDesc("headgate_pool_"+name, help, []string{"pool"}, nil), of}
}

func ofEngine(name, help string, says bool, of func(e *coordinator.EngineState) float64) engineGauge {
	return engineGauge{prometheus.NewDesc("headgate_engine_"+name, help, []string{"pool", "backend"}, nil), of, says}
}

var (
	capacityGauges = []capacityGauge{
		ofPool("capacity_mu", "Model units per second of the backends in use.", func(c *coordinator.Capacity) float64 { return c.CapacityMU }),
		ofPool("served_mu", "Model units per second of answered requests.", func(c *coordinator.Capacity) float64 { return c.ServedMU }),
		ofPool("offered_mu", "Model units per second of requests that wanted a slot.", func(c *coordinator.Capacity) float64 { return c.OfferedMU }),
		ofPool("waiting_mu", "Model units of the requests in the queue.", func(c *coordinator.Capacity) float64 { return c.WaitingMU }),
		ofPool("utilisation", "Share of the slots, or of the registered capacity, that is in use.", func(c *coordinator.Capacity) float64 { return c.Utilisation }),
		ofPool("desired_replicas", "Backends that would carry the load.", func(c *coordinator.Capacity) float64 { return float64(c.Desired) }),
	}
	engineGauges = []engineGauge{
		ofEngine("held", "Slots that the fleet's requests have.", false, func(e *coordinator.EngineState) float64 { return float64(e.Held) }),
		ofEngine("backlog_mu", "Prompt work that lies before it, in model units.", false, func(e *coordinator.EngineState) float64 { return e.BacklogMU }),
		ofEngine("cooldown_seconds", "How long it is out of use for, if no more happens.", false, func(e *coordinator.EngineState) float64 {
			if e.CooldownUntil.IsZero() {
				return 0
			}
			return max(0, time.Until(e.CooldownUntil).Seconds())
		}),
		ofEngine("probes_failed", "Probes in a row that failed.", false, func(e *coordinator.EngineState) float64 { return float64(e.ProbesFailed) }),
		ofEngine("running", "Requests that run there, by its own word.", true, func(e *coordinator.EngineState) float64 { return float64(e.Running) }),
		ofEngine("waiting", "Requests that wait in it, by its own word.", true, func(e *coordinator.EngineState) float64 { return float64(e.Queue) }),
		ofEngine("external", "Requests there that are not the fleet's.", true, func(e *coordinator.EngineState) float64 { return float64(e.External) }),
		ofEngine("kv_use", "Share of its KV cache in use.", true, func(e *coordinator.EngineState) float64 { return e.KVUse }),
		ofEngine("prefix_queries_tokens", "Prompt tokens looked up in its prefix cache since its process began.", true, func(e *coordinator.EngineState) float64 { return float64(e.PrefixQueries) }),
		ofEngine("prefix_hits_tokens", "Of these, the tokens that were found.", true, func(e *coordinator.EngineState) float64 { return float64(e.PrefixHits) }),
	}
)

// Describe is of prometheus.Collector.
func (capacities) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range capacityGauges {
		ch <- g.desc
	}
	for _, g := range engineGauges {
		ch <- g.desc
	}
}

// Collect is of prometheus.Collector.
func (c capacities) Collect(ch chan<- prometheus.Metric) {
	for _, pool := range c.read() {
		for _, g := range capacityGauges {
			ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.of(&pool), pool.Pool)
		}
		for _, e := range pool.Engines {
			for _, g := range engineGauges {
				if e.Known || !g.says {
					ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.of(&e), pool.Pool, e.Backend)
				}
			}
		}
	}
}
