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

// acked is the settlements Redis acknowledged a moment ago. The zero value is ready to use.
type acked struct {
	mu   sync.Mutex
	kept packed // since: when it was acknowledged
}

// add notes one. While Redis fails nothing is forgotten but what has no room: what was acknowledged shortly before must be
// there when it is back.
func (a *acked) add(s Settlement, now time.Time, failing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.kept.n >= ackedMax || !failing && a.kept.n > 0 && now.Sub(a.kept.oldest()) > ackedFor {
		a.kept.drop()
	}
	a.kept.put(keptSettlement{s, now})
}

// take is all of them; they are forgotten.
func (a *acked) take() []keptSettlement {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.kept.all()
	a.kept = packed{}
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
