package coordinator

import (
	"sync"
	"time"
)

const (
	failedPerTenant = 50  // look-ups of unknown keys in one second for one tenant name
	failedPerSecond = 500 // and in all

	// Beyond those bounds look-ups go on one by one, to these: about 2 % of a Redis, which knows none of the keys.
	singlePerTenant = 500 // those before included
	singlePerSecond = 1500
	singleAtOnce    = 8 // in all
)

// lookups counts look-ups of keys that nobody knows, by the second. A tenant name beyond its bound is flooded until the
// second ends: of its keys that never passed here only one at a time is looked up, the others are refused without asking
// Redis; keys that did pass are exempt. One at a time, because a valid key that is new to this replica looks like the made-up
// ones, and refusing all of them would let anybody who knows a tenant's name keep its new keys out; it also makes way by
// itself when Redis is slow. // L6
type lookups struct {
	mu      sync.Mutex
	second  int64
	all     int             // within both bounds: a flood of one tenant name must not slow the others down
	singles int             // beyond
	tenants map[string]int  // both
	single  map[string]bool // tenants of which one key is being looked up
}

func (k *lookups) failed(tenant string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turnLocked(now)
	if k.all >= failedPerSecond || k.tenants[tenant] >= failedPerTenant {
		k.singles++
	} else {
		k.all++
	}
	if len(k.tenants) < failedPerSecond {
		k.tenants[tenant]++
	}
}

// begin says whether a key not seen to pass may be looked up: wait above 0 is how long it is refused. With single, done is
// called when the answer is there; who never does blocks the next one until the second ends, no longer.
func (k *lookups) begin(tenant string, now time.Time) (wait time.Duration, single bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turnLocked(now)
	n := k.tenants[tenant]
	if k.all < failedPerSecond && n < failedPerTenant {
		return 0, false
	}
	if k.single[tenant] || len(k.single) >= singleAtOnce || n >= singlePerTenant || k.singles >= singlePerSecond {
		return time.Unix(k.second+1, 0).Sub(now), false
	}
	k.single[tenant] = true
	return 0, true
}

func (k *lookups) done(tenant string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.single, tenant)
}

func (k *lookups) turnLocked(now time.Time) {
	if s := now.Unix(); s != k.second || k.tenants == nil {
		k.second, k.all, k.singles, k.tenants, k.single = s, 0, 0, map[string]int{}, map[string]bool{}
	}
}

// floodRefusal is the answer to keys never seen that are not looked up for a flood. It names no identity: there is none.
func floodRefusal(reset time.Duration) Admission {
	none := Window{Limit: -1}
	return Admission{Verdict: RequestsExceeded, Scope: "key", Limit: failedPerTenant, Reset: reset, Requests: none, Tokens: none}
}
