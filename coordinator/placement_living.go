package coordinator

import (
	"slices"
	"time"
)

// livingBeats is how many beats a replica may miss and still count as living for Living.
const livingBeats = 3

// Living is the replicas, by name and sorted, whose beats this one saw lately, with its own: who shares work now. A replica
// that was killed is not among them 3 s later, long before it counts as dead. It is empty before the first acknowledged
// beat.
func (p *Placement) Living() []string {
	if living := p.living.Load(); living != nil {
		return *living
	}
	return nil
}

// saw notes who lives, after the watch of the whole fleet's pool has looked.
func (p *Placement) saw(w *watch, now time.Time) {
	living := []string{p.cfg.Replica}
	for replica, at := range w.seen {
		if now.Sub(at.since) <= livingBeats*p.cfg.times.every {
			living = append(living, replica)
		}
	}
	slices.Sort(living)
	p.living.Store(&living)
}

// Replicas is how many replicas this one saw living lately, itself included.
func (p *Placement) Replicas() int { return max(1, len(p.Living())) }
