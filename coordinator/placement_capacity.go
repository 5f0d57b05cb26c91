package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

const (
	// measureEvery is the pace at which a replica looks at the pools, slower where that would be more than measuredPerSecond
	// records.
	measureEvery      = 2 * time.Second
	measuredPerSecond = 200
	// freshReading is how long an engine's reading says something, as in the scripts.
	freshReading = 5 * time.Second
	guessedRate  = 200 // MU per second, as in the scripts
)

// measuring is what the look at one pool remembers. It is used by one goroutine.
type measuring struct {
	offered, served pace
	advice          string // to be published; "" = none
}

// measuredFields are the fields of a backend's record that measured reads, in order.
var measuredFields = []string{"slots", "held", "draining", "cooldown_until", "capacity_mu", "rate_mu", "backlog", "probes_failed",
	"read_at", "external", "running", "waiting", "kv", "prefix_queries", "prefix_hits"}

// Capacity is what the pools can do and have to do, as Redis said it last, a few seconds ago; pools of which nothing is known
// now are left out. It does not block.
func (p *Placement) Capacity() []Capacity {
	all := p.capacity.Load()
	if all == nil {
		return nil
	}
	var known []Capacity
	for _, c := range *all {
		if time.Since(c.At) < 3*measurePause(len(c.Engines))+freshReading {
			known = append(known, c)
		}
	}
	return known
}

func measurePause(records int) time.Duration {
	return max(measureEvery, time.Duration(records)*time.Second/measuredPerSecond)
}

// measures looks at all pools now and then until ctx ends.
func (p *Placement) measures(ctx context.Context) {
	if p.cfg.Store.WaitConnected(ctx) != nil {
		return
	}
	before := map[string]*measuring{}
	for {
		views, records := p.cfg.Pools(), 0
		for _, v := range views {
			records += len(v.Backends)
		}
		before = p.measure(ctx, views, before)
		pause := time.NewTimer(measurePause(records))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// measure looks once, in one flush.
func (p *Placement) measure(ctx context.Context, views []PoolView, before map[string]*measuring) map[string]*measuring {
	now, batch := time.Now(), p.cfg.Pipeline.Batch()
	flows := make([]*pipeline.Handle[lua.FlowReply], len(views))
	engines := make([][]*pipeline.Handle[[]string], len(views))
	after := make(map[string]*measuring, len(views))
	for i, v := range views {
		m := before[v.Name]
		if m == nil {
			m = &measuring{}
		}
		after[v.Name] = m
		flows[i] = lua.Flow(batch, p.cfg.Store, PoolRoot(v.Name), p.cfg.Replica, p.figures(v.Name, m, now), m.advice)
		for _, b := range v.Backends {
			engines[i] = append(engines[i], pipeline.Declare(batch, pipeline.Command{Store: p.cfg.Store, Name: "HMGET",
				Key: BackendRecord(v.Name, SafeID(b.ID)), Args: measuredFields}, texts))
		}
	}
	last := map[string]Capacity{}
	for _, c := range p.Capacity() {
		last[c.Pool] = c
	}
	all := make([]Capacity, 0, len(views))
	for i, v := range views {
		c, err := p.measured(ctx, v, flows[i], engines[i])
		if err != nil { // what was known holds for a while
			if old, ok := last[v.Name]; ok {
				all = append(all, old)
			}
			continue
		}
		after[v.Name].advice = p.advise(&c.Capacity, c.advice, c.nowMS)
		all = append(all, c.Capacity)
	}
	p.capacity.Store(&all)
	return after
}

// figures is what this replica publishes of a pool: offered and served per second, what waits, and how many requests.
func (p *Placement) figures(pool string, m *measuring, now time.Time) string {
	offered, served := p.flow.sums(pool)
	n, mu := p.holds.waitingWork(pool)
	return fmt.Sprintf("%.0f %.0f %d %d", m.offered.count(offered, now), m.served.count(served, now), mu, n)
}

// measuredPool is one pool's answer.
type measuredPool struct {
	Capacity
	advice advice
	nowMS  int64
}

func (p *Placement) measured(ctx context.Context, v PoolView, flow *pipeline.Handle[lua.FlowReply], engines []*pipeline.Handle[[]string]) (measuredPool, error) {
	r, err := flow.Wait(ctx)
	if err != nil {
		return measuredPool{}, err
	}
	c := Capacity{Pool: v.Name, At: time.Now()}
	for _, text := range r.Figures {
		var offered, served, mu float64
		var n int64
		if _, err := fmt.Sscan(text, &offered, &served, &mu, &n); err != nil {
			continue // of a replica of another version
		}
		c.OfferedMU += offered
		c.ServedMU += served
		c.WaitingMU += mu
		c.Waiting += n
	}
	c.OfferedMU, c.ServedMU, c.WaitingMU = c.OfferedMU/1000, c.ServedMU/1000, c.WaitingMU/1000 // thousandths are whole: no 2.7199999999999998
	for i, h := range engines {
		if values, err := h.Wait(ctx); err == nil { // a record that cannot be read is left out, as placement does
			c.Engines = append(c.Engines, engineState(v.Backends[i], values, r.NowMS))
		}
	}
	c.sum()
	return measuredPool{c, parseAdvice(r.Advice), r.NowMS}, nil
}

// advise replaces what is wanted now by the pool's advice, and returns what this replica publishes: the first of the living
// gives it for all.
func (p *Placement) advise(c *Capacity, given advice, nowMS int64) string {
	living := p.Living()
	next := given.next(c.Desired, nowMS)
	if len(living) > 0 && living[0] != p.cfg.Replica {
		if given.desired > 0 {
			c.Desired = given.desired
		}
		return ""
	}
	c.Desired = next.desired
	return next.String()
}

// engineState reads the fields of a record; one that cannot be read is 0.
func engineState(b BackendFacts, f []string, nowMS int64) EngineState {
	at := func(i int) int64 {
		var n int64
		if _, err := fmt.Sscan(f[i], &n); err != nil {
			return 0
		}
		return n
	}
	e := EngineState{Backend: b.ID, Slots: int64(b.Slots), Held: at(1), BacklogMU: float64(at(6)) / 1000, ProbesFailed: at(7), registered: at(4) > 0}
	if f[0] != "" {
		e.Slots = at(0)
	}
	if until := at(3); until > nowMS {
		e.CooldownUntil = time.UnixMilli(until)
	}
	e.OutOfUse = !e.CooldownUntil.IsZero() || f[2] != "" && f[2] != "0"
	e.RateMU = rate(float64(at(4)), float64(at(5))) / 1000
	if e.Known = nowMS-at(8) <= freshReading.Milliseconds(); e.Known {
		e.External, e.Running, e.Queue, e.KVUse = at(9), at(10), at(11), float64(at(12))/1e4
		e.PrefixQueries, e.PrefixHits = at(13), at(14)
	}
	return e
}

// rate is how score.part.lua takes it: what was learned, within a factor 4 of what is registered.
func rate(registered, learned float64) float64 {
	switch {
	case registered > 0 && learned > 0:
		return min(max(learned, registered/4), registered*4)
	case registered > 0:
		return registered
	case learned > 0:
		return learned
	}
	return guessedRate * 1000
}

// texts reads a reply of texts; an absent one is "".
func texts(m rueidis.RedisMessage) ([]string, error) {
	fields, err := m.ToArray()
	if err != nil {
		return nil, err
	}
	all := make([]string, len(fields))
	for i, f := range fields {
		if !f.IsNil() {
			if all[i], err = f.ToString(); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}
