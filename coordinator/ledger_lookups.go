package coordinator

import (
	"sync"
	"time"
)

const (
	failedPerTenant = 50  // look-ups of unknown keys in one second for one tenant name
	failedPerSecond = 500 // and in all
)

// lookups counts look-ups of keys that nobody knows, by the second. Beyond the bounds, keys that never passed here are
// refused without asking Redis until the second ends; keys that did pass are exempt. // L6
type lookups struct {
	mu      sync.Mutex
	second  int64
	all     int
	tenants map[string]int
}

func (k *lookups) failed(tenant string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turnLocked(now)
	k.all++
	if len(k.tenants) < failedPerSecond {
		k.tenants[tenant]++
	}
}

// flooded is how long keys not seen to pass are refused from now; 0: they are looked up.
func (k *lookups) flooded(tenant string, now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turnLocked(now)
	if k.all < failedPerSecond && k.tenants[tenant] < failedPerTenant {
		return 0
	}
	return time.Unix(k.second+1, 0).Sub(now)
}

func (k *lookups) turnLocked(now time.Time) {
	if s := now.Unix(); s != k.second || k.tenants == nil {
		k.second, k.all, k.tenants = s, 0, map[string]int{}
	}
}

// floodRefusal is the answer to keys never seen while a flood lasts. It names no identity: there is none.
func floodRefusal(reset time.Duration) Admission {
	none := Window{Limit: -1}
	return Admission{Verdict: RequestsExceeded, Scope: "key", Limit: failedPerTenant, Reset: reset, Requests: none, Tokens: none}
}
