package coordinator

import (
	"errors"
	"sync"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/rs/zerolog"
)

const (
	// trippedAfter is how many calls in a row must go without an answer before a tenant's Redis is taken to be away: one
	// may be a lost connection.
	trippedAfter = 3
	// probeEvery is how long requests are then answered without asking; one of them asks each time it is over. So a Redis
	// that is back is found at most that much later.
	probeEvery = 250 * time.Millisecond
	// missedFor is several times retryEvery: what still fails has failed again by then.
	missedFor = 10 * time.Second
	// trippedMax bounds the tenants looked after.
	trippedMax = 10_000
)

// health is what this replica knows of the ledger's Redis. It logs once when it stops to take what the ledger sends, and
// once when it does again. For admissions it is a breaker, by tenant, since each may live on a node of its own: a Redis
// that is away costs a request no waiting.
type health struct {
	log     zerolog.Logger
	mu      sync.Mutex
	bad     bool
	missed  map[string]time.Time // by tenant: its last failure, unless it has been well since
	back    bool                 // it was bad and is not any more, or was replaced, and nobody has acted on that
	tenants map[string]*trip
}

// trip is a tenant whose last calls had no answer.
type trip struct {
	failures int
	until    time.Time // requests are answered without asking until then
}

// failed notes that something of a tenant was not taken; "": of the replica's own.
func (h *health) failed(tenant string, err error, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.missed == nil {
		h.missed = map[string]time.Time{}
	}
	if tenant != "" && len(h.missed) < trippedMax {
		h.missed[tenant] = now
	}
	if !h.bad {
		h.bad = true
		h.log.Warn().Err(err).Msg("redis does not take settlements or renewals; they are kept and sent again")
	}
}

// ok notes that something of a tenant was taken. Of a cluster one node may be away: all is well only when every tenant that
// failed is, or has not failed again for missedFor.
func (h *health) ok(tenant string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.bad {
		return
	}
	delete(h.missed, tenant)
	for other, at := range h.missed {
		if now.Sub(at) < missedFor {
			return
		}
		delete(h.missed, other)
	}
	h.bad, h.back = false, true
	h.log.Info().Msg("redis takes settlements again")
}

// replaced notes that what was acknowledged last may be gone.
func (h *health) replaced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.back = true
}

// isBad is true between a failure and the next success.
func (h *health) isBad() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bad
}

// cameBack is true once after each recovery, and each change of primary.
func (h *health) cameBack() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	back := h.back
	h.back = false
	return back
}

// closed says that the tenant's Redis is to be asked. Of those that come while it is away, one each probeEvery is told so.
func (h *health) closed(tenant string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tenants[tenant]
	if t == nil || t.failures < trippedAfter {
		return true
	}
	if now.Before(t.until) {
		return false
	}
	t.until = now.Add(probeEvery)
	return true
}

// asked notes what became of an admission.
func (h *health) asked(tenant string, err error, now time.Time) {
	away := errors.Is(err, pipeline.ErrUnavailable)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !away {
		if len(h.tenants) > 0 {
			delete(h.tenants, tenant)
		}
		return
	}
	t := h.tenants[tenant]
	if t == nil {
		if len(h.tenants) >= trippedMax {
			return
		}
		if h.tenants == nil {
			h.tenants = map[string]*trip{}
		}
		t = &trip{}
		h.tenants[tenant] = t
	}
	t.failures++
	t.until = now.Add(probeEvery)
}
