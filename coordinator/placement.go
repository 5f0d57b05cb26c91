package coordinator

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/rs/zerolog"
)

// PoolView is a pool as the cluster knows it now; it is not changed after it was given away.
type PoolView struct {
	Name     string
	Backends []BackendFacts
}

// BackendFacts is what the registration of a backend says.
type BackendFacts struct {
	ID, Address string
	Slots       int
	Draining    bool
	CapacityMU  int64  // per second, thousandths of a model unit; 0: not said
	Models      string // comma-separated, sorted; "": not known here. A backend of which nobody knows serves all
}

// PlacementConfig says who places, where, and for what.
type PlacementConfig struct {
	Replica  string // [A-Za-z0-9._@-]+, new at each start of the process
	Store    *pipeline.Store
	Pipeline *pipeline.Pipeline
	Pools    func() []PoolView // must not block
	// OnDead settles what a dead replica has reserved. It is safe to repeat, and repeated until it succeeds.
	OnDead     func(ctx context.Context, replica string) error
	QueueLimit int   // waiting requests of a pool; 0: nobody waits
	LeastMatch int64 // prompt tokens; a shorter match of a warm prefix does not count. 0: 512
	Log        zerolog.Logger

	times placementTimes // zero: the promised ones
}

// placementTimes are the clocks of placement. A killed replica's slots are free within 15 s: the others see its last beat
// after `every` (1 s) and a round trip (0.45 s at most), see it unchanged for `dead` (12 s) and a jitter (0.25 s), and
// clear it in a round trip or two: 14.6 s. A replica that restarts under a new id within 1.5 s does the same.
type placementTimes struct {
	every  time.Duration // between two beats
	dead   time.Duration // a beat unchanged for so long is the last
	jitter time.Duration // spreads the replicas that find the same one dead
	// stale is when a replica stops to trust its own leases: it must place again before others may have cleared them,
	// that is earlier than dead by more than a request takes from the check to the engine.
	stale time.Duration
	young time.Duration // leases younger than this are not compared: their replies may be on the way
}

func (t placementTimes) orPromised() placementTimes {
	if t == (placementTimes{}) {
		return placementTimes{every: time.Second, dead: 12 * time.Second, jitter: 250 * time.Millisecond,
			stale: 8 * time.Second, young: 10 * time.Second}
	}
	return t
}

// maxCandidates is how many backends one Ask may name; place reads the record of each.
const maxCandidates = 32

// LeastMatch: a system prompt that everybody shares is warm on three backends by name and on all in truth, so it must not
// decide. Replayed, 128 does as well, and 2,048 costs a chat 3 points of hits and a quarter at p95 (bench/replay).
const LeastMatch = 512

// ErrPlaceAgain ends a wait whose place in the queue is gone (Redis lost it, or this replica was thought dead): the
// request places again with its next attempt.
var ErrPlaceAgain = errors.New("placement: the place in the queue was lost")

// Placement gives requests slots of backends, for the whole fleet: a slot is a lease of this replica in Redis, so a
// backend never runs more than its slots however many replicas place. It is safe for concurrent use.
//
// Invariants:
//
//	P1. No backend holds more leases than it had slots when they were given; held is the number of its leases.
//	P2. Release is the only way out. It ends what attempts up to one hold, and never what a later one holds.
//	P3. A slot that comes free goes to the first who waits and can use it before a new request may have it.
//	P4. A slot granted to somebody who is not waiting here any more is given back.
//	P5. A grant reaches its waiter with the announcement, or with the next beat.
//	P6. A killed replica's leases are free, and its waiters gone, within 15 s; a living one's are left alone.
//	P7. A lease in Redis that no request here knows is given back by the beat.
//	   A request that runs here and has no lease in Redis gets it back; counts that are not the leases' are repaired.
//	P8. A backend that fails is left alone by the whole fleet for a while; a running cool-down is never shortened.
type Placement struct {
	cfg   PlacementConfig
	holds holds

	beaten  atomic.Bool // a beat was acknowledged
	living  atomic.Pointer[[]string]
	hearing hearing
	flow    flow

	capacity atomic.Pointer[[]Capacity]

	mu    sync.Mutex
	acked map[string]time.Time // per pool: when the last acknowledged beat was sent

	pulse   map[string]*pulse // per pool; used by the beat's goroutine alone
	burying burying
}

