package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/rs/zerolog"
)

const (
	// queryEvery is the least time between the starts of two queries, whatever
	// Consul answers: at most 4 a second. (L6)
	queryEvery = 250 * time.Millisecond
	// waitTime is how long Consul may hold a query; it adds a sixteenth. Short,
	// because it bounds how long anything could be missed.
	waitTime     = 30 * time.Second
	queryTimeout = 10 * time.Second
	// confirmAfter is when an empty list is asked for again before it is
	// believed: an agent that has just started knows no services for a moment.
	confirmAfter = 2 * time.Second
	maxBackoff   = 2 * time.Second
	// regainTime is how long after an outage of Consul what was known before it stays, named or not: an agent that lost its
	// memory is told of its services one by one, by those that look only every registerRefresh. What is really gone fails
	// its health checks meanwhile.
	regainTime = registerRefresh + registerTimeout
)

// watch follows one service in Consul by blocking queries.
type watch struct {
	client  *api.Client
	idle    func()
	service string
	log     zerolog.Logger
	found   func([]spec)

	index    uint64     // to wait for; 0 = do not wait
	started  time.Time  // the last query
	known    int        // entries in the last list that was believed
	doubted  time.Time  // when an empty list came that is not believed yet; zero = none
	failures int        // in a row
	last     []spec     // as believed last
	regain   time.Time  // until when what it has stays; zero = there was no outage
	up       func(bool) // told after each query whether it was answered; nil: nobody
	complaints
}

func newWatch(cfg Config, log zerolog.Logger, found func([]spec)) (*watch, error) {
	client, idle, err := newConsul(cfg.ConsulAddr)
	if err != nil {
		return nil, err
	}
	w := &watch{client: client, idle: idle, service: cfg.ConsulService, log: log, found: found}
	w.complaints.log = log
	return w, nil
}

// newConsul takes token and TLS from Consul's usual environment. idle closes the
// connections that are left.
func newConsul(addr string) (client *api.Client, idle func(), err error) {
	cfg := api.DefaultConfig()
	cfg.Address = addr
	cfg.Transport.Proxy = nil
	cfg.Transport.MaxResponseHeaderBytes = 1 << 20
	client, err = api.NewClient(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("consul address: %w", err)
	}
	return client, cfg.Transport.CloseIdleConnections, nil
}

// run asks until ctx ends.
func (w *watch) run(ctx context.Context) {
	defer w.idle()
	for {
		if !sleep(ctx, time.Until(w.next())) {
			return
		}
		w.started = time.Now()
		entries, meta, err := w.query(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			w.fail(err)
			continue
		}
		w.take(entries, meta.LastIndex)
	}
}

// next is when the next query may start.
func (w *watch) next() time.Time {
	switch {
	case w.failures > 0:
		return w.started.Add(jittered(min(queryEvery<<min(w.failures, 10), maxBackoff)))
	case !w.doubted.IsZero():
		return w.doubted.Add(confirmAfter)
	}
	return w.started.Add(queryEvery)
}

func (w *watch) query(ctx context.Context) ([]*api.ServiceEntry, *api.QueryMeta, error) {
	limit := queryTimeout
	if w.index > 0 {
		limit += waitTime + waitTime/16
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	q := &api.QueryOptions{WaitIndex: w.index, WaitTime: waitTime, AllowStale: true}
	if left := time.Until(w.regain); left > 0 {
		q.WaitTime = min(waitTime, left+queryEvery)
	}
	if !w.doubted.IsZero() {
		q = &api.QueryOptions{} // the leader's word, not a follower's
	}
	entries, meta, err := w.client.Health().Service(w.service, "", false, q.WithContext(ctx))
	if err == nil && len(entries) == 0 && meta.ResultsFilteredByACLs {
		return nil, nil, errHidden
	}
	return entries, meta, err
}

// errHidden: nothing is known of what a token may not see; it is not the same as nothing.
var errHidden = errors.New("all services are hidden from the token: it needs service:read on them and node:read")

// fail keeps the last list and begins anew without an index: after a restart the
// old one means nothing.
func (w *watch) fail(err error) {
	if w.failures == 0 {
		w.log.Warn().Err(err).Msg("consul does not answer: the last known backends stay")
	}
	w.failures++
	w.tell(false)
	w.index, w.doubted = 0, time.Time{}
}

func (w *watch) tell(up bool) {
	if w.up != nil {
		w.up(up)
	}
}

// take believes an answer, or doubts it.
func (w *watch) take(entries []*api.ServiceEntry, index uint64) {
	if w.failures > 0 {
		w.log.Info().Msg("consul answers again")
		w.regain = time.Now().Add(regainTime)
	}
	w.failures = 0
	w.tell(true)
	if index < w.index {
		w.log.Warn().Uint64("index", index).Uint64("before", w.index).Msg("consul's index went backwards: asking anew")
		index = 0
	}
	w.index = index
	regaining := time.Now().Before(w.regain)
	if len(entries) == 0 && w.known > 0 && w.doubted.IsZero() && !regaining {
		w.doubted, w.index = time.Now(), 0
		return
	}
	w.doubted = time.Time{}
	list := w.read(entries)
	if regaining {
		list = append(list, missing(w.last, list)...)
	}
	w.known, w.last = len(list), list
	w.found(list)
}

// missing is what list has neither under its id nor at its address.
func missing(last, list []spec) (all []spec) {
	for _, old := range last {
		if !slices.ContainsFunc(list, func(s spec) bool { return s.id == old.id && s.node == old.node || s.addr == old.addr }) {
			all = append(all, old)
		}
	}
	return all
}

// read leaves out what cannot be used, with one warning each. (L4)
func (w *watch) read(entries []*api.ServiceEntry) []spec {
	specs := make([]spec, 0, len(entries))
	for _, e := range entries {
		s, err := parseEntry(e)
		if err != nil {
			w.complain(s.id, "left out: "+err.Error())
			continue
		}
		specs = append(specs, s)
	}
	w.complaints.forget()
	return specs
}

// sleep reports whether ctx is still alive afterwards.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
