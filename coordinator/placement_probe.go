package coordinator

import (
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

const (
	probeAgain = time.Second // from a first failed probe to the next
	// firstProbeWait is from the second failed probe in a row to the next, twice as long each time up to longestCooldown.
	// The cool-down outlasts the next probe, so a backend whose probes fail stays out of use.
	firstProbeWait = 15 * time.Second
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

// Probes declares on b the wish for probes, each of which one replica gets, and what was answered through this replica since
// the last call, which puts probes off.
func (p *Placement) Probes(b *pipeline.Batch, w ProbeWish) *pipeline.Handle[ProbeOrder] {
	args := lua.ProbeArgs{IdleMS: w.Idle.Milliseconds(), LastsMS: w.Lasts.Milliseconds(), Most: min(w.Most, maxReadings)}
	answered := p.flow.takeAnswered(w.Pool)
	for len(answered) > maxReadings {
		more := args
		more.Answered, more.Most = answered[:maxReadings], 0
		lua.Probe(b, p.cfg.Store, PoolRoot(w.Pool), more, func(lua.ProbeReply) bool { return true })
		answered = answered[maxReadings:]
	}
	args.Answered = answered
	ids := make(map[string]string, len(w.Backends))
	for _, id := range w.Backends[:min(len(w.Backends), maxReadings)] {
		ids[SafeID(id)] = id
		args.Backends = append(args.Backends, SafeID(id))
	}
	h := lua.Probe(b, p.cfg.Store, PoolRoot(w.Pool), args, func(r lua.ProbeReply) ProbeOrder {
		o := ProbeOrder{Known: true, Failing: make(map[string]int, len(r.Failing))}
		for _, id := range r.Due {
			o.Due = append(o.Due, ids[id])
		}
		for id, n := range r.Failing {
			o.Failing[ids[id]] = int(n)
		}
		return o
	})
	return h
}

// Probed declares what a probe said; the result is how many failed in a row. The second takes the backend out of use for the
// fleet, until a probe or a request is answered.
func (p *Placement) Probed(b *pipeline.Batch, w ProbeWish, backend string, well bool) *pipeline.Handle[int] {
	args := lua.ProbedArgs{Backend: SafeID(backend), Well: well, IdleMS: w.Idle.Milliseconds(), AgainMS: probeAgain.Milliseconds(),
		FirstMS: firstProbeWait.Milliseconds(), LongestMS: longestCooldown.Milliseconds(), LastsMS: w.Lasts.Milliseconds()}
	return lua.Probed(b, p.cfg.Store, PoolRoot(w.Pool), args, func(r lua.ProbedReply) int { return int(r.Failed) })
}

// takeAnswered is the backends, by their names in keys, on which requests were answered since the last call.
func (f *flow) takeAnswered(pool string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	in := f.pools[pool]
	if in == nil || len(in.answered) == 0 {
		return nil
	}
	backends := slices.Collect(maps.Keys(in.answered))
	clear(in.answered)
	return backends
}
