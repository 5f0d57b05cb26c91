package cluster

import (
	"context"
	"slices"
	"time"
)

// Finding is what this replica, as one of a backend's readers, found of its health.
type Finding struct {
	Backend string
	Place   string // host:port where it was asked
	Readers int    // how many replicas look at it: 1 or 2
	Unwell  bool   // false: it is well again
}

// OutOfUse is a backend that all its readers found unwell at a place.
type OutOfUse struct{ Backend, Place string }

// Told is what is told of one pool, at most 64 findings; none: only to learn who is out of use there.
type Told struct {
	Pool     string
	Findings []Finding
}

// HealthBoard is where replicas share what they found of engines' health. A finding counts there for 5 s.
type HealthBoard interface {
	// Living are the replicas that live; nobody while that is not known. It must not block.
	Living() []string
	// Share tells all in one flush and returns what is heard of each, in order.
	Share(ctx context.Context, all []Told) []Heard
}

// Heard is who is out of use in a pool; nothing is known with an error.
type Heard struct {
	Out []OutOfUse
	Err error
}

const (
	// shareEvery is the pace of telling and learning; a change that this replica saw itself is told at once.
	shareEvery = time.Second
	// gather is how long changes are gathered before they are told.
	gather = 50 * time.Millisecond
	// aloneAfter is how long what others said counts without an answer of the board: then each replica looks for itself.
	aloneAfter = 3 * time.Second
)

// rounds is the telling and learning of one replica.
type rounds struct {
	cluster *Cluster
	board   HealthBoard
	share   share
	told    map[meterKey]bool    // of whom this replica said that it is unwell
	heard   map[string]time.Time // by pool: when the board answered last
}

// ShareHealth has this replica, by its name among the living, look at its share of the backends for all replicas, and
// believe the others for the rest, until ctx ends; it returns nil. A backend is out of use when all its readers, two where
// so many live, find it unwell: a reader that is cut off from it alone keeps its own requests away, and nobody else's.
// While the board is away every replica checks every backend itself, as it does before the first answer. // L8 L9
func (c *Cluster) ShareHealth(ctx context.Context, replica string, board HealthBoard) error {
	r := rounds{cluster: c, board: board, share: share{replica: replica}, told: map[meterKey]bool{}, heard: map[string]time.Time{}}
	tick := time.NewTicker(shareEvery)
	defer tick.Stop()
	for {
		r.round(ctx, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-c.turned:
			sleep(ctx, gather)
		}
	}
}

// round tells what this replica found and learns what the others did.
func (r *rounds) round(ctx context.Context, now time.Time) {
	living, pools := r.board.Living(), r.cluster.Pools()
	r.share.of(pools, living)
	var all []Told
	for _, p := range pools {
		all = append(all, r.tell(p, min(readers, len(living)))...)
	}
	last := map[string]Heard{} // by pool: of several lists the last knows all that was told
	if len(living) > 0 && len(all) > 0 {
		for i, heard := range r.board.Share(ctx, all) {
			last[all[i].Pool] = heard
			if heard.Err == nil {
				r.acknowledged(all[i])
			}
		}
	}
	for _, p := range pools {
		heard, asked := last[p.Name]
		switch {
		case asked && heard.Err == nil:
			r.heard[p.Name] = now
			r.learn(p, heard.Out)
		case now.Sub(r.heard[p.Name]) > aloneAfter:
			delete(r.heard, p.Name)
			r.alone(p)
		}
	}
}

// tell is what is to be told of a pool.
func (r *rounds) tell(p *Pool, readers int) []Told {
	var found []Finding
	for _, b := range r.share.mine[p] {
		e, ok := r.cluster.engines.Load(b.ID)
		if !ok {
			continue
		}
		place, unwell, known := e.(*engine).verdict()
		if known && (unwell || r.told[meterKey{p.Name, b.ID}]) {
			found = append(found, Finding{Backend: b.ID, Place: place, Readers: readers, Unwell: unwell})
		}
	}
	if len(found) == 0 {
		return []Told{{Pool: p.Name}}
	}
	var all []Told
	for part := range slices.Chunk(found, lookSize) {
		all = append(all, Told{p.Name, part})
	}
	return all
}

// acknowledged: the fleet knows this.
func (r *rounds) acknowledged(t Told) {
	for _, f := range t.Findings {
		if key := (meterKey{t.Pool, f.Backend}); f.Unwell {
			r.told[key] = true
		} else {
			delete(r.told, key)
		}
	}
}

// learn files who is out of use in a pool, and whom others look at.
func (r *rounds) learn(p *Pool, out []OutOfUse) {
	places := make(map[string]string, len(out))
	for _, o := range out {
		places[o.Backend] = o.Place
	}
	mine := make(map[string]bool, len(r.share.mine[p]))
	for _, b := range r.share.mine[p] {
		mine[b.ID] = true
	}
	for _, b := range p.Backends {
		if e, ok := r.cluster.engines.Load(b.ID); ok {
			place, out := places[b.ID]
			e.(*engine).ruled(place, out)
			e.(*engine).lookedAt(!mine[b.ID])
		}
	}
}

// alone has this replica rely on nobody in a pool.
func (r *rounds) alone(p *Pool) {
	for _, b := range p.Backends {
		if e, ok := r.cluster.engines.Load(b.ID); ok {
			e.(*engine).ruled("", false)
			e.(*engine).lookedAt(false)
		}
	}
}

// turn has the next round begin now.
func (c *Cluster) turn() {
	select {
	case c.turned <- struct{}{}:
	default:
	}
}