// NewPlacement starts nothing; Run does.
func NewPlacement(cfg PlacementConfig) *Placement {
	cfg.times = cfg.times.orPromised()
	if cfg.LeastMatch == 0 {
		cfg.LeastMatch = LeastMatch
	}
	return &Placement{cfg: cfg, holds: newHolds(), acked: map[string]time.Time{}, pulse: map[string]*pulse{}}
}

// Place declares the ask on b. Whoever places releases, whatever the reply was and also without one; releasing what holds
// nothing costs nothing. A Queued ask goes on with Await.
func (p *Placement) Place(b *pipeline.Batch, a Ask) *pipeline.Handle[Place] {
	// Before the flush: a grant may come before the reply that says Queued.
	p.holds.ask(holdKey{a.Pool, a.RID}, a.Attempt, load{mu: a.MU, outputMU: min(a.OutputMU, a.MU), tenant: a.Tenant})
	return lua.Place(b, p.cfg.Store, PoolRoot(a.Pool), p.placeArgs(a), func(r lua.PlaceReply) Place { return p.placed(a, r) })
}

func (p *Placement) placeArgs(a Ask) lua.PlaceArgs {
	args := lua.PlaceArgs{RID: a.RID, Attempt: a.Attempt, Replica: p.cfg.Replica, Tenant: a.Tenant, Model: a.Model, MU: a.MU,
		OutputMU: a.OutputMU, Not: SafeID(a.Not), Wait: a.Wait, Limit: p.cfg.QueueLimit, Class: min(max(a.Class, 0), 9),
		Prompt: lua.Prompt{Tokens: a.PromptTokens, Save: a.WarmMU, Least: p.cfg.LeastMatch, Bucket: a.Prefix.Bucket}}
	if a.Only && len(a.Candidates) == 1 {
		args.Not = "=" + SafeID(a.Candidates[0].ID)
	}
	prints, candidates := a.Prefix.Prints[:min(len(a.Prefix.Prints), maxFingerprints)], a.Candidates[:min(len(a.Candidates), maxCandidates)]
	args.Prompt.Prints = make([]lua.Print, 0, len(prints))
	args.Candidates = make([]lua.Slots, 0, len(candidates))
	for _, f := range prints {
		args.Prompt.Prints = append(args.Prompt.Prints, lua.Print{Name: f.name(), Tokens: f.Tokens})
	}
	for _, c := range candidates {
		s := lua.Slots{Backend: SafeID(c.ID), Slots: c.Slots}
		if len(args.Prompt.Prints) > 0 {
			s.Tag = lua.TagOf(s.Backend)
		}
		args.Candidates = append(args.Candidates, s)
	}
	return args
}

func (p *Placement) placed(a Ask, r lua.PlaceReply) Place {
	key := holdKey{a.Pool, a.RID}
	p.flow.offer(a)
	switch r.State {
	case lua.PlacePlaced:
		p.holds.placed(key, a.Attempt, r.Backend)
		place := Place{State: Placed, Matched: r.Matched, Expected: time.Duration(r.ExpectedMS) * time.Millisecond}
		for _, c := range a.Candidates {
			if SafeID(c.ID) == r.Backend {
				place.Backend = c.ID
				return place
			}
		}
		place.Backend = p.backendID(a.Pool, r.Backend) // a repeat that names other candidates
		return place
	case lua.PlaceQueued:
		p.holds.queued(key, a.Attempt)
		return Place{State: Queued, Ahead: r.Ahead}
	case lua.PlaceFull:
		p.holds.release(key, a.Attempt)
		return Place{State: QueueFull}
	default:
		p.holds.release(key, a.Attempt)
		return Place{State: NoBackend}
	}
}

// Await returns the place a queued ask was granted, on any backend of the pool. When ctx ends first it returns the cause; the
// slot may have been granted all the same, so the ask is released like any other.
func (p *Placement) Await(ctx context.Context, a Ask) (Place, error) {
	granted := p.holds.granted(holdKey{a.Pool, a.RID}, a.Attempt)
	if granted == nil {
		return Place{}, ErrPlaceAgain
	}
	select {
	case g := <-granted:
		if g.err != nil {
			return Place{}, g.err
		}
		return Place{State: Placed, Backend: p.backendID(a.Pool, g.backend), Matched: g.matched}, nil
	case <-ctx.Done():
		return Place{}, context.Cause(ctx)
	}
}

