package coordinator

import (
	"slices"
	"testing"
	"time"
)

func TestLivingAreThoseWhoseBeatsChange(t *testing.T) {
	t.Parallel()
	p := NewPlacement(PlacementConfig{Replica: "self"})
	if got := p.Living(); len(got) != 0 {
		t.Fatalf("before the first beat: %v", got)
	}
	s := second{at: time.Now()}
	for at, want := range map[int][]string{0: {"a", "b", "self"}, 1: {"a", "b", "self"}, 3: {"a", "b", "self"}, 4: {"a", "self"}} {
		s.w = watch{}
		for i := range at + 1 {
			s.look(float64(i), beatOf("self", int64(i)), beatOf("b", 7), beatOf("a", int64(i)))
		}
		p.saw(&s.w, s.at.Add(time.Duration(at)*time.Second+100*time.Millisecond))
		if got := p.Living(); !slices.Equal(got, want) {
			t.Errorf("at %d s: %v, want %v", at, got, want)
		}
	}
}
