package coordinator

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

const (
	unsettledFor = time.Hour // how long Redis may refuse a settlement; while it is not there, it waits without end
	unsettledMax = 100_000   // at about a kilobyte each
	retryBatch   = 100       // settlements of one flush
	retrySilent  = 3         // flushes without any answer after which a round ends
	adoptEvery   = time.Minute
)

// unsettled is the settlements Redis did not acknowledge, oldest first: in memory, and in a file that survives this
// process.
type unsettled struct {
	mu    sync.Mutex
	list  []keptSettlement
	spool spool
}

type keptSettlement struct {
	Settlement
	since time.Time
}

// put appends some; false: there is no room, and none was taken. err says that they are in memory only.
func (u *unsettled) put(w ...keptSettlement) (ok bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.list)+len(w) > unsettledMax {
		return false, nil
	}
	u.list = append(u.list, w...)
	for _, k := range w {
		if k.CostNUSD == 0 && k.Claim == "" {
			continue // gives back what a lost reply may have reserved: so does its deadline
		}
		if e := u.spool.put(k); e != nil {
			err = e
		}
	}
	return true, err
}

// putBack puts what was taken in front again; if nothing waits then, the file is emptied. unsynced is to be synced.
func (u *unsettled) putBack(w []keptSettlement) (unsynced *os.File, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.list = append(w, u.list...)
	if len(u.list) == 0 {
		return nil, u.spool.clear()
	}
	return u.spool.unsynced(), nil
}

// adopt takes over what stood in another's file: all of it is in this one's then, or nothing is taken.
func (u *unsettled) adopt(list []keptSettlement) (bool, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.list)+len(list) > unsettledMax {
		return false, nil
	}
	for _, k := range list {
		if err := u.spool.put(k); err != nil {
			return false, err
		}
	}
	if f := u.spool.unsynced(); f != nil {
		if err := f.Sync(); err != nil {
			return false, err
		}
	}
	u.list = append(u.list, list...)
	return true, nil
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
	l.health.failed(s.Tenant, err, l.cfg.Clock())
	ok, err := l.unsettled.put(keptSettlement{s, l.cfg.Clock()})
	if !ok {
		l.drop(s, "too many settlements wait for redis")
	}
	l.spooling(err)
}

// spooling logs once when settlements cannot be written to the spool, and once when they can again. They wait in memory.
func (l *Ledger) spooling(err error) {
	l.unsettled.mu.Lock()
	defer l.unsettled.mu.Unlock()
	if was := &l.unsettled.spool.failed; (err != nil) != *was {
		*was = err != nil
		if err != nil {
			l.cfg.Log.Error().Err(err).Msg("settlements that wait for redis are in memory only: they are lost if this process ends before redis is back")
		} else {
			l.cfg.Log.Info().Msg("settlements that wait for redis are on disk again")
		}
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

// adopt takes over settlements that processes before this one left in the spool directory.
func (l *Ledger) adopt() {
	u := &l.unsettled
	u.mu.Lock()
	found, torn, err := u.spool.own()
	u.list = append(u.list, found...)
	u.mu.Unlock()
	n := len(found)
	_, more, errs := u.spool.adopt(func(list []keptSettlement) bool {
		ok, err := u.adopt(list)
		if ok {
			n += len(list)
		}
		if err != nil {
			l.cfg.Log.Error().Err(err).Msg("spool")
		}
		return ok
	})
	if err := errors.Join(err, errs); err != nil {
		l.cfg.Log.Error().Err(err).Msg("spool")
	}
	if n > 0 {
		l.cfg.Log.Warn().Int("settlements", n).Msg("settlements of a process that is gone were found in the spool; they are sent now")
	}
	if torn += more; torn > 0 {
		l.cfg.Log.Error().Int("lines", torn).Msg("lines of the spool were torn and left out: their holds are charged")
	}
}

// retry sends everything unsettled once more, for each tenant in order, and stops when Redis is not there. Of a cluster one
// node may be away: what belongs to others does not wait for it. // L3
func (l *Ledger) retry(ctx context.Context) {
	list, away := l.unsettled.take(), map[string]bool{}
	var again []keptSettlement
	for silent := 0; len(list) > 0 && silent < retrySilent && ctx.Err() == nil; {
		var part []keptSettlement
		for len(list) > 0 && len(part) < retryBatch {
			if away[list[0].Tenant] {
				again = append(again, list[0])
			} else {
				part = append(part, list[0])
			}
			list = list[1:]
		}
		if len(part) == 0 {
			break
		}
		failed := l.resend(ctx, part, away)
		again = append(again, failed...)
		if silent++; len(failed) < len(part) {
			silent = 0
		}
	}
	unsynced, err := l.unsettled.putBack(append(again, list...))
	if unsynced != nil {
		if err = unsynced.Sync(); errors.Is(err, os.ErrClosed) {
			err = nil
		}
	}
	if err != nil {
		l.spooling(err)
	}
}

// resend sends a few settlements in one flush; failed are those to send again, away gets the tenants whose Redis is not there.
func (l *Ledger) resend(ctx context.Context, list []keptSettlement, away map[string]bool) (failed []keptSettlement) {
	b, now := l.cfg.Pipeline.Batch(), l.cfg.Clock()
	handles := make([]*pipeline.Handle[lua.Settled], len(list))
	for i, w := range list {
		handles[i] = l.declareSettlement(b, w.Settlement)
	}
	for i, h := range handles {
		done, err := h.Wait(ctx)
		if err == nil {
			l.settled(list[i].Settlement, done)
			continue
		}
		l.health.failed(list[i].Tenant, err, l.cfg.Clock())
		gone := errors.Is(err, pipeline.ErrUnavailable) || ctx.Err() != nil
		if !gone && now.Sub(list[i].since) >= unsettledFor {
			l.drop(list[i].Settlement, "redis has refused it for an hour")
			continue
		}
		failed = append(failed, list[i])
		if gone {
			away[list[i].Tenant] = true
		}
	}
	return failed
}
