package coordinator

import (
	"context"
	"time"
)

// Hasten shortens all clocks of placement by a factor.
func (c *PlacementConfig) Hasten(by int) {
	t := placementTimes{}.orPromised()
	for _, d := range []*time.Duration{&t.every, &t.dead, &t.jitter, &t.stale, &t.young} {
		*d /= time.Duration(by)
	}
	c.times = t
}

// Trust has the beat never look for leases that nobody knows.
func (p *Placement) Trust() { p.cfg.times.young = 24 * time.Hour }

// BeatOnce beats without Run, so that nothing is heard of announcements.
func (p *Placement) BeatOnce(ctx context.Context) { p.beat(ctx) }

// Heard is true once an announcement came through.
func (p *Placement) Heard() bool { return p.hearing.heard.Load() }
