package coordinator

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/headgate/headgate/scripts/lua"
)

// clearAtOnce is how many waiters and leases of a dead replica one call takes: a few milliseconds of Redis.
const clearAtOnce = 200

// buryTimeout bounds one try to clear a dead replica in one pool. Who is not cleared then is found dead again by the next
// beat.
const buryTimeout = 20 * time.Second

// burying is who is being cleared now, so that the next beat does not start the same again.
type burying struct {
	mu  sync.Mutex
	now map[holdKey]time.Time // by pool and replica: when it ended; zero: it goes on
	wg  sync.WaitGroup

	stuck map[holdKey]complaint // what was logged of a dead replica that is not cleared yet
}

// complaint is a line of the log that says why a dead replica is not cleared.
type complaint struct {
	text string
	at   time.Time
}

// complainAgain is when the log is told again of the same dead replica for the same reason: it is tried every second.
const complainAgain = time.Minute

// complains reports whether the log is to be told this.
func (b *burying) complains(key holdKey, text string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, told := b.stuck[key]; told && last.text == text && now.Sub(last.at) < complainAgain {
		return false
	}
	if b.stuck == nil {
		b.stuck = map[holdKey]complaint{}
	}
	b.stuck[key] = complaint{text, now}
	return true
}

// done forgets what was told of a dead replica.
func (b *burying) done(key holdKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.stuck, key)
}

// start begins work unless it goes on, or ended after asked: a beat that was sent then may still name who was cleared since.
func (b *burying) start(key holdKey, asked time.Time, work func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.now, func(_ holdKey, ended time.Time) bool { return !ended.IsZero() && ended.Before(asked) })
	if _, newer := b.now[key]; newer {
		return
	}
	if b.now == nil {
		b.now = map[holdKey]time.Time{}
	}
	b.now[key] = time.Time{}
	b.wg.Go(func() {
		work()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.now[key] = time.Now()
	})
}

func (b *burying) wait() { b.wg.Wait() }

// bury clears a replica that a beat sent at asked found dead in a pool, beside the beat. In the fleet what it reserved is settled first: if this replica
// dies meanwhile, another finds the dead one still listed and does it again. In a pool its slots come first.
func (p *Placement) bury(ctx context.Context, pool string, asked time.Time, dead lua.ReplicaBeat) {
	key := holdKey{pool, dead.Replica}
	p.burying.start(key, asked, func() {
		ctx, cancel := context.WithTimeout(ctx, buryTimeout)
		defer cancel()
		if pool == wholeFleet && !p.settle(ctx, dead) {
			return
		}
		taken, err := p.clear(ctx, pool, lua.ClearArgs{Replica: dead.Replica, BeatMS: dead.BeatMS, Most: clearAtOnce})
		switch {
		case err != nil && !p.burying.complains(key, err.Error(), time.Now()):
		case err != nil:
			p.cfg.Log.Warn().Err(err).Str("dead", dead.Replica).Str("pool", pool).Msg("a dead replica is not cleared yet")
		case taken.Same:
			p.burying.done(key)
			p.cfg.Log.Info().Str("dead", dead.Replica).Str("pool", pool).Int64("leases", taken.Released).
				Int64("waiting", taken.Dequeued).Msg("cleared a dead replica")
			if pool != wholeFleet {
				p.settleFromPool(ctx, dead)
			}
		default: // it lives, or another has cleared it
			p.burying.done(key)
		}
	})
}

// settle has the reservations of a dead replica settled; false: not yet.
func (p *Placement) settle(ctx context.Context, dead lua.ReplicaBeat) bool {
	if p.cfg.OnDead == nil {
		return true
	}
	err := p.cfg.OnDead(ctx, dead.Replica)
	if err != nil && p.burying.complains(holdKey{wholeFleet, dead.Replica}, err.Error(), time.Now()) {
		p.cfg.Log.Warn().Err(err).Str("dead", dead.Replica).Msg("reservations of a dead replica are not settled yet")
	}
	return err == nil
}

// settleFromPool: a replica killed before its first beat is known only to the pools it placed in. What it reserved is
// settled from there; where that fails the fleet's list remembers it, and it is tried again.
func (p *Placement) settleFromPool(ctx context.Context, dead lua.ReplicaBeat) {
	if p.settle(ctx, dead) {
		return
	}
	if _, err := p.cfg.Store.Do(ctx, "ZADD", Replicas(wholeFleet), "NX", strconv.FormatInt(dead.BeatMS, 10), dead.Replica); err != nil {
		p.cfg.Log.Error().Err(err).Str("dead", dead.Replica).Msg("reservations of a dead replica wait for their tenants' next requests")
	}
}

// clear repeats until nothing is left or the replica has beaten again, and returns the sums.
func (p *Placement) clear(ctx context.Context, pool string, a lua.ClearArgs) (sum lua.ClearReply, err error) {
	for {
		r, err := lua.Clear(p.cfg.Pipeline.Batch(), p.cfg.Store, PoolRoot(pool), a).Wait(ctx)
		if err != nil || !r.Same {
			return sum, err
		}
		sum.Same = true
		sum.Released += r.Released
		sum.Dequeued += r.Dequeued
		sum.Granted += r.Granted
		if r.Left == 0 {
			return sum, nil
		}
	}
}

// Leave gives back all this replica still holds and takes it off the lists, so that nobody waits for its death. It is
// called once, after Run has returned and the requests are done: a Place after it would list the replica again.
func (p *Placement) Leave(ctx context.Context) error {
	for _, v := range p.views() {
		if _, err := p.clear(ctx, v.Name, lua.ClearArgs{Replica: p.cfg.Replica, Most: clearAtOnce}); err != nil {
			if v.Name == wholeFleet {
				return fmt.Errorf("leave the fleet: %w", err)
			}
			return fmt.Errorf("leave pool %q: %w", v.Name, err)
		}
	}
	return nil
}
