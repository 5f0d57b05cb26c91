package coordinator

import (
	"context"
	"slices"
	"sync"
)

// primaries is what this replica saw of the primaries behind the ledger's store. The zero value has seen none.
type primaries struct {
	mu     sync.Mutex
	ids    []string // as of the last look that was complete
	hidden bool     // the last look was not
}

// saw notes a look. It is true when a primary is gone that was there: replaced by its replica, or started without its memory.
func (p *primaries) saw(ids []string, err error) (gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hidden = err != nil; p.hidden {
		return false
	}
	gone = slices.ContainsFunc(p.ids, func(id string) bool { return !slices.Contains(ids, id) })
	p.ids = ids
	return gone
}

// isHidden is true while a primary does not say who it is: it may be about to be replaced.
func (p *primaries) isHidden() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hidden
}

// watchPrimaries finds a failover also when no settlement was on its way while it took place.
func (l *Ledger) watchPrimaries(ctx context.Context) {
	if l.primaries.saw(l.cfg.Store.Primaries(ctx)) {
		l.cfg.Log.Warn().Msg("a redis primary was replaced; what was settled in the last seconds is sent again")
		l.health.replaced()
	}
}
