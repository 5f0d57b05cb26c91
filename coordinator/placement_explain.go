package coordinator

import (
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// Explanation is what placement would weigh for an ask now. MU are thousandths of a model unit.
type Explanation struct {
	Waiting  int64 // requests in the queue, which go first
	MeanMU   int64 // of a request of the pool: each request of others counts so much
	Backends []Weighed
}

// Weighed is one candidate, in ring order:
//
//	Score = (BacklogMU + External · MeanMU + UncachedMU + 0.1 · OutputHeldMU) / RateMU
type Weighed struct {
	Backend       string
	Chosen        bool
	WhyNot        string // "" when a request may go there now
	Slots, Held   int64
	External      int64 // requests that are not the fleet's
	KV            int64 // use of the KV cache, percent × 100
	CooldownUntil time.Time
	BacklogMU     int64 // prompt work that lies before it, drained to now
	UncachedMU    int64 // of this prompt's work
	Matched       int64 // prompt tokens that are warm
	OutputHeldMU  int64
	RateMU        int64 // per second
	Score         time.Duration
}

var whyNot = map[lua.WhyNot]string{
	lua.Unreadable: "unreadable", lua.DrainingOrNoSlots: "draining", lua.CoolsDown: "cooling_down", lua.CacheFull: "kv_cache_full",
	lua.NoFreeSlot: "no_free_slot", lua.ToBeAvoided: "failed_before",
}

// Explain declares the look at what Place would weigh for a now. It changes nothing and places nothing.
func (p *Placement) Explain(b *pipeline.Batch, a Ask) *pipeline.Handle[Explanation] {
	return lua.Weigh(b, p.cfg.Store, PoolRoot(a.Pool), p.placeArgs(a), func(r lua.WeighReply) Explanation {
		return explanationOf(r, func(i int) string { return a.Candidates[i].ID })
	})
}

// explanationOf reads a reply; id names the candidate of a row.
func explanationOf(r lua.WeighReply, id func(int) string) Explanation {
	e := Explanation{Waiting: r.Waiting, MeanMU: r.MeanMU}
	for i, row := range r.Rows {
		w := Weighed{Backend: id(i), Chosen: row.Chosen, WhyNot: whyNot[row.WhyNot], Slots: row.Slots, Held: row.Held,
			External: row.External, KV: row.KV, BacklogMU: row.BacklogMU, UncachedMU: row.UncachedMU, Matched: row.Matched,
			OutputHeldMU: row.OutputHeldMU, RateMU: row.RateMU, Score: time.Duration(row.ScoreMS) * time.Millisecond}
		if row.CooldownUntilMS > r.NowMS {
			w.CooldownUntil = time.UnixMilli(row.CooldownUntilMS)
		}
		e.Backends = append(e.Backends, w)
	}
	return e
}
