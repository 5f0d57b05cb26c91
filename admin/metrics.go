package admin

import (
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
)

// Sources are read when the metrics are asked for. A nil one is left out.
type Sources struct {
	Version     string
	Running     func() int             // client requests in work
	PromptBytes func() int64           // memory lent to request bodies
	Pools       func() []*cluster.Pool // backends as known now

	Held, Waiting func(pool string) int // slots of this replica's requests, and those of its requests that wait
	Backlog       map[string]func() int // post-call commands not sent yet, by store
	Open          func() int            // reservations of requests in work
	Unsettled     func() int            // settlements to be sent again
	ConsulUp      func() bool           // the last query was answered
	BeatAge       func() time.Duration  // since Redis acknowledged a beat
	Catalogue     func() *catalogue.Catalogue
	LastLoad      func() catalogue.Load
	Capacity      func() []coordinator.Capacity // of all pools, fleet-wide; must not block
}

// Metrics counts what usage records say. Observe is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry

	requests   *prometheus.CounterVec // route, status, outcome
	tokens     *prometheus.CounterVec // model, kind
	cost       *prometheus.CounterVec // model
	unpriced   *prometheus.CounterVec // model
	cache      *prometheus.CounterVec // result
	errors     *prometheus.CounterVec // code
	ready      prometheus.Gauge
	checks     *prometheus.GaugeVec     // check
	attempts   *prometheus.CounterVec   // pool
	ttft       *prometheus.HistogramVec // model
	tpot       *prometheus.HistogramVec // model
	duration   *prometheus.HistogramVec // route
	queueWait  *prometheus.HistogramVec // pool
	redis      prometheus.Histogram
	roundTrips *prometheus.HistogramVec // route

	mu   sync.RWMutex
	seen map[alike]*counts // guarded by mu
}

// Buckets in seconds: a first token takes from some milliseconds (warm prefix) to minutes (a full queue), a token from
// 1 ms to a second.
var (
	ttftBuckets     = []float64{.01, .025, .05, .1, .2, .4, .8, 1.6, 3.2, 6.4, 12.8, 30, 60, 120}
	tpotBuckets     = []float64{.001, .0025, .005, .01, .015, .02, .03, .05, .075, .1, .2, .5, 1}
	durationBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	redisBuckets    = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
	tripBuckets     = []float64{0, 1, 2, 3, 4, 6, 8}
)

// NewMetrics returns metrics in a registry of their own, with the Go runtime's and the process' beside them.
func NewMetrics(from Sources) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		seen:     map[alike]*counts{},
		requests: counter("requests_total", "Client requests by route, status and outcome.", "route", "status", "outcome"),
		tokens:   counter("tokens_total", "Tokens of answered requests. prompt includes cached.", "model", "kind"),
		cost:     counter("cost_usd_total", "What requests cost, in US dollars.", "model"),
		unpriced: counter("unpriced_requests_total", "Requests that used tokens of a model without a price.", "model"),
		cache:    counter("cache_total", "Requests by result of the response cache.", "result"),
		errors:   counter("errors_total", "Requests that did not end well, by the error_code of their usage line.", "code"),
		ready:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "headgate", Name: "ready", Help: "1 while /readyz answers 200."}),
		checks: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "headgate", Name: "check_up",
			Help: "1 while this condition of being ready holds."}, []string{"check"}),
		attempts:   counter("attempts_total", "Forwards to backends.", "pool"),
		ttft:       histogram("ttft_seconds", "Time to the first token of streams, from the request's arrival.", ttftBuckets, "model"),
		tpot:       histogram("tpot_seconds", "Time per output token after the first.", tpotBuckets, "model"),
		duration:   histogram("request_duration_seconds", "From a request's arrival to its last byte.", durationBuckets, "route"),
		queueWait:  histogram("queue_wait_seconds", "Time that requests which waited spent in the queue.", durationBuckets, "pool"),
		roundTrips: histogram("redis_round_trips", "Waits for Redis before the answer, per request.", tripBuckets, "route"),
		redis: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "headgate", Name: "redis_wait_seconds",
			Help: "Time a request waited for Redis in all.", Buckets: redisBuckets}),
	}
	m.registry.MustRegister(m.errors, m.ready, m.checks, m.requests, m.tokens, m.cost, m.unpriced, m.cache, m.attempts, m.ttft, m.tpot, m.duration,
		m.queueWait, m.roundTrips, m.redis, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(from.Version))
	m.read(from)
	return m
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "headgate", Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "headgate", Name: name, Help: help, Buckets: buckets}, labels)
}

func buildInfo(version string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "headgate", Name: "build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()}})
	g.Set(1)
	return g
}

func (m *Metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: 10 * time.Second})
}
