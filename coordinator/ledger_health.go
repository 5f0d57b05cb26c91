package coordinator

import (
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// missedFor is several times retryEvery: what still fails has failed again by then.
const missedFor = 10 * time.Second

// health is what this replica knows of the ledger's Redis. It logs once when it stops to take what the ledger sends, and
// once when it does again.
type health struct {
	log    zerolog.Logger
	mu     sync.Mutex
	bad    bool
	missed map[string]time.Time // by tenant: its last failure, unless it has been well since
	back   bool                 // it was bad and is not any more, or was replaced, and nobody has acted on that
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
