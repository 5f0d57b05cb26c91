package coordinator

import (
	"sync"
	"time"
)

const (
	// ackedFor is how long an acknowledged settlement is kept: a primary may go down before its replica has what it
	// acknowledged.
	ackedFor = 10 * time.Second
	// ackedMax bounds them; at more than 5,000 a second they are kept for a shorter time.
	ackedMax = 50_000
)

// acked is the settlements Redis acknowledged a moment ago, oldest first. The zero value is ready to use.
type acked struct {
	mu   sync.Mutex
	list []keptSettlement // since: when it was acknowledged
	gone int              // of them are forgotten, the first ones
}

// add notes one. While Redis fails nothing is forgotten but what has no room: what was acknowledged shortly before must be
// there when it is back.
func (a *acked) add(s Settlement, now time.Time, failing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.gone < len(a.list) && (len(a.list)-a.gone >= ackedMax || !failing && now.Sub(a.list[a.gone].since) > ackedFor) {
		a.list[a.gone] = keptSettlement{}
		a.gone++
	}
	if a.gone > 64 && a.gone > len(a.list)/2 { // so each is moved once, not with every settlement after it
		kept := copy(a.list, a.list[a.gone:])
		clear(a.list[kept:])
		a.list, a.gone = a.list[:kept], 0
	}
	a.list = append(a.list, keptSettlement{s, now})
}

// take is all of them; they are forgotten.
func (a *acked) take() []keptSettlement {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.list[a.gone:]
	a.list, a.gone = nil, 0
	return list
}

// repeatAcked sends again what was acknowledged shortly before Redis failed, or its primary changed: it may have failed over to
// a replica that never had it. Where it did not, the repeats change nothing. // L2
func (l *Ledger) repeatAcked() {
	if !l.health.cameBack() {
		return
	}
	list := l.acked.take()
	if len(list) == 0 {
		return
	}
	if ok, err := l.unsettled.put(list...); !ok {
		l.cfg.Log.Error().Int("settlements", len(list)).Msg("no room to repeat what redis acknowledged before it failed")
	} else {
		l.spooling(err)
	}
}
