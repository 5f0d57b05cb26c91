package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

const (
	// renewEvery leaves room for two renewals that fail before a reservation lapses after 25 s.
	renewEvery = 8 * time.Second
	retryEvery = time.Second
	drainPause = 20 * time.Millisecond
	// renewPages is how many calls, of at most lua.RenewMax reservations, share one flush: a call of 500 takes Redis
	// about a millisecond.
	renewPages = 16
)

// Run renews what is open, sends again what was not acknowledged, and announces tenants, until ctx ends.
func (l *Ledger) Run(ctx context.Context) error {
	renew, retry := time.NewTicker(renewEvery), time.NewTicker(retryEvery)
	adopt := time.NewTicker(adoptEvery)
	defer renew.Stop()
	defer retry.Stop()
	defer adopt.Stop()
	defer l.closeSpool()
	l.adopt()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
			l.announce(ctx, false)
		case <-adopt.C:
			l.adopt()
		case <-retry.C:
			l.watchPrimaries(ctx)
			l.repeatAcked()
			l.retry(ctx)
			l.announce(ctx, false)
		case <-renew.C:
			l.announce(ctx, true)
			l.renew(ctx)
		}
	}
}

func (l *Ledger) closeSpool() {
	l.unsettled.mu.Lock()
	defer l.unsettled.mu.Unlock()
	if err := l.unsettled.spool.close(); err != nil {
		l.cfg.Log.Error().Err(err).Msg("spool")
	}
}

// announce writes tenants with open reservations to this replica's set: all, or those that may be missing there.
func (l *Ledger) announce(ctx context.Context, all bool) {
	tenants := l.open.toAnnounce(all, l.cfg.Clock())
	for len(tenants) > 0 && ctx.Err() == nil {
		n := min(len(tenants), 1000)
		if _, err := l.declareAnnouncement(l.cfg.Pipeline.Batch(), tenants[:n]).Wait(ctx); err != nil {
			l.health.failed("", err, l.cfg.Clock())
			return
		}
		tenants = tenants[n:]
	}
}

// renew moves the deadline of everything open. A reservation Redis does not know any more (its settlement overtook us, or
// it went with a primary) is forgotten: its settlement will charge it in full.
func (l *Ledger) renew(ctx context.Context) {
	pages := l.open.pages(lua.RenewMax, l.cfg.Clock())
	for len(pages) > 0 && ctx.Err() == nil {
		n := min(len(pages), renewPages)
		b := l.cfg.Pipeline.Batch()
		handles := make([]*pipeline.Handle[lua.RenewReply], n)
		for i, p := range pages[:n] {
			handles[i] = lua.Renew(b, l.cfg.Store, TenantRoot(p.tenant), lua.ClaimText(l.cfg.Replica), p.rids)
		}
		for i, h := range handles {
			reply, err := h.Wait(ctx)
			if err != nil {
				l.health.failed(pages[i].tenant, err, l.cfg.Clock())
				continue
			}
			l.health.ok(pages[i].tenant, l.cfg.Clock())
			l.open.remove(pages[i].tenant, reply.Missing...)
			if reply.Reopened > 0 {
				l.cfg.Log.Warn().Str("tenant", pages[i].tenant).Int64("reservations", reply.Reopened).
					Msg("reservations had lapsed and were opened again")
			}
		}
		pages = pages[n:]
	}
}

// Drain returns when every request admitted here is settled and acknowledged, and removes this replica's set of tenants;
// or with ctx's error. The requests themselves must have ended.
func (l *Ledger) Drain(ctx context.Context) error {
	for l.open.count() > 0 || l.unsettled.count() > 0 {
		l.retry(ctx)
		select {
		case <-ctx.Done():
			return fmt.Errorf("ledger: requests not settled: %d: %w", l.open.count(), ctx.Err())
		case <-time.After(drainPause):
		}
	}
	_, err := l.cfg.Store.Do(ctx, "DEL", ReplicaTenants(l.cfg.Replica))
	return err
}
