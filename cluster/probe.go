package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/rs/zerolog"
)

// ProbeWish is what this replica would probe in a pool.
type ProbeWish struct {
	Pool     string
	Idle     time.Duration // without an answered request
	Lasts    time.Duration // of a probe at most
	Most     int           // probes wanted, at most 64
	Backends []string      // at most 64
}

// ProbeOrder is what it shall probe.
type ProbeOrder struct {
	Known   bool // false: the board did not answer
	Due     []string
	Failing map[string]int // failed probes in a row, where there are any
}

// ProbeBoard gives each probe to one replica, and knows on which backends requests were answered.
type ProbeBoard interface {
	// Living are the replicas that live; nobody while that is not known. It must not block.
	Living() []string
	// Order asks in one flush for what is due: one order for each of wishes, empty where nothing is known.
	Order(ctx context.Context, wishes []ProbeWish) []ProbeOrder
	// Probed files what a probe said; it returns how many failed in a row.
	Probed(ctx context.Context, w ProbeWish, backend string, well bool) (failed int, err error)
}

const (
	// A probe is asked for when it may be due: a quarter of the idle time, and every second while one fails.
	mostProbePause  = 15 * time.Second
	leastProbePause = time.Second
	// A probe has as long as a backend may be idle, within these. An engine that computes one long prompt needs seconds.
	leastProbeTime = 2 * time.Second
	mostProbeTime  = 15 * time.Second
	// probesAtOnce bounds the probes of a replica that run.
	probesAtOnce = 16
	// probesTolerated is how many probes in a row may fail before a backend is out of use.
	probesTolerated = 1
	// probePriority goes ahead of whatever clients send: smaller ones are earlier.
	probePriority = -1_000_000
)

// Probes asks engines for one token where no request was answered for a while: an engine may hang though GET /health answers.
// Each probe is made by one of the backend's readers, costs nobody anything and leaves no usage record. // L10
type Probes struct {
	idle   time.Duration
	pools  func() []*Pool
	board  ProbeBoard
	log    zerolog.Logger
	prober prober
	checks checks

	share   share
	running chan struct{} // a place for each probe
	failing map[meterKey]int
}

// ProbesConfig says who probes, and when.
type ProbesConfig struct {
	Replica    string        // as among the living
	Idle       time.Duration // without an answered request until a probe
	Roots      *x509.CertPool
	ConsulAddr string // where checks named ProbeCheck are kept; "" = nowhere
}

// NewProbes prepares them; nobody is asked before Run.
func NewProbes(cfg ProbesConfig, pools func() []*Pool, board ProbeBoard, log zerolog.Logger) *Probes {
	return &Probes{idle: cfg.Idle, pools: pools, board: board, log: log, prober: newProber(cfg.Roots), checks: newChecks(cfg.ConsulAddr, log),
		share: share{replica: cfg.Replica}, running: make(chan struct{}, probesAtOnce), failing: map[meterKey]int{}}
}

// Run probes until ctx ends; it returns nil then.
func (p *Probes) Run(ctx context.Context) error {
	defer p.prober.close()
	defer p.checks.close()
	for sleep(ctx, jittered(p.pause())) {
		p.round(ctx)
	}
	for range cap(p.running) { // all that ran have ended
		p.running <- struct{}{}
	}
	return nil
}

func (p *Probes) pause() time.Duration {
	if len(p.failing) > 0 {
		return leastProbePause
	}
	return min(max(p.idle/4, leastProbePause), mostProbePause)
}

// lasts is how long a probe may take.
func (p *Probes) lasts() time.Duration { return min(max(p.idle, leastProbeTime), mostProbeTime) }

