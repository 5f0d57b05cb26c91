package gateway

import (
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/coordinator"
)

const (
	// unreadableEvery is how often the log repeats that a record cannot be read: its key may ask a thousand times a second.
	unreadableEvery = time.Minute
	// unreadableMax bounds the memory of what was logged; beyond it nothing more is logged until the minute ends.
	unreadableMax = 1000
)

// unreadable tells the operator of policies that refuse because they cannot be read: the client is told only that its
// key is invalid. The zero value is ready; it is safe for concurrent use.
type unreadable struct {
	mu     sync.Mutex
	since  time.Time
	logged map[string]bool
}

// warn logs one line for each record and minute.
func (u *unreadable) warn(log zerolog.Logger, tenant string, a coordinator.Admission, now time.Time) {
	if !u.first(tenant+"\x00"+a.Scope+"\x00"+a.ScopeID, now) {
		return
	}
	log.Warn().Str("tenant", tenant).Str("scope", a.Scope).Str("id", a.ScopeID).Str("key_id", a.KeyID).
		Msg("a record cannot be read: it refuses every request (headgate " + a.Scope + "s show names the field)")
}

func (u *unreadable) first(name string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.logged == nil || now.Sub(u.since) >= unreadableEvery {
		u.logged, u.since = map[string]bool{}, now
	}
	if u.logged[name] || len(u.logged) >= unreadableMax {
		return false
	}
	u.logged[name] = true
	return true
}
