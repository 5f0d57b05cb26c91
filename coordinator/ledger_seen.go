package coordinator

import "sync"

// Hint is what the last admission of a key on this replica said about it. It allows and refuses nothing: it only lets
// the cache and placement be asked in the same flush as the ledger.
type Hint struct {
	Tenant, Team  string
	Priority      int // 0 to 9, -1: none
	IsolatePrefix bool
}

// Hint is what is remembered of an admitted key of that tenant.
func (a *Admission) Hint(tenant string) Hint {
	return Hint{Tenant: tenant, Team: a.Team, Priority: a.Priority, IsolatePrefix: a.Isolate}
}

// seenMax is how many keys that passed are remembered.
const seenMax = 100_000

// seenKeys remembers the keys that passed, by hash, in two generations: the older one is dropped when the newer one is
// full, and a key that passes again moves to the newer. So at least the last seenMax/2 are known, at most seenMax. // L6
type seenKeys struct {
	mu           sync.RWMutex
	young, older map[string]Hint
}

// Seen is what this replica remembers of a key that passed before.
func (l *Ledger) Seen(keyHash string) (Hint, bool) { return l.seen.get(keyHash) }

func (s *seenKeys) get(hash string) (Hint, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if h, ok := s.young[hash]; ok {
		return h, true
	}
	h, ok := s.older[hash]
	return h, ok
}

func (s *seenKeys) put(hash string, h Hint) {
	s.mu.RLock()
	known, ok := s.young[hash]
	s.mu.RUnlock()
	if ok && known == h {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.young == nil || len(s.young) >= seenMax/2 {
		s.young, s.older = map[string]Hint{}, s.young
	}
	s.young[hash] = h
}
