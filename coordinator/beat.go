package coordinator

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// wholeFleet is the pool without backends in which every replica beats. It says who lives where no pool is known, and what a
// dead replica has reserved is settled by whoever clears it there.
const wholeFleet = ""

// Bounds of one beat in one pool, so that it takes Redis well under a millisecond.
const (
	maxBeatBackends = 64
	maxBeatWaiters  = 100
)

// touchesPerSecond is how often the fleet's beats touch a backend: often enough that a free slot does not wait for long, and
// not once more for each replica, or what beats cost would grow with the product of replicas and backends.
const touchesPerSecond = 4

// beatShare is how many backends of a pool one beat touches, where a replica beats once a second.
func beatShare(backends, replicas int) int {
	replicas = max(replicas, 1)
	return min(maxBeatBackends, (touchesPerSecond*backends+replicas-1)/replicas)
}

// pulse is what the beat remembers of one pool between two beats.
type pulse struct {
	watch     watch
	published map[string]BackendFacts // as acknowledged
	next      int                     // where the turn through the backends goes on
	recounted int                     // where the turn of recounts goes on
	beats     int                     // answered, since Redis knows of this replica
	differs   int                     // beats in a row in which Redis counted other leases than this replica
	told      map[string]bool         // unreadable backends that were logged
}

// beats beats every second, and when somebody is due to be found dead.
func (p *Placement) beats(ctx context.Context) {
	if p.cfg.Store.WaitConnected(ctx) != nil { // the first beat must not fail for a connection that is just being made
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(p.beat(ctx))
	}
}

// beat sends one beat for all pools in one flush and acts on the replies. It returns the time until the next.
func (p *Placement) beat(ctx context.Context) time.Duration {
	views, sent := p.views(), time.Now()
	p.expect(views, sent)
	replicas := p.Replicas()
	batch, replies := p.cfg.Pipeline.Batch(), make([]*pipeline.Handle[lua.BeatReply], len(views))
	facts := make([][]BackendFacts, len(views))
	for i, v := range views {
		facts[i] = p.pulse[v.Name].facts(v.Backends, beatShare(len(v.Backends), replicas))
		replies[i] = lua.Beat(batch, p.cfg.Store, PoolRoot(v.Name), p.beatArgs(v.Name, facts[i]))
	}
	p.index(views)
	next := sent.Add(p.cfg.times.every)
	for i, v := range views {
		reply, err := replies[i].Wait(ctx)
		if err != nil {
			p.unheard(v.Name, err)
			continue
		}
		if due := p.heard(ctx, heardBeat{v, sent}, reply); due.Before(next) {
			next = due
		}
		p.pulse[v.Name].acknowledged(facts[i])
	}
	return max(time.Until(next), p.cfg.times.every/100)
}

// views is all pools in which this replica lives: those of the cluster, those that are gone from it while requests still
// run there, and the fleet.
func (p *Placement) views() []PoolView {
	views := append([]PoolView{{Name: wholeFleet}}, p.cfg.Pools()...)
	known := make(map[string]bool, len(views))
	for _, v := range views {
		known[v.Name] = true
	}
	for _, pool := range p.holds.pools() {
		if !known[pool] {
			views = append(views, PoolView{Name: pool})
		}
	}
	return views
}

// expect makes room for new pools and forgets those that are gone. A new pool counts as acknowledged now: nobody can
// have seen this replica there for long.
func (p *Placement) expect(views []PoolView, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	acked, pulses := make(map[string]time.Time, len(views)), make(map[string]*pulse, len(views))
	for _, v := range views {
		acked[v.Name], pulses[v.Name] = p.acked[v.Name], p.pulse[v.Name]
		if pulses[v.Name] == nil {
			acked[v.Name] = now
			// Each replica begins elsewhere, so that all of them together are everywhere at any time.
			pulses[v.Name] = &pulse{published: map[string]BackendFacts{}, told: map[string]bool{}, next: rand.IntN(len(v.Backends) + 1)}
		}
	}
	p.acked, p.pulse = acked, pulses
}

func (p *Placement) beatArgs(pool string, facts []BackendFacts) lua.BeatArgs {
	args := lua.BeatArgs{Replica: p.cfg.Replica, Waiting: p.holds.waiters(pool, maxBeatWaiters)}
	for _, f := range facts {
		r := lua.Registered{Backend: SafeID(f.ID), Address: f.Address, Slots: f.Slots, Draining: f.Draining, CapacityMU: f.CapacityMU}
		if f.Models != "" {
			r.Models = strings.Split(f.Models, ",")
		}
		args.Backends = append(args.Backends, r)
	}
	return args
}

// facts is what the next beat says of the backends: first what has changed, then the next share of them in turn, so that every
// record is touched again and again and its free slots are offered to the waiting.
func (s *pulse) facts(all []BackendFacts, share int) []BackendFacts {
	if len(all) <= share {
		return all
	}
	facts, taken := make([]BackendFacts, 0, maxBeatBackends), map[string]bool{}
	for _, f := range all {
		if s.published[f.ID] != f && len(facts) < maxBeatBackends/2 {
			facts, taken[f.ID] = append(facts, f), true
		}
	}
	most := min(len(facts)+share, maxBeatBackends)
	for range all {
		if len(facts) == most {
			break
		}
		f := all[s.next%len(all)]
		s.next = (s.next + 1) % len(all)
		if !taken[f.ID] {
			facts = append(facts, f)
		}
	}
	return facts
}

func (s *pulse) acknowledged(facts []BackendFacts) {
	for _, f := range facts {
		s.published[f.ID] = f
	}
}

// unheard follows a beat without an answer: what this replica saw of others before it counts no longer.
func (p *Placement) unheard(pool string, err error) {
	p.pulse[pool].watch.restart()
	if !errors.Is(err, pipeline.ErrUnavailable) && !errors.Is(err, context.Canceled) {
		p.cfg.Log.Warn().Err(err).Str("pool", pool).Msg("beat refused")
	}
}

// heardBeat is the beat that was answered.
type heardBeat struct {
	view PoolView
	sent time.Time
}

// heard acts on the answer to a beat and returns when the next replica is due to be found dead.
func (p *Placement) heard(ctx context.Context, beat heardBeat, r lua.BeatReply) (due time.Time) {
	pool, sent := beat.view.Name, beat.sent
	p.mu.Lock()
	p.acked[pool] = sent
	p.mu.Unlock()
	if pool == wholeFleet {
		p.beaten.Store(true)
	}
	for _, g := range r.Grants {
		p.grant(pool, g)
	}
	for _, rid := range r.Lost {
		p.holds.again(holdKey{pool, rid})
	}
	s := p.pulse[pool]
	for _, id := range r.Unreadable {
		if !s.told[id] {
			s.told[id] = true
			p.cfg.Log.Warn().Str("key", BackendRecord(pool, id)).Msg("backend is not used: its record cannot be read")
		}
	}
	p.compare(ctx, pool, r)
	p.recount(ctx, beat.view, r)
	if s.beats > 1 && p.forgotten(r) {
		s.beats = 0
	}
	dead, due := s.watch.look(sighted{self: p.cfg.Replica, sent: sent, now: time.Now(), beats: r.Replicas}, p.cfg.times)
	if pool == wholeFleet {
		p.saw(&s.watch, time.Now())
	}
	for _, d := range dead {
		p.bury(ctx, pool, sent, d)
	}
	return due
}
