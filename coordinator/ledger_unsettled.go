package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/rs/zerolog"
)

const (
	unsettledFor = time.Hour // Redis knows what it settled for as long: later a repeat could charge twice
	unsettledMax = 100_000   // at about a kilobyte each
	retryBatch   = 100       // settlements of one flush
)

// unsettled is the settlements Redis did not acknowledge, oldest first. They are in memory only: put and take are where
// a spool file comes in.
type unsettled struct {
	mu   sync.Mutex
	list []keptSettlement
}

type keptSettlement struct {
	Settlement
	since time.Time
}

// put appends one; false: there is no room.
func (u *unsettled) put(w ...keptSettlement) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.list)+len(w) > unsettledMax {
		return false
	}
	u.list = append(u.list, w...)
	return true
}

// putBack puts what was taken in front again.
func (u *unsettled) putBack(w []keptSettlement) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.list = append(w, u.list...)
}

func (u *unsettled) take() []keptSettlement {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := u.list
	u.list = nil
	return list
}

func (u *unsettled) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.list)
}

// keep notes a settlement that was not acknowledged. Its reservation stays open here, so it goes on being renewed.
func (l *Ledger) keep(s Settlement, err error) {
	l.health.failed(err)
	if !l.unsettled.put(keptSettlement{s, l.cfg.Clock()}) {
		l.drop(s, "too many settlements wait for redis")
	}
}

// drop gives up on a settlement. Its hold is charged when it lapses, so it is billed at its estimate.
func (l *Ledger) drop(s Settlement, why string) {
	l.open.remove(s.Tenant, s.RID)
	l.cfg.Log.Error().Str("tenant", s.Tenant).Str("rid", s.RID).Int64("cost_nusd", s.CostNUSD).RawJSON("record", orNull(s.Record)).
		Msg("settlement given up: " + why)
}

func orNull(record []byte) []byte {
	if len(record) == 0 {
		return []byte("null")
	}
	return record
}

// retry sends everything unsettled once more, in order, and stops when Redis is not there. // L3
func (l *Ledger) retry(ctx context.Context) {
	list := l.unsettled.take()
	var again []keptSettlement
	for len(list) > 0 && ctx.Err() == nil {
		n := min(len(list), retryBatch)
		failed, gone := l.resend(ctx, list[:n])
		again = append(again, failed...)
		list = list[n:]
		if gone {
			break
		}
	}
	l.unsettled.putBack(append(again, list...))
}

// resend sends a few settlements in one flush; failed are those to send again, gone says that Redis is not there.
func (l *Ledger) resend(ctx context.Context, list []keptSettlement) (failed []keptSettlement, gone bool) {
	b, now := l.cfg.Pipeline.Batch(), l.cfg.Clock()
	handles := make([]*pipeline.Handle[lua.Settled], len(list))
	for i, w := range list {
		if now.Sub(w.since) < unsettledFor {
			handles[i] = l.declareSettlement(b, w.Settlement)
		}
	}
	for i, h := range handles {
		if h == nil {
			l.drop(list[i].Settlement, "redis has not taken it for an hour")
			continue
		}
		done, err := h.Wait(ctx)
		if err == nil {
			l.settled(list[i].Settlement, done)
			continue
		}
		l.health.failed(err)
		failed = append(failed, list[i])
		gone = gone || errors.Is(err, pipeline.ErrUnavailable)
	}
	return failed, gone
}

// health logs once when Redis stops to take what the ledger sends, and once when it does again.
type health struct {
	log zerolog.Logger
	mu  sync.Mutex
	bad bool
}

func (h *health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.bad {
		h.bad = true
		h.log.Warn().Err(err).Msg("redis does not take settlements or renewals; they are kept and sent again")
	}
}

func (h *health) ok() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bad {
		h.bad = false
		h.log.Info().Msg("redis takes settlements again")
	}
}
