package coordinator

import (
	"fmt"
	"math"
	"time"
)

// Capacity is what a pool of the fleet can do and what is asked of it, as Redis knows it. Work is in model units as estimated
// when requests were placed.
type Capacity struct {
	Pool string
	At   time.Time

	CapacityMU  float64 // MU per second of the backends in use
	ServedMU    float64 // MU per second of answered requests, smoothed over half a minute
	OfferedMU   float64 // MU per second of requests that wanted a slot, also of those that got none
	WaitingMU   float64 // MU of the requests in the queue
	Utilisation float64 // 0 to 1 and above: see load
	Desired     int     // backends that would carry it; it rises at once and falls late

	Backends, Used        int // registered; of these in use: neither draining nor cooling down
	Slots, Held, External int64
	Waiting               int64 // requests in the queue
	Registered            bool  // every backend in use says its capacity_mu: CapacityMU is no guess

	Engines []EngineState // by backend id
}

// EngineState is what the fleet knows of one backend.
type EngineState struct {
	Backend        string
	Slots, Held    int64
	BacklogMU      float64 // prompt work that lies before it, as of the last request there
	CooldownUntil  time.Time
	ProbesFailed   int64 // in a row
	OutOfUse       bool  // it drains or cools down
	RateMU         float64
	registered     bool
	Known          bool // the engine was read in the last 5 s; else the figures below are 0
	External       int64
	Running, Queue int64   // what the engine itself says: requests that run and that wait in it
	KVUse          float64 // 0 to 1
	PrefixQueries  int64   // prompt tokens looked up in its prefix cache since its process began, and those found there
	PrefixHits     int64
}

const (
	// wantedLoad is how much of a pool's slots, or work, is to be in use: what is above it is room for bursts, and for the
	// time a new engine takes to load its weights.
	wantedLoad = 0.8
	// clearWithin is the time in which what waits is to be served.
	clearWithin = time.Minute
	// fallAfter is how long fewer backends must have been enough before fewer are advised.
	fallAfter = 5 * time.Minute
)

// sum fills in what follows from the engines.
func (c *Capacity) sum() {
	all := *c // with those out of use, for a pool in which none is in use
	c.Registered = true
	for _, e := range c.Engines {
		all.Slots, all.CapacityMU = all.Slots+e.Slots, all.CapacityMU+e.RateMU
		c.Backends++
		c.Held += e.Held
		c.External += e.External
		if e.OutOfUse {
			continue
		}
		c.Used++
		c.Slots += e.Slots
		c.CapacityMU += e.RateMU
		c.Registered = c.Registered && e.registered
	}
	c.Registered = c.Registered && c.Used > 0
	c.Utilisation = c.load()
	if c.Used > 0 {
		c.Desired = c.wanted(float64(c.Slots)/float64(c.Used), c.CapacityMU/float64(c.Used))
	} else if c.Backends > 0 {
		c.Desired = c.wanted(float64(all.Slots)/float64(c.Backends), all.CapacityMU/float64(c.Backends))
	}
}

// load is how much of the slots is in use, or of the registered work, whichever is more.
func (c *Capacity) load() float64 {
	share := 0.0
	if c.Slots > 0 {
		share = float64(c.Held+c.External) / float64(c.Slots)
	}
	if c.Registered && c.CapacityMU > 0 {
		share = max(share, c.ServedMU/c.CapacityMU)
	}
	return share
}

// wanted is how many backends of so many slots and so much work per second carry what is asked now: at least one.
func (c *Capacity) wanted(slots, mu float64) int {
	n := 1.0
	if slots > 0 {
		n = max(n, math.Ceil(float64(c.Held+c.External+c.Waiting)/(wantedLoad*slots)))
	}
	if c.Registered && mu > 0 {
		n = max(n, math.Ceil((c.OfferedMU+c.WaitingMU/clearWithin.Seconds())/(wantedLoad*mu)))
	}
	return int(min(n, 1e6))
}

// advice is how many backends a pool was last said to need. The zero value was never given.
type advice struct {
	desired int
	sinceMS int64 // fewer have been enough since then; 0: they are not
	most    int   // that were needed since then
}

// next is the advice once so many are wanted: more at once, fewer when fewer have been enough for fallAfter, and then as
// many as were needed in that time.
func (a advice) next(wanted int, nowMS int64) advice {
	switch {
	case wanted >= a.desired:
		return advice{desired: wanted}
	case a.sinceMS == 0 || a.sinceMS > nowMS:
		return advice{a.desired, nowMS, wanted}
	}
	a.most = max(a.most, wanted)
	if nowMS-a.sinceMS >= fallAfter.Milliseconds() {
		return advice{desired: a.most}
	}
	return a
}

func (a advice) String() string { return fmt.Sprintf("%d %d %d", a.desired, a.sinceMS, a.most) }

// parseAdvice reads what String wrote; anything else is no advice.
func parseAdvice(text string) (a advice) {
	if n, err := fmt.Sscanf(text, "%d %d %d", &a.desired, &a.sinceMS, &a.most); n != 3 || err != nil {
		return advice{}
	}
	return a
}

// pace is a rate per second, smoothed. The zero value has counted nothing.
type pace struct {
	perSecond float64
	last      int64
	at        time.Time
}

// smoothing is the time in which a rate follows two thirds of a change.
const smoothing = 30 * time.Second

// count takes in a sum that only grows, or nearly.
func (r *pace) count(sum int64, now time.Time) float64 {
	if dt := now.Sub(r.at).Seconds(); !r.at.IsZero() && dt > 0 {
		r.perSecond += (float64(sum-r.last)/dt - r.perSecond) * (1 - math.Exp(-dt/smoothing.Seconds()))
		r.perSecond = max(0, r.perSecond)
	}
	r.last, r.at = sum, now
	return r.perSecond
}
