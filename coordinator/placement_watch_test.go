package coordinator

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// second drives a watch by the second of its own clock.
type second struct {
	w  watch
	at time.Time
}

// look answers a beat sent at s seconds, 100 ms later.
func (s *second) look(at float64, beats ...lua.ReplicaBeat) (dead []string, due float64) {
	sent := s.at.Add(time.Duration(at * float64(time.Second)))
	t := placementTimes{}.orPromised()
	t.jitter = 0
	found, when := s.w.look(sighted{self: "self", sent: sent, now: sent.Add(100 * time.Millisecond), beats: beats}, t)
	for _, b := range found {
		dead = append(dead, b.Replica)
	}
	return dead, when.Sub(s.at).Seconds()
}

func beatOf(replica string, ms int64) lua.ReplicaBeat {
	return lua.ReplicaBeat{Replica: replica, BeatMS: ms}
}

func TestWatchFindsDeadWhoseBeatStood(t *testing.T) {
	t.Parallel()
	s := second{at: time.Now()}
	for at := range 12 {
		dead, due := s.look(float64(at), beatOf("self", 5), beatOf("dead", 7), beatOf("alive", int64(at)))
		if len(dead) > 0 {
			t.Fatalf("at %d s: %v", at, dead)
		}
		if due != 12.1 { // first seen at 0.1
			t.Fatalf("at %d s: due at %v", at, due)
		}
	}
	if dead, _ := s.look(12.05, beatOf("dead", 7)); len(dead) > 0 {
		t.Fatalf("after 11.95 s: %v", dead)
	}
	for _, at := range []float64{12.1, 13} { // until it is gone from the list
		if dead, _ := s.look(at, beatOf("self", 5), beatOf("dead", 7), beatOf("alive", 99)); !slices.Equal(dead, []string{"dead"}) {
			t.Fatalf("at %v s: %v", at, dead)
		}
	}
}

// Redis' clock counts for nothing: a beat that changes is a beat, also backwards.
func TestWatchTrustsChangesNotClocks(t *testing.T) {
	t.Parallel()
	s := second{at: time.Now()}
	for at := range 60 {
		if dead, _ := s.look(float64(at), beatOf("other", int64(1000-at))); len(dead) > 0 {
			t.Fatalf("at %d s: %v", at, dead)
		}
	}
}

// A process that stood still, or had no answers, has seen nothing meanwhile.
func TestWatchStartsAnewAfterAGap(t *testing.T) {
	t.Parallel()
	s := second{at: time.Now()}
	for at := range 10 {
		s.look(float64(at), beatOf("other", 7))
	}
	if dead, _ := s.look(60, beatOf("other", 7)); len(dead) > 0 {
		t.Fatalf("frozen for 50 s, then %v", dead)
	}
	s.look(61, beatOf("other", 7))
	s.w.restart() // an own beat was not acknowledged
	for at := 62; at < 74; at++ {
		if dead, _ := s.look(float64(at), beatOf("other", 7)); len(dead) > 0 {
			t.Fatalf("at %d s: %v", at, dead)
		}
	}
	if dead, _ := s.look(74.5, beatOf("other", 7)); len(dead) != 1 {
		t.Fatal("not dead after 12 s of answers")
	}
}

// A beat without an answer: what was seen before it counts no longer.
func TestWatchStartsAnewAfterAnUnansweredBeat(t *testing.T) {
	t.Parallel()
	p := NewPlacement(PlacementConfig{})
	p.expect([]PoolView{{Name: "p"}}, time.Now())
	s := second{at: time.Now()}
	for at := range 12 {
		s.look(float64(at), beatOf("other", 7))
	}
	p.pulse["p"].watch = s.w
	p.unheard("p", pipeline.ErrUnavailable)
	s.w = p.pulse["p"].watch
	if dead, _ := s.look(12.5, beatOf("other", 7)); len(dead) > 0 {
		t.Fatalf("%v", dead)
	}
}

// With the promised times a killed replica is found within 15 s: a beat, a round trip, the silence, the jitter.
func TestWatchKeepsThePromise(t *testing.T) {
	t.Parallel()
	p := placementTimes{}.orPromised()
	const roundTrip = 450 * time.Millisecond
	if worst := p.every + roundTrip + p.dead + p.jitter + 2*roundTrip; worst >= 15*time.Second {
		t.Fatalf("slots of a killed replica are free after %v", worst)
	}
	if p.stale+2*roundTrip >= p.dead {
		t.Fatalf("a replica trusts its leases for %v, others clear them after %v", p.stale, p.dead)
	}
}

// What beats cost grows with the backends or with the replicas, not with both; each backend is touched again soon.
func TestBeatsShareTheBackends(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ backends, replicas, share int }{{0, 1, 0}, {3, 0, 12}, {1000, 1, 64}, {3, 3, 4}, {50, 4, 50}, {50, 100, 2},
		{1000, 100, 40}, {1, 300, 1}} {
		if got := beatShare(c.backends, c.replicas); got != c.share {
			t.Errorf("%d backends, %d replicas: %d each, want %d", c.backends, c.replicas, got, c.share)
		}
	}
	all, touched := make([]BackendFacts, 50), map[string]int{}
	for i := range all {
		all[i].ID = strconv.Itoa(i)
	}
	p := &Placement{pulse: map[string]*pulse{}}
	for range 100 {
		p.expect([]PoolView{{Name: "p", Backends: all}}, time.Now())
		s := p.pulse["p"]
		s.acknowledged(all)
		for range 10 { // seconds
			for _, f := range s.facts(all, beatShare(50, 100)) {
				touched[f.ID]++
			}
		}
		delete(p.pulse, "p")
	}
	for _, f := range all {
		if n := touched[f.ID]; n < 5 || n > 95 { // 40 on average, in ten seconds
			t.Errorf("backend %s was touched %d times", f.ID, n)
		}
	}
}

// Every backend's turn comes, a changed one's at once.
func TestBeatTakesTurnsThroughManyBackends(t *testing.T) {
	t.Parallel()
	var all []BackendFacts
	for i := range 1000 {
		all = append(all, BackendFacts{ID: string(rune('a'+i%26)) + time.Duration(i).String(), Slots: 1})
	}
	s := pulse{published: map[string]BackendFacts{}}
	for range 2 * len(all) / (maxBeatBackends / 2) {
		facts := s.facts(all, maxBeatBackends)
		if len(facts) > maxBeatBackends {
			t.Fatalf("%d backends in one beat", len(facts))
		}
		s.acknowledged(facts)
	}
	if len(s.published) != len(all) {
		t.Fatalf("%d of %d backends published", len(s.published), len(all))
	}
	all[777].Draining = true
	if facts := s.facts(all, maxBeatBackends); facts[0] != all[777] {
		t.Fatalf("the changed backend is not first: %v", facts[0])
	}
	seen := map[string]bool{}
	s.acknowledged(s.facts(all, maxBeatBackends))
	for range len(all)/maxBeatBackends + 1 {
		for _, f := range s.facts(all, maxBeatBackends) {
			if seen[f.ID] && len(seen) < len(all) {
				t.Fatalf("%s again before the others had their turn", f.ID)
			}
			seen[f.ID] = true
		}
	}
	if len(seen) != len(all) {
		t.Fatalf("%d of %d had their turn", len(seen), len(all))
	}
}
