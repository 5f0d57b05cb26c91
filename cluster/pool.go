package cluster

import "sort"

// MaxCandidates is how many backends of a pool are weighed for one request: the
// ring's home and 31 others.
const MaxCandidates = 32

// Pool is the backends that serve the same set of models, as they were known at
// one moment. It is immutable.
type Pool struct {
	Name     string
	Backends []*Backend // sorted by ID

	ring     *ring            // its members are Backends, by index
	contexts map[string]int64 // by model: see ShortestContext
}

// Candidates are at most max backends that may take a new request whose prefix
// hashes to key: first the ring's home of the key, then the others in the order
// of their rendezvous with the key's partition. Backends that are not usable
// are left out and give way to the next; the order of the others stays. max ≤ 0
// or above MaxCandidates counts as MaxCandidates. An empty result means that no
// backend of the pool is usable.
func (p *Pool) Candidates(key uint64, max int) []*Backend {
	return p.pick(key, max, (*Backend).Usable)
}

// CandidatesFor is Candidates among the backends that list the model.
func (p *Pool) CandidatesFor(model string, key uint64, max int) []*Backend {
	return p.pick(key, max, func(b *Backend) bool { return b.Serves(model) && b.Usable() })
}

func (p *Pool) pick(key uint64, most int, good func(*Backend) bool) []*Backend {
	if most <= 0 || most > MaxCandidates {
		most = MaxCandidates
	}
	most = min(most, len(p.Backends))
	if most == 0 {
		return nil
	}
	partition := partitionOf(key)
	chosen := make([]*Backend, 0, most)
	for _, i := range p.ring.order(partition) {
		if b := p.Backends[i]; good(b) {
			if chosen = append(chosen, b); len(chosen) == most {
				return chosen
			}
		}
	}
	if len(chosen) > 0 || len(p.Backends) <= MaxCandidates {
		return chosen
	}
	// All 32 that were weighed are out of use, in a larger pool: any other is
	// better than none. The walk begins where the partition says, so that not
	// everything meets on one backend.
	for i := range p.Backends {
		if b := p.Backends[(partition+i)%len(p.Backends)]; good(b) {
			if chosen = append(chosen, b); len(chosen) == most {
				break
			}
		}
	}
	return chosen
}

// Home is the backend the ring gives the key to, usable or not; nil in an empty
// pool.
func (p *Pool) Home(key uint64) *Backend {
	if len(p.Backends) == 0 {
		return nil
	}
	return p.Backends[p.ring.order(partitionOf(key))[0]]
}

// ShortestContext is the smallest MaxModelLen of the model in the pool; 0 = no
// engine said it.
func (p *Pool) ShortestContext(model string) int64 { return p.contexts[model] }

// Usable reports whether any backend of the pool may take a new request.
func (p *Pool) Usable() bool {
	for _, b := range p.Backends {
		if b.Usable() {
			return true
		}
	}
	return false
}

// newPool sorts the backends and keeps the ring of before when its members are
// the same: health, addresses and figures change no prefix's home.
func newPool(name string, backends []*Backend, before *Pool) *Pool {
	sort.Slice(backends, func(i, j int) bool { return backends[i].ID < backends[j].ID })
	ids := make([]string, len(backends))
	for i, b := range backends {
		ids[i] = b.ID
	}
	p := &Pool{Name: name, Backends: backends, contexts: map[string]int64{}}
	for _, b := range backends {
		for model, n := range b.maxLen {
			if least := p.contexts[model]; n > 0 && (least == 0 || n < least) {
				p.contexts[model] = n
			}
		}
	}
	var ring *ring
	if before != nil {
		ring = before.ring
	}
	if ring != nil && ring.same(ids) {
		p.ring = ring
	} else {
		p.ring = newRing(ids, ring)
	}
	return p
}
