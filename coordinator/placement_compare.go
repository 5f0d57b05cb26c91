package coordinator

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/scripts/lua"
)

// lease is one entry of held:<replica>.
type lease struct {
	attempt  int
	backend  string
	placedMS int64
}

// looksEvery is how many beats pass between two comparisons of the lists when the counts agree, and between two recounts.
const looksEvery = 30

// adoptAtOnce is how many leases one call takes back.
const adoptAtOnce = 100

// compare looks for leases that only one side knows, once the counts differed in two beats in a row, and now and then
// anyway: a place that was applied after its release, a release that was lost, a replica that was cleared by mistake. // P7
func (p *Placement) compare(ctx context.Context, pool string, r lua.BeatReply) {
	s := p.pulse[pool]
	s.beats++
	if r.Leases == int64(p.holds.slots(pool)) {
		s.differs = 0
	} else {
		s.differs++
	}
	if s.differs < 2 && (s.beats%looksEvery != 0 || r.Leases == 0) {
		return
	}
	s.differs = 0
	m, err := p.cfg.Store.Do(ctx, "HGETALL", Held(pool, p.cfg.Replica))
	if err != nil {
		return // the next beats count again
	}
	values, err := m.AsStrMap()
	if err != nil {
		return
	}
	surplus, lost := p.holds.compare(pool, readLeases(values), r.NowMS, p.cfg.times.young)
	for _, g := range surplus {
		p.giveBackNow(pool, g.RID, g.Attempt)
	}
	if len(surplus) > 0 || len(lost) > 0 {
		p.cfg.Log.Warn().Str("pool", pool).Int("surplus", len(surplus)).Int("lost", len(lost)).Msg("leases differed from redis")
	}
	p.adopt(ctx, pool, lost)
}

// adopt takes leases back for requests that run here. A request that is released meanwhile leaves a lease nobody knows,
// which a later beat gives back.
func (p *Placement) adopt(ctx context.Context, pool string, lost []lua.Adopted) {
	for part := range slices.Chunk(lost, adoptAtOnce) {
		r, err := lua.Adopt(p.cfg.Pipeline.Batch(), p.cfg.Store, PoolRoot(pool), p.cfg.Replica, part).Wait(ctx)
		if err != nil {
			return // they are still missing
		}
		p.holds.adopted(pool, part)
		if r.Adopted == 0 {
			continue
		}
		p.cfg.Log.Warn().Str("pool", pool).Int64("leases", r.Adopted).Int64("beyond_slots", r.Over).Msg("took leases back")
	}
}

// recount has the counts of the next backends in turn made what the leases say. The replica whose name is first does it, now
// and then.
func (p *Placement) recount(ctx context.Context, view PoolView, r lua.BeatReply) {
	pool, s := view.Name, p.pulse[view.Name]
	if living := p.Living(); s.beats%looksEvery != looksEvery/2 || len(view.Backends) == 0 || len(living) > 0 && living[0] != p.cfg.Replica {
		return
	}
	for _, other := range r.Replicas {
		if other.Replica < p.cfg.Replica {
			return
		}
	}
	ids := make([]string, min(len(view.Backends), maxBeatBackends))
	for i := range ids {
		ids[i] = SafeID(view.Backends[(s.recounted+i)%len(view.Backends)].ID)
	}
	s.recounted = (s.recounted + len(ids)) % len(view.Backends)
	found, err := lua.Recount(p.cfg.Pipeline.Batch(), p.cfg.Store, PoolRoot(pool), ids).Wait(ctx)
	if err != nil {
		return // another time
	}
	for _, b := range found.Repaired {
		p.cfg.Log.Warn().Str("pool", pool).Str("backend", b.Backend).Int64("held", b.Was).Int64("leases", b.Now).
			Msg("a count of leases was wrong and is repaired")
	}
}

// readLeases takes the values of held:<replica> apart; one that cannot be read is attempt 0 of long ago.
func readLeases(values map[string]string) map[string]lease {
	leases := make(map[string]lease, len(values))
	for rid, v := range values {
		var l lease
		if f := strings.Fields(v); len(f) >= 4 {
			l.attempt, _ = strconv.Atoi(f[0])
			l.backend = f[1]
			l.placedMS, _ = strconv.ParseInt(f[3], 10, 64)
		}
		leases[rid] = l
	}
	return leases
}

// compare returns the leases in Redis that no request here knows, and the slots held here that Redis does not list, which
// are missing from then on. Neither side is judged before it is `young` old.
func (h *holds) compare(pool string, inRedis map[string]lease, nowMS int64, young time.Duration) (surplus []lua.Grant, lost []lua.Adopted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for rid, l := range inRedis {
		held := h.of[pool][rid]
		known := held != nil && held.attempt == l.attempt
		if !known && nowMS-l.placedMS >= young.Milliseconds() {
			surplus = append(surplus, lua.Grant{RID: rid, Attempt: l.attempt, Backend: l.backend})
		}
	}
	now := time.Now()
	for rid, held := range h.of[pool] {
		if l, ok := inRedis[rid]; ok && l.attempt == held.attempt || held.backend == "" {
			continue
		}
		if held.state == holding && now.Sub(held.since) >= young {
			held.state, held.since = missing, now
		}
		if held.state == missing {
			lost = append(lost, lua.Adopted{RID: rid, Attempt: held.attempt, Backend: held.backend, MU: held.load.mu,
				OutputMU: held.load.outputMU, Tenant: held.load.tenant})
		}
	}
	return surplus, lost
}

// adopted: these slots are listed again.
func (h *holds) adopted(pool string, leases []lua.Adopted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range leases {
		if held := h.of[pool][l.RID]; held != nil && held.attempt == l.Attempt && held.state == missing {
			held.hold(held.backend)
		}
	}
}
