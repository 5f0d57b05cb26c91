package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

const (
	// expireAtOnce is how many tenants share one flush: some hundred holds each, a call that finds nothing is 20 µs of Redis.
	expireAtOnce = 64
	// walkEvery is how long a walk through all tenants is good for: a dead replica is cleared once in each pool.
	walkEvery = 30 * time.Second
)

// ErrStuck is why Expire goes on failing: a key in Redis that a reservation needs cannot be read. It is charged as soon as
// somebody mends the key.
var ErrStuck = errors.New("reservations need a key that cannot be read")

// walks remembers for which dead replicas all tenants were gone through.
type walks struct {
	mu sync.Mutex // held for the whole walk: who comes second must not think it done before it is
	at map[string]time.Time
}

// Expire charges everything a dead replica left open at its hold, and returns how many reservations that were: first in
// the tenants it announced, then in all that the directory lists, as it may have been killed between its first admission
// in a tenant and the announcement. It is safe to repeat, also by several replicas at once. With an error it is to be
// repeated: what is not charged stays announced. // L4
func (l *Ledger) Expire(ctx context.Context, replica string) (n int, err error) {
	set := ReplicaTenants(replica)
	m, err := l.cfg.Store.Do(ctx, "SMEMBERS", set)
	if err != nil {
		return 0, fmt.Errorf("expire %s: %w", replica, err)
	}
	tenants, err := m.AsStrSlice()
	if err != nil {
		return 0, fmt.Errorf("expire %s: %w", replica, err)
	}
	e := expiry{Ledger: l, replica: replica}
	e.in(ctx, tenants)
	errs := e.failed
	if len(e.done) > 0 {
		if _, err := l.cfg.Store.Do(ctx, "SREM", set, e.done...); err != nil {
			errs = append(errs, err)
		}
	}
	walked, err := l.walk(ctx, replica)
	if err := errors.Join(append(errs, err)...); err != nil {
		return e.settled + walked, fmt.Errorf("expire %s: %w", replica, err)
	}
	return e.settled + walked, nil
}

// walk expires in every tenant of the directory.
func (l *Ledger) walk(ctx context.Context, replica string) (n int, err error) {
	l.walks.mu.Lock()
	defer l.walks.mu.Unlock()
	if at, ok := l.walks.at[replica]; ok && l.cfg.Clock().Sub(at) < walkEvery {
		return 0, nil
	}
	e := expiry{Ledger: l, replica: replica}
	for cursor := uint64(0); ; {
		m, err := l.cfg.Store.Do(ctx, "SSCAN", TenantIndex(), fmt.Sprint(cursor), "COUNT", "1000")
		if err != nil {
			return e.settled, err
		}
		page, err := m.AsScanEntry()
		if err != nil {
			return e.settled, err
		}
		e.in(ctx, page.Elements)
		if cursor = page.Cursor; cursor == 0 {
			break
		}
	}
	var errs []error
	for _, err := range e.failed {
		// A tenant's broken records must not keep all dead replicas on the list: most likely nothing of this one is there.
		if strings.Contains(err.Error(), "WRONGTYPE") {
			l.cfg.Log.Warn().Err(err).Str("replica", replica).Msg("a tenant's reservations cannot be read")
			continue
		}
		errs = append(errs, err)
	}
	again := len(errs) > len(e.stuck)
	if len(e.stuck) > 0 {
		if _, err := l.cfg.Store.Do(ctx, "SADD", ReplicaTenants(replica), e.stuck...); err != nil {
			errs, again = append(errs, err), true
		}
	}
	if !again { // what is stuck is announced now
		l.walks.done(replica, l.cfg.Clock())
	}
	return e.settled, errors.Join(errs...)
}

func (w *walks) done(replica string, now time.Time) {
	for name, at := range w.at {
		if now.Sub(at) >= walkEvery {
			delete(w.at, name)
		}
	}
	if w.at == nil {
		w.at = map[string]time.Time{}
	}
	w.at[replica] = now
}

// expiry is what came of charging one dead replica's holds, tenant by tenant.
type expiry struct {
	*Ledger
	replica     string
	settled     int
	done, stuck []string // tenants: nothing of the replica is open there; something is, and cannot be charged
	failed      []error
}

// in expires in tenants, many in one flush, until each is through.
func (e *expiry) in(ctx context.Context, tenants []string) {
	type step struct {
		tenant, cursor string
		stuck          int64
	}
	todo := make([]step, len(tenants))
	for i, t := range tenants {
		todo[i] = step{tenant: t, cursor: "0"}
	}
	for len(todo) > 0 {
		now := todo[:min(len(todo), expireAtOnce)]
		todo = todo[len(now):]
		b := e.cfg.Pipeline.Batch()
		handles := make([]*pipeline.Handle[lua.ExpireReply], len(now))
		for i, s := range now {
			handles[i] = lua.Expire(b, e.cfg.Store, TenantRoot(s.tenant), lua.ClaimText(e.replica), s.cursor)
		}
		for i, h := range handles {
			s := now[i]
			reply, err := h.Wait(ctx)
			s.stuck += reply.Stuck
			e.settled += int(reply.Settled)
			switch {
			case err != nil:
				e.failed = append(e.failed, fmt.Errorf("in %s: %w", s.tenant, err))
			case reply.Next != "0":
				s.cursor = reply.Next
				todo = append(todo, s)
			case s.stuck > 0:
				e.stuck = append(e.stuck, s.tenant)
				e.failed = append(e.failed, fmt.Errorf("%d in %s: %w", s.stuck, s.tenant, ErrStuck))
			default:
				e.done = append(e.done, s.tenant)
			}
		}
	}
}
