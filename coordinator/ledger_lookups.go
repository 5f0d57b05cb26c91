package coordinator

import (
	"sync"
	"time"
)

const (
	failedPerTenant = 50  // look-ups of unknown keys in one second for one tenant name
	failedPerSecond = 500 // and in all

	// Beyond those bounds look-ups go on, few at a time, to these: about 2 % of a Redis, which knows none of the keys.
	floodedPerTenant = 500 // those before included
	floodedPerSecond = 1500
	floodedAtOnce    = 4 // of one tenant name
	floodedTenants   = 8 // at once
)

// lookups counts look-ups of keys that nobody knows, by the second. A tenant name beyond its bound is flooded until the
// second ends: of its keys that never passed here only few are looked up at a time, the others are refused without asking
// Redis; keys that did pass are exempt. Not none, because a valid key that is new to this replica looks like the made-up
// ones, and refusing all of them would let anybody who knows a tenant's name keep its new keys out. At a time, because that
// makes way by itself when Redis is slow. // L6
type lookups struct {
	mu      sync.Mutex
	second  int64
	all     int // within both bounds: a flood of one tenant name must not slow the others down
	beyond  int
	tenants map[string]int // both
	asking  map[string]int // look-ups beyond the bounds that are not answered yet
}

func (k *lookups) failed(tenant string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turnLocked(now)
	if k.all >= failedPerSecond || k.tenants[tenant] >= failedPerTenant {
		k.beyond++
	} else {
		k.all++
	}
	if len(k.tenants) < failedPerSecond {
		k.tenants[tenant]++
	}
}

// begin says whether a key not seen to pass may be looked up: wait above 0 is how long it is refused. With flooded, done is
// called when the answer is there; who never does blocks the next one until the second ends, no longer.
func (k *lookups) begin(tenant string, now time.Time) (wait time.Duration, flooded bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turnLocked(now)
	n := k.tenants[tenant]
	if k.all < failedPerSecond && n < failedPerTenant {
		return 0, false
	}
	asking := k.asking[tenant]
	if asking >= floodedAtOnce || asking == 0 && len(k.asking) >= floodedTenants || n >= floodedPerTenant || k.beyond >= floodedPerSecond {
		return time.Unix(k.second+1, 0).Sub(now), false
	}
	k.asking[tenant]++
	return 0, true
}

func (k *lookups) done(tenant string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asking[tenant]--; k.asking[tenant] <= 0 {
		delete(k.asking, tenant)
	}
}

func (k *lookups) turnLocked(now time.Time) {
	if s := now.Unix(); s != k.second || k.tenants == nil {
		k.second, k.all, k.beyond, k.tenants, k.asking = s, 0, 0, map[string]int{}, map[string]int{}
	}
}

// floodRefusal is the answer to keys never seen that are not looked up for a flood. It names no identity: there is none.
func floodRefusal(reset time.Duration) Admission {
	none := Window{Limit: -1}
	return Admission{Verdict: RequestsExceeded, Scope: "key", Limit: failedPerTenant, Reset: reset, Requests: none, Tokens: none}
}
