package admin

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/coordinator"
)

// alike is what records have in common that count in the same places. There are no more of them than of label values
// together: nothing that a client makes up is part of it. // A3
type alike struct {
	route, outcome, cache, pool, model string
	status                             int
	asked, forwarded, used, priced     bool
}

// counts is where they count: to find one by its labels takes longer than to add to all. Those that such records do not
// touch are nil.
type counts struct {
	requests, cache, attempts, prompt, cached, completion, cost, unpriced prometheus.Counter
	duration, roundTrips                                                  prometheus.Observer
}

// Observe counts one usage record.
func (m *Metrics) Observe(r *coordinator.Record) {
	k := alike{route: routeLabel(r.Route), outcome: r.Outcome, cache: r.Cache, pool: r.Pool, status: r.Status, asked: r.RoundTrips > 0,
		forwarded: r.Attempts > 0, priced: r.CostKnown}
	if k.pool != "" {
		k.model = r.Model // without a pool the name is what a client made up // A3
	}
	k.used = r.Prompt+r.Completion > 0 && r.Cache != coordinator.CacheHit // what an answer from the cache says was counted when it was computed
	c := m.countsOf(k)
	c.requests.Inc()
	c.duration.Observe(r.Duration.Seconds())
	if k.asked {
		c.roundTrips.Observe(float64(r.RoundTrips))
		m.redis.Observe(r.RedisMS / 1000)
	}
	if k.cache != "" {
		c.cache.Inc()
	}
	if k.forwarded {
		c.attempts.Add(float64(r.Attempts))
	}
	if k.used {
		c.use(r)
	}
	m.observeRare(k, r)
}

// use counts tokens and what they cost.
func (c *counts) use(r *coordinator.Record) {
	c.prompt.Add(float64(r.Prompt))
	c.cached.Add(float64(r.Cached))
	c.completion.Add(float64(r.Completion))
	if r.CostKnown {
		c.cost.Add(float64(r.CostNUSD) / 1e9)
	} else {
		c.unpriced.Inc()
	}
}

// observeRare counts what few records have, or only those of streams.
func (m *Metrics) observeRare(k alike, r *coordinator.Record) {
	if r.ErrorCode != "" {
		m.errors.WithLabelValues(r.ErrorCode).Inc()
	}
	if r.QueueMS > 0 {
		m.queueWait.WithLabelValues(k.pool).Observe(float64(r.QueueMS) / 1000)
	}
	if r.TTFT > 0 && r.Stream {
		m.ttft.WithLabelValues(k.model).Observe(r.TTFT.Seconds())
	}
	if r.TPOT > 0 {
		m.tpot.WithLabelValues(k.model).Observe(r.TPOT.Seconds())
	}
}

func (m *Metrics) countsOf(k alike) *counts {
	m.mu.RLock()
	c := m.seen[k]
	m.mu.RUnlock()
	if c == nil {
		c = m.find(k)
		m.mu.Lock()
		m.seen[k] = c
		m.mu.Unlock()
	}
	return c
}

// find looks the counts up by their labels.
func (m *Metrics) find(k alike) *counts {
	c := &counts{requests: m.requests.WithLabelValues(k.route, strconv.Itoa(k.status), k.outcome), duration: m.duration.WithLabelValues(k.route)}
	if k.asked {
		c.roundTrips = m.roundTrips.WithLabelValues(k.route)
	}
	if k.cache != "" {
		c.cache = m.cache.WithLabelValues(k.cache)
	}
	if k.forwarded {
		c.attempts = m.attempts.WithLabelValues(k.pool)
	}
	if !k.used {
		return c
	}
	c.prompt = m.tokens.WithLabelValues(k.model, "prompt")
	c.cached = m.tokens.WithLabelValues(k.model, "cached")
	c.completion = m.tokens.WithLabelValues(k.model, "completion")
	if k.priced {
		c.cost = m.cost.WithLabelValues(k.model)
	} else {
		c.unpriced = m.unpriced.WithLabelValues(k.model)
	}
	return c
}

// routeLabel keeps paths that clients make up out of the labels. // A3
func routeLabel(route string) string {
	if routes[route] {
		return route
	}
	return "other"
}

var routes = map[string]bool{
	"/v1/chat/completions": true, "/v1/completions": true, "/v1/responses": true, "/v1/messages": true,
	"/v1/embeddings": true, "/v1/rerank": true, "/v1/score": true, "/v1/audio/transcriptions": true,
	"/v1/audio/translations": true, "/v1/models": true, "/v1/models/{id}": true, "/v1/responses/{id}": true,
	"/v1/responses/{id}/cancel": true, "/tokenize": true, "/detokenize": true,
}
