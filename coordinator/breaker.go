package coordinator

import (
	"errors"
	"sync"
	"time"

	"github.com/headgate/headgate/pipeline"
)

const (
	// trippedAfter is how many calls in a row must go without an answer before a tenant's Redis is taken to be away: one
	// may be a lost connection.
	trippedAfter = 3
	// probeEvery is how long requests are then answered without asking; one of them asks each time it is over. So a Redis
	// that is back is found at most that much later.
	probeEvery = 250 * time.Millisecond
	// trippedMax bounds the tenants looked after.
	trippedMax = 10_000
)

// breaker keeps requests from waiting for a Redis that is away: by tenant, since each may live on a node of its own. The
// zero value lets everybody ask.
type breaker struct {
	turned func(away bool, err error) // told when the first tenant's Redis is away, and when no one's is any more; nil: nobody is

	mu      sync.Mutex
	away    bool
	tenants map[string]*trip
}

// trip is a tenant whose last calls had no answer.
type trip struct {
	failures int
	until    time.Time // requests are answered without asking until then
}

// closed says that the tenant's Redis is to be asked. Of those that come while it is away, one each probeEvery is told so.
func (b *breaker) closed(tenant string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tenants[tenant]
	if t == nil || t.failures < trippedAfter {
		return true
	}
	if now.Before(t.until) {
		return false
	}
	t.until = now.Add(probeEvery)
	return true
}

// asked notes what became of a call.
func (b *breaker) asked(tenant string, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !errors.Is(err, pipeline.ErrUnavailable) {
		if len(b.tenants) > 0 {
			delete(b.tenants, tenant)
			b.backLocked(now)
		}
		return
	}
	t := b.tenants[tenant]
	if t == nil {
		if len(b.tenants) >= trippedMax {
			return
		}
		if b.tenants == nil {
			b.tenants = map[string]*trip{}
		}
		t = &trip{}
		b.tenants[tenant] = t
	}
	t.failures++
	t.until = now.Add(probeEvery)
	if t.failures == trippedAfter && !b.away {
		b.turnLocked(true, err)
	}
}

// backLocked ends what turned away, when every tenant that had no answer has had one, or has not asked for missedFor.
func (b *breaker) backLocked(now time.Time) {
	if !b.away {
		return
	}
	for tenant, t := range b.tenants {
		if now.Sub(t.until) < missedFor {
			return
		}
		delete(b.tenants, tenant)
	}
	b.turnLocked(false, nil)
}

func (b *breaker) turnLocked(away bool, err error) {
	b.away = away
	if b.turned != nil {
		b.turned(away, err)
	}
}
