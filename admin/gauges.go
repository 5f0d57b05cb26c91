package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
)

// read registers what is looked up when the metrics are asked for.
func (m *Metrics) read(from Sources) {
	gauge(m, "requests_in_flight", "Client requests in work.", from.Running)
	gauge(m, "prompt_bytes", "Memory lent to request bodies. A body's goes back with the first byte of its answer.", from.PromptBytes)
	gauge(m, "reservations_open", "Requests of this replica whose holds are not settled.", from.Open)
	gauge(m, "settlements_unacknowledged", "Settlements that are sent again because Redis did not acknowledge them.", from.Unsettled)
	if from.BeatAge != nil {
		gauge(m, "beat_age_seconds", "Time since Redis acknowledged this replica's beat.", func() float64 { return from.BeatAge().Seconds() })
	}
	for store, backlog := range from.Backlog {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "headgate", Name: "post_call_backlog",
			Help: "Commands left by answered requests that wait to be sent.", ConstLabels: prometheus.Labels{"store": store}},
			func() float64 { return float64(backlog()) }))
	}
	if from.Catalogue != nil {
		gauge(m, "catalogue_models", "Models of the catalogue in use.", func() int { return len(from.Catalogue().Names()) })
	}
	if from.ConsulUp != nil {
		gauge(m, "consul_up", "1 while Consul answers. Without it the last known backends stay.", func() int { return one(from.ConsulUp()) })
	}
	if from.LastLoad != nil {
		gauge(m, "catalogue_last_load_successful", "0 while the models file says something else than what is in use.", func() int { return one(from.LastLoad().Good) })
		gauge(m, "catalogue_loaded_timestamp_seconds", "When the catalogue in use was read; 0 without a file.", func() float64 { return unix(from.LastLoad()) })
	}
	if from.Capacity != nil {
		m.registry.MustRegister(capacities{from.Capacity})
	}
	if from.Pools != nil {
		m.registry.MustRegister(backends{from.Pools, from.Held, from.Waiting})
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func unix(l catalogue.Load) float64 {
	if l.At.IsZero() {
		return 0
	}
	return float64(l.At.UnixMilli()) / 1000
}

// gauge registers read, unless it is nil.
func gauge[N int | int64 | float64](m *Metrics, name, help string, read func() N) {
	if read != nil {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "headgate", Name: name, Help: help},
			func() float64 { return float64(read()) }))
	}
}

// backends counts backends when it is asked, so that a pool that is gone leaves no series behind.
type backends struct {
	pools         func() []*cluster.Pool
	held, waiting func(pool string) int
}

var (
	backendsDesc = prometheus.NewDesc("headgate_backends", "Backends known, by pool and state.", []string{"pool", "state"}, nil)
	slotsDesc    = prometheus.NewDesc("headgate_slots", "Slots of the healthy backends, by pool.", []string{"pool"}, nil)
	heldDesc     = prometheus.NewDesc("headgate_slots_held", "Slots that this replica's requests have, by pool.", []string{"pool"}, nil)
	waitingDesc  = prometheus.NewDesc("headgate_queue_length", "This replica's requests that wait for a slot, by pool.", []string{"pool"}, nil)
)

func (backends) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{backendsDesc, slotsDesc, heldDesc, waitingDesc} {
		ch <- d
	}
}

func (b backends) Collect(ch chan<- prometheus.Metric) {
	for _, pool := range b.pools() {
		count := map[string]int{"healthy": 0, "unhealthy": 0, "draining": 0}
		slots := 0
		for _, backend := range pool.Backends {
			state := "unhealthy"
			if backend.Draining {
				state = "draining"
			} else if backend.Healthy() {
				state = "healthy"
				slots += backend.Slots
			}
			count[state]++
		}
		for state, n := range count {
			ch <- prometheus.MustNewConstMetric(backendsDesc, prometheus.GaugeValue, float64(n), pool.Name, state)
		}
		ch <- prometheus.MustNewConstMetric(slotsDesc, prometheus.GaugeValue, float64(slots), pool.Name)
		for desc, count := range map[*prometheus.Desc]func(string) int{heldDesc: b.held, waitingDesc: b.waiting} {
			if count != nil {
				ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(count(pool.Name)), pool.Name)
			}
		}
	}
}
