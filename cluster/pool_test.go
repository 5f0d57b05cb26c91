package cluster

import (
	"slices"
	"testing"
)

func TestCandidatesLeaveOutWhatIsNotUsable(t *testing.T) { // L2
	t.Parallel()
	p := poolOf("p", 6, nil)
	for key := range uint64(200) {
		all := slices.Clone(p.Candidates(key, 0))
		down, draining, critical := all[0], all[2], all[3]
		down.state.up.Store(false)
		draining.Draining = true
		critical.critical = true
		got := p.Candidates(key, 0)
		if want := []*Backend{all[1], all[4], all[5]}; !slices.Equal(got, want) {
			t.Fatalf("key %d: %v, want %v", key, ids(got), ids(want))
		}
		if two := p.Candidates(key, 2); !slices.Equal(two, got[:2]) {
			t.Fatalf("key %d: the first two are %v", key, ids(two))
		}
		if p.Home(key) != down {
			t.Fatalf("key %d: the home moved", key)
		}
		down.state.up.Store(true)
		draining.Draining, critical.critical = false, false
		if again := p.Candidates(key, 0); !slices.Equal(again, all) {
			t.Fatalf("key %d: not as before: %v", key, ids(again))
		}
	}
}

func TestCandidatesForAModel(t *testing.T) {
	t.Parallel()
	p := poolOf("p", 5, nil)
	p.Backends[3].Models = []string{"m", "lora"}
	if got := p.CandidatesFor("lora", 7, 0); len(got) != 1 || got[0] != p.Backends[3] {
		t.Errorf("candidates %v", ids(got))
	}
	if got := p.CandidatesFor("ghost", 7, 0); len(got) != 0 {
		t.Errorf("candidates %v", ids(got))
	}
}

func TestCandidatesBeyondTheFirstThirtyTwo(t *testing.T) {
	t.Parallel()
	p := poolOf("p", 50, nil)
	first := p.Candidates(1, 0)
	for _, b := range first {
		b.state.up.Store(false)
	}
	got := p.Candidates(1, 4)
	if len(got) != 4 {
		t.Fatalf("18 backends are well, but the candidates are %v", ids(got))
	}
	for _, b := range p.Backends {
		b.state.up.Store(false)
	}
	if got := p.Candidates(1, 0); len(got) != 0 || p.Usable() {
		t.Errorf("nobody is well, but the candidates are %v", ids(got))
	}
}

func TestPoolKeepsItsRingWhileItsMembersStay(t *testing.T) { // L2
	t.Parallel()
	one := poolOf("p", 4, nil)
	same := poolOf("p", 4, one)
	same.Backends[0].Addr = "elsewhere:1"
	if same.ring != one.ring {
		t.Error("the ring was made anew for the same members")
	}
	if more := poolOf("p", 5, one); more.ring == one.ring {
		t.Error("the ring does not know the new member")
	}
}

func TestShortestContext(t *testing.T) {
	p := newPool("p", []*Backend{
		{ID: "a", maxLen: listing{"m": 8192, "n": 0}},
		{ID: "b", maxLen: listing{"m": 4096}},
		{ID: "c", maxLen: listing{"m": 0}}, // it does not say
		{ID: "d"},
	}, nil)
	for model, want := range map[string]int64{"m": 4096, "n": 0, "other": 0} {
		if got := p.ShortestContext(model); got != want {
			t.Errorf("%s: %d, want %d", model, got, want)
		}
	}
}