// round starts the probes that are due. What others answered is filed before it is asked what is due, but for the last
// pause: so much longer a backend must have been idle.
func (p *Probes) round(ctx context.Context) {
	pools := p.pools()
	p.share.of(pools, p.board.Living())
	var wishes []ProbeWish
	backends := map[meterKey]*Backend{}
	for _, pool := range pools {
		wish := ProbeWish{Pool: pool.Name, Idle: p.idle + mostPause(p.idle), Lasts: p.lasts() + leastProbeTime, Most: cap(p.running) - len(p.running)}
		for _, b := range p.share.mine[pool] {
			if !b.Healthy() || b.Draining {
				continue
			}
			backends[meterKey{b.Pool, b.ID}] = b
			if wish.Backends = append(wish.Backends, b.ID); len(wish.Backends) == lookSize {
				wishes = append(wishes, wish)
				wish.Backends = nil
			}
		}
		wishes = append(wishes, wish) // also without any: what was answered here is to be filed
	}
	for i, order := range p.board.Order(ctx, wishes) {
		if order.Known { // else what was known last holds
			p.file(wishes[i], order)
		}
		for _, id := range order.Due {
			if b := backends[meterKey{wishes[i].Pool, id}]; b != nil {
				p.start(ctx, wishes[i], b)
			}
		}
	}
	for key := range p.failing {
		if backends[key] == nil {
			delete(p.failing, key) // gone, or another's now
		}
	}
	for key, b := range backends {
		p.checks.say(ctx, b, p.failing[key] > probesTolerated)
	}
}

// file notes whose probes fail.
func (p *Probes) file(w ProbeWish, o ProbeOrder) {
	for _, id := range w.Backends {
		if key := (meterKey{w.Pool, id}); o.Failing[id] > 0 {
			p.failing[key] = o.Failing[id]
		} else {
			delete(p.failing, key)
		}
	}
}

// mostPause is how old the news of an answered request may be.
func mostPause(idle time.Duration) time.Duration {
	return min(max(idle/4, leastProbePause), mostProbePause) * 11 / 10
}

// start probes b beside the round, unless too many probes run: then it is lost until the next is due.
func (p *Probes) start(ctx context.Context, w ProbeWish, b *Backend) {
	select {
	case p.running <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-p.running }()
		err := p.prober.generate(ctx, b, p.lasts())
		if ctx.Err() != nil {
			return // our own end says nothing of an engine
		}
		failed, fault := p.board.Probed(ctx, w, b.ID, err == nil)
		switch {
		case err != nil && fault == nil && failed > probesTolerated:
			p.log.Warn().Err(err).Str("backend", b.ID).Int("in_a_row", failed).Msg("backend out of use: it generates nothing for a probe")
		case err != nil:
			p.log.Info().Err(err).Str("backend", b.ID).Msg("a probe failed")
		}
	}()
}

// generate asks for one token of the backend's first model; an error means that the engine generates nothing. A model
// that does not complete texts is asked for an embedding; an engine that refuses both, or is full, is at least no hanging
// one.
func (p prober) generate(ctx context.Context, b *Backend, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	body := map[string]any{"model": b.Models[0], "prompt": "a", "max_tokens": 1, "temperature": 0}
	if b.Priority {
		body["priority"] = probePriority
	}
	status, err := p.post(ctx, b, "/v1/completions", body)
	if err == nil && (status == http.StatusBadRequest || status == http.StatusNotFound || status == http.StatusMethodNotAllowed) {
		status, err = p.post(ctx, b, "/v1/embeddings", map[string]any{"model": b.Models[0], "input": "a"})
	}
	switch {
	case err != nil:
		return err
	case status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusNotImplemented:
		return fmt.Errorf("status %d", status)
	}
	return nil
}

func (p prober) post(ctx context.Context, b *Backend, path string, body any) (status int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.Scheme+"://"+b.Host+b.BasePath+path, bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	req.Host, req.URL.Host = b.Host, b.Addr
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", "headgate-probe")
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxListing))
	if err == nil && resp.StatusCode == http.StatusOK && !json.Valid(answer) {
		err = fmt.Errorf("POST %s: no JSON in the answer", path)
	}
	return resp.StatusCode, err
}
