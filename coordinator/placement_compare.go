package coordinator

import (
	"context"
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

// compare looks for leases that only one side knows, once the counts differed in two beats in a row: a place that was
// applied after its release, a release that was lost. // P7
func (p *Placement) compare(ctx context.Context, pool string, r lua.BeatReply) {
	s := p.pulse[pool]
	if r.Leases == int64(p.holds.countIn(pool, holding)) {
		s.differs = 0
		return
	}
	if s.differs++; s.differs < 2 {
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
	if len(surplus) > 0 || lost > 0 {
		p.cfg.Log.Warn().Str("pool", pool).Int("surplus", len(surplus)).Int("lost", lost).Msg("leases differed from redis")
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

// compare returns the leases in Redis that no request here knows, and marks and counts the slots held here that Redis
// does not list. Neither side is judged before it is `young` old.
func (h *holds) compare(pool string, inRedis map[string]lease, nowMS int64, young time.Duration) (surplus []lua.Grant, lost int) {
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
		if held.state != holding || now.Sub(held.since) < young {
			continue
		}
		if l, ok := inRedis[rid]; !ok || l.attempt != held.attempt {
			held.state = missing
			lost++
		}
	}
	return surplus, lost
}