// Release declares on post the end of all that a request holds in the pool for attempts up to one. From here on a grant
// for it is given back. It does not send.
func (p *Placement) Release(post *pipeline.Post, r Release) {
	if of, held := p.holds.at(holdKey{r.Pool, r.RID}, r.Attempt); held && of.backend != "" {
		p.flow.end(r, of)
	}
	if !p.holds.release(holdKey{r.Pool, r.RID}, r.Attempt) {
		return // refused, released before, or a later attempt's
	}
	p.giveBack(post, r)
}

func (p *Placement) giveBack(post *pipeline.Post, r Release) {
	args := lua.ReleaseArgs{RID: r.RID, Attempt: r.Attempt, Replica: p.cfg.Replica, TTFTMS: r.TTFT.Milliseconds(), Tokens: r.Completion}
	switch {
	case r.Unused:
		args.Ran = lua.RanNot
	case r.Answered || r.TTFT > 0:
		args.Ran = lua.RanAnswered
	}
	post.With(func(b *pipeline.Batch) {
		// A release that is not acknowledged is not repeated: the beat finds the lease that nobody knows. // P7
		lua.Release(b, p.cfg.Store, PoolRoot(r.Pool), args)
	})
}

// giveBackNow is giveBack for what no request will release.
func (p *Placement) giveBackNow(pool, rid string, attempt int) {
	post := p.cfg.Pipeline.Post()
	p.giveBack(post, Release{Pool: pool, RID: rid, Attempt: attempt, Unused: true})
	post.Send()
}

// Leases is the number of slots requests of this replica hold.
func (p *Placement) Leases() int { return p.holds.count(holding) }

// Waiting is the number of requests of this replica in a queue.
func (p *Placement) Waiting() int { return p.holds.count(waiting) }

// Stale says that others may soon think this replica dead in a pool: a slot placed there before must be placed again, as
// the next attempt, before the request is forwarded.
func (p *Placement) Stale(pool string) bool { return p.lastBeatIn(pool) > p.cfg.times.stale }

// lastBeatIn is how long ago the last acknowledged beat in a pool was sent; where there was none yet it is 0.
func (p *Placement) lastBeatIn(pool string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, beats := p.acked[pool]
	if !beats {
		return 0
	}
	return time.Since(at)
}

// LastBeat is how long ago the last acknowledged beat was sent, in the pool where that is longest; before the first beat
// of Run it is 0.
func (p *Placement) LastBeat() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var longest time.Duration
	for _, at := range p.acked {
		longest = max(longest, time.Since(at))
	}
	return longest
}

// Beating is nil once the fleet has seen a beat of this replica and not lost sight of it: before that, nobody would clear
// what it leaves behind. A pool whose keys cannot be read is that pool's trouble: only the beat in the whole fleet counts.
func (p *Placement) Beating() error {
	if p.beaten.Load() && !p.Stale(wholeFleet) {
		return nil
	}
	return errors.New("the fleet has not acknowledged a beat of this replica")
}

// Run listens for grants, beats, and clears replicas that died, until ctx ends.
func (p *Placement) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { p.listen(ctx) })
	wg.Go(func() { p.measures(ctx) })
	p.beats(ctx)
	wg.Wait()
	p.burying.wait()
	return nil
}

// grant hands a slot to who waits for it here. The same grant may come twice. // P5
func (p *Placement) grant(pool string, g lua.Grant) {
	if !p.holds.grant(holdKey{pool, g.RID}, g) {
		p.giveBackNow(pool, g.RID, g.Attempt) // P4
	}
}

// backendID is the id whose form in key names is safe.
func (p *Placement) backendID(pool, safe string) string {
	if !strings.HasPrefix(safe, "~") {
		return safe
	}
	for _, v := range p.cfg.Pools() {
		if v.Name != pool {
			continue
		}
		for _, b := range v.Backends {
			if SafeID(b.ID) == safe {
				return b.ID
			}
		}
	}
	return safe
}
