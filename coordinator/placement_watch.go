package coordinator

import (
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/scripts/lua"
)

// watch judges the other replicas of one pool: dead is whose beat this replica saw unchanged for long enough by its own
// monotonic clock, while its own beats were answered all the time. Neither Redis' clock nor a time during which this
// replica or Redis stood still counts against anybody.
type watch struct {
	seen map[string]sighting
	last time.Time // when the last answer came
}

type sighting struct {
	beatMS int64
	since  time.Time     // when an answer first showed this beat
	jitter time.Duration // on top of what all wait
}

// sighted is one answer to a beat: sent before, now after it.
type sighted struct {
	self      string
	sent, now time.Time
	beats     []lua.ReplicaBeat
}

// restart forgets all sightings.
func (w *watch) restart() { w.seen = nil }

// look takes an answer in and returns who is dead, and when the next one is due if it does not beat again (far away when
// nobody is). The dead are returned by each look until they are gone from the answers.
func (w *watch) look(s sighted, t placementTimes) (dead []lua.ReplicaBeat, due time.Time) {
	if s.sent.Sub(w.last) > 3*t.every {
		w.restart() // this process stood still
	}
	w.last = s.now
	due = s.now.Add(t.dead)
	seen := make(map[string]sighting, len(s.beats))
	for _, b := range s.beats {
		if b.Replica == s.self {
			continue
		}
		at, known := w.seen[b.Replica]
		if !known || at.beatMS != b.BeatMS {
			at = sighting{beatMS: b.BeatMS, since: s.now, jitter: time.Duration(rand.Int64N(int64(t.jitter) + 1))}
		}
		seen[b.Replica] = at
		// Between the answer that first showed the beat and the question whose answer shows it again. // P6
		switch end := at.since.Add(t.dead + at.jitter); {
		case !s.sent.Before(end):
			dead = append(dead, b)
		case end.Before(due):
			due = end
		}
	}
	w.seen = seen
	return dead, due
}
