package coordinator

import (
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// The cool-down of a backend: 1 s after a failure, then twice as long each time it fails again before any request there
// got its first token, up to a minute. The first one costs little when it was chance; the later ones keep a dead backend
// from taking an attempt of many requests.
const (
	firstCooldown   = time.Second
	longestCooldown = time.Minute
	silentRow       = 3 // requests in a row without a first token
)

// Failure is why a backend did not serve a request. A client's 4xx, and a 503 that says "full", are none.
type Failure int

// Failures.
const (
	FailedConnect Failure = iota + 1 // no connection, or a broken one before the request was sent
	FailedStatus                     // 5xx
	FailedCut                        // the answer ended before its first byte
	FailedSilent                     // no first token in time: three such in a row cool the backend down
)

func (f Failure) String() string {
	return [...]string{"none", "connect", "status", "cut", "silent"}[f]
}

// Failed declares on post that a backend failed a request: it is not used by anybody in the fleet for a while. A new
// cool-down never shortens a running one.
func (p *Placement) Failed(post *pipeline.Post, pool, backend string, why Failure) {
	args := lua.FailArgs{Backend: SafeID(backend), Silent: why == FailedSilent, Row: silentRow,
		FirstMS: firstCooldown.Milliseconds(), LongestMS: longestCooldown.Milliseconds()}
	post.With(func(b *pipeline.Batch) {
		lua.Fail(b, p.cfg.Store, PoolRoot(pool), args).Then(func(r lua.FailReply, err error) {
			if err == nil && r.Began {
				p.cfg.Log.Warn().Str("pool", pool).Str("backend", backend).Stringer("failure", why).
					Int64("in_a_row", r.Failures).Int64("for_ms", r.UntilMS-r.NowMS).Msg("backend cools down")
			}
		})
	})
}

// Standing is what the fleet held on some backends just before their engines were asked.
type Standing struct {
	held map[string]int64
	ms   int64
}

// maxReadings bounds one look at, or one publication of, engines.
const maxReadings = 64

// BeforeReading declares the look at what the fleet holds on some backends of a pool (at most 64), which a reader takes right
// before it asks their engines.
func (p *Placement) BeforeReading(b *pipeline.Batch, pool string, backends []string) *pipeline.Handle[Standing] {
	backends = backends[:min(len(backends), maxReadings)]
	ids := make([]string, len(backends))
	for i, id := range backends {
		ids[i] = SafeID(id)
	}
	return lua.Before(b, p.cfg.Store, PoolRoot(pool), ids, func(r lua.BeforeReply) Standing {
		a := Standing{held: make(map[string]int64, len(backends)), ms: r.NowMS}
		for i, id := range backends {
			a.held[id] = r.Held[i]
		}
		return a
	})
}

// Reading is what an engine said of itself.
type Reading struct {
	Backend          string
	Running, Waiting int64
	KV               int64  // use of its KV cache, percent × 100
	KVTokens         int64  // size of its KV cache; 0: not known
	Started          string // any text that changes when the engine's process does; "": not known

	PrefixQueries, PrefixHits int64 // tokens looked up in its prefix cache since its process began, and found; 0: not known
}

// Reading declares the publication of what engines of a pool said (at most 64), asked after `asked` was read. The result
// is how many were newer than what the fleet knew. A reading counts for 5 s.
func (p *Placement) Reading(b *pipeline.Batch, pool string, asked Standing, readings ...Reading) *pipeline.Handle[int64] {
	var rs []lua.Reading
	for _, r := range readings[:min(len(readings), maxReadings)] {
		held, ok := asked.held[r.Backend]
		if !ok {
			continue
		}
		rs = append(rs, lua.Reading{Backend: SafeID(r.Backend), Running: r.Running, Waiting: r.Waiting, KV: r.KV, Held: held,
			AskedMS: asked.ms, Started: r.Started, KVTokens: r.KVTokens,
			PrefixQueries: r.PrefixQueries, PrefixHits: r.PrefixHits})
	}
	return lua.Readings(b, p.cfg.Store, PoolRoot(pool), rs, 0)
}
