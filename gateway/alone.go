package gateway

import (
	"sync"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// alone is what this replica does by itself while Redis is away and its operator wants requests served all the same: keys
// that passed before are let in within this replica's share of their limits, and run on this replica's share of the slots.
// There is no queue. The zero value runs nothing.
type alone struct {
	mu      sync.Mutex
	running map[string]int // by backend
}

// take takes one of share slots of a backend.
func (a *alone) take(backend string, share int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[backend] >= share {
		return false
	}
	if a.running == nil {
		a.running = map[string]int{}
	}
	a.running[backend]++
	return true
}

func (a *alone) free(backend string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[backend]--; a.running[backend] == 0 {
		delete(a.running, backend)
	}
}

// admitAlone asks the ledger's memory when Redis could not be asked; false: nothing may be let in.
func (r *request) admitAlone(err error) (coordinator.Admission, bool) {
	if !r.g.cfg.ServeAlone || !pipeline.Away(err) || r.ctx.Err() != nil {
		return coordinator.Admission{}, false
	}
	a, ok := r.g.deps.Ledger.AdmitLocally(r.admissionRequest())
	if ok {
		r.asked = true // it is settled when Redis is back
	}
	return a, ok
}

// placeAlone takes one of this replica's own slots when Redis could not be asked for one. Each owner decides by its own
// node: the admission may well have come from Redis.
func (r *request) placeAlone(err error) bool {
	if !r.g.cfg.ServeAlone || !pipeline.Away(err) || r.ctx.Err() != nil {
		return false
	}
	r.freeAlone()
	replicas := max(1, r.g.deps.Placement.Replicas())
	for _, b := range r.backends {
		if r.g.alone.take(b.ID, max(1, b.Slots/replicas)) {
			r.alone = b.ID
			r.place = coordinator.Place{State: coordinator.Placed, Backend: b.ID}
			return true
		}
	}
	return false
}

func (r *request) freeAlone() {
	if r.alone != "" {
		r.g.alone.free(r.alone)
		r.alone = ""
	}
}
