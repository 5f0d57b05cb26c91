package cluster

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// engine is one member over all its snapshots: the goroutine that checks it, and
// what the checks said.
type engine struct {
	state  state
	wake   chan time.Duration // check again after this long
	cancel context.CancelFunc
	others atomic.Bool // other replicas look at it for this one

	mu        sync.Mutex
	spec      spec
	placement int // counts the addresses the member has had, and whatever else made earlier answers old
	tally     tally
	checked   bool    // at this address
	doubted   bool    // the fleet no longer says that it is out of use; the next answer decides
	listed    listing // the last one; nil = none yet
	listAgain time.Time
	story     story
}

// engineView is a consistent copy for a snapshot.
type engineView struct {
	spec    spec
	listed  listing
	checked bool
	state   *state
}

func newEngine(s spec) *engine {
	return &engine{spec: s, wake: make(chan time.Duration, 1)}
}

func (e *engine) view() engineView {
	e.mu.Lock()
	defer e.mu.Unlock()
	return engineView{spec: e.spec, listed: e.listed, checked: e.checked, state: &e.state}
}

// update takes a new description. At another address the member begins anew: it
// is out of use until the first good check there.
func (e *engine) update(s spec) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.story.described(e.spec, s)
	moved := s.addr != e.spec.addr || s.scheme != e.spec.scheme || s.basePath != e.spec.basePath
	e.spec = s
	if !moved {
		return
	}
	e.placement++
	e.tally, e.checked, e.doubted, e.listed, e.listAgain = tally{}, false, false, nil, time.Time{}
	e.story.told = untold
	e.state.up.Store(false)
	e.state.out.Store(false)
	e.hurry(0)
}

// fail notes that a request could not connect to addr.
func (e *engine) fail(addr string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if addr != e.spec.addr {
		return // it has moved since
	}
	e.tally = e.tally.after(refused)
	e.state.up.Store(false)
	e.story.health(e.spec, false, "a request could not connect")
	e.hurry(recheckAfter)
}

func (e *engine) hurry(after time.Duration) {
	select {
	case e.wake <- after:
	default:
	}
}

// publish puts a member in use that its checks found good. Only the cluster's
// loop calls it, after the snapshot with the member's models is there: nobody
// sees a usable backend whose models are not known yet.
func (e *engine) publish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tally.up {
		e.state.up.Store(true)
	}
}

// run checks the engine until ctx ends and calls changed when a new snapshot is
// due.
func (e *engine) run(ctx context.Context, p prober, changed func()) {
	for {
		e.check(ctx, p, changed)
		pause := time.NewTimer(jittered(e.pace()))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		case after := <-e.wake:
			pause.Reset(jittered(after))
			select {
			case <-ctx.Done():
				pause.Stop()
				return
			case <-pause.C:
			}
		}
	}
}

// pace is the time between two checks. Whom others look at for this replica, and
// find well, is asked as often as it is asked for its models.
func (e *engine) pace() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.others.Load() && e.tally.up && !e.doubted {
		return listEvery
	}
	return checkEvery
}

// lookedAt says whether other replicas look at the engine for this one.
func (e *engine) lookedAt(byOthers bool) {
	if e.others.Swap(byOthers) && !byOthers {
		e.mu.Lock()
		e.oldLocked()
		e.mu.Unlock()
		e.hurry(0)
	}
}

// oldLocked: the last good check is old, so one bad answer is enough now.
func (e *engine) oldLocked() {
	if e.tally.up {
		e.tally.fails = failuresToLeave - 1
	}
}

// verdict is what this replica's own checks say of the engine, and where it was
// asked; known is false before the first check there.
func (e *engine) verdict() (place string, unwell, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spec.host, !e.tally.up, e.checked
}

// ruled says that the fleet has it out of use at a place, or does not say so. The
// end of that may mean that a reader finds it well, that the readers are gone, or
// that this replica hears nobody; its own last check may be half a minute old. So
// it stays out of use until a check that begins now says how it is. // L11
func (e *engine) ruled(place string, out bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch was := e.state.out.Load(); {
	case out && place == e.spec.host:
		e.doubted = false
		e.state.out.Store(true)
		if !was && e.tally.up {
			e.story.log.Warn().Str("backend", e.spec.id).Str("address", e.spec.addr).Msg("backend out of use: its readers find it unwell")
		}
	case was && !e.doubted:
		e.doubted = true
		e.placement++
		e.oldLocked()
		e.hurry(0)
	}
}

// decidedLocked ends what the fleet said, by this replica's own last check.
func (e *engine) decidedLocked() {
	e.doubted = false
	e.state.out.Store(false)
	if e.tally.up {
		e.story.log.Info().Str("backend", e.spec.id).Str("address", e.spec.addr).Msg("backend is used again: it is found well")
	}
}

// check asks the engine once and files what it said.
func (e *engine) check(ctx context.Context, p prober, changed func()) {
	e.mu.Lock()
	s, placement := e.spec, e.placement
	e.mu.Unlock()

	result := p.health(ctx, s)
	if ctx.Err() != nil {
		return
	}
	var listed listing
	asked := result == good && e.listingDue()
	if asked {
		listed = p.models(ctx, s)
	}
	if ctx.Err() == nil && e.file(placement, result, asked, listed) {
		changed()
	}
}

func (e *engine) listingDue() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.tally.up || !time.Now().Before(e.listAgain)
}

// file reports whether a new snapshot is due.
func (e *engine) file(placement int, result outcome, asked bool, listed listing) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if placement != e.placement {
		return false // the answer of an address it no longer has, or too old a one
	}
	changed := !e.checked
	if asked && listed != nil && !maps.Equal(listed, e.listed) {
		e.listed, changed = listed, true
	}
	serves := len(effective(e.spec.models, e.listed)) > 0
	if asked {
		e.listAgain = time.Now().Add(jittered(listRetry))
		if listed != nil && serves {
			e.listAgain = time.Now().Add(jittered(listEvery))
		}
	}
	if result == good {
		e.state.seen.Store(time.Now().UnixMilli())
	}
	before := e.tally.up
	e.tally, e.checked = e.tally.after(result), true
	if !serves {
		e.tally.up = false
	}
	if !e.tally.up {
		e.state.up.Store(false)
	}
	if e.doubted && result != unasked {
		e.decidedLocked()
	}
	e.story.health(e.spec, e.tally.up, result.reason(serves))
	return changed || before != e.tally.up
}

// leave ends the checks of a member that is gone; snapshots that still have it
// see it out of use.
func (e *engine) leave() {
	e.cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.placement++
	e.tally, e.checked = tally{}, false
	e.state.up.Store(false)
}
