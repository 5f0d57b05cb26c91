package faults

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What single runs check beside the invariants.

// spared checks that an engine is given no request between two steps, and is used again within 5 s of the second.
func spared(i int, from, to string) func(*testing.T, *world, *books) {
	return func(t *testing.T, w *world, _ *books) {
		t.Helper()
		back := false
		for _, g := range w.engines[i].generations() {
			if g.begun.After(w.done[from]) && g.begun.Before(w.done[to]) {
				t.Errorf("b%d was given %s %v before it was well", i+1, g.id, w.done[to].Sub(g.begun))
			}
			back = back || g.begun.After(w.done[to]) && g.begun.Before(w.done[to].Add(5*time.Second))
		}
		if !back {
			t.Errorf("b%d was not used within 5 s of being well", i+1)
		}
	}
}

// neverAbove checks that no engine ever computed more requests at once, by its own count of every step.
func neverAbove(slots int) func(*testing.T, *world, *books) {
	return func(t *testing.T, w *world, _ *books) {
		t.Helper()
		for _, e := range w.engines {
			var state struct {
				Most        int `json:"max_running"`
				Generations int
			}
			answer, err := http.Get("http://" + e.Listen + "/sim/state")
			if err != nil {
				t.Fatal(err)
			}
			err = json.NewDecoder(answer.Body).Decode(&state)
			answer.Body.Close()
			t.Logf("%s computed %d requests, %d at once at most", e.ID, state.Generations, state.Most)
			if err != nil || state.Most > slots || state.Most == 0 {
				t.Errorf("%s computed %d requests at once, has %d slots: %v", e.ID, state.Most, slots, err)
			}
		}
	}
}

// says checks that every replica's log has the text: the fault was one.
func says(text string) func(*testing.T, *world, *books) {
	return func(t *testing.T, w *world, _ *books) {
		t.Helper()
		for _, r := range w.Replicas {
			if !strings.Contains(r.Output(), text) {
				t.Errorf("%s does not say %q: the run shows nothing", r.Name, text)
			}
		}
	}
}
