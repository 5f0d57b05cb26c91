package coordinator

import (
	"testing"
	"time"
)

func TestCapacityIsOfTheBackendsInUse(t *testing.T) {
	t.Parallel()
	used := EngineState{Slots: 10, Held: 4, RateMU: 100, registered: true}
	out := used
	out.OutOfUse = true
	for name, c := range map[string]struct {
		pool    Capacity
		mu      float64
		load    float64
		desired int
	}{
		"nobody asks":               {Capacity{Engines: []EngineState{{Slots: 10, RateMU: 100}}}, 100, 0, 1},
		"slots":                     {Capacity{Engines: []EngineState{used, used, out}}, 200, 12.0 / 20, 2},
		"waiting requests":          {Capacity{Waiting: 20, Engines: []EngineState{used, used}}, 200, 0.4, 4},
		"offered work":              {Capacity{OfferedMU: 500, ServedMU: 190, Engines: []EngineState{used, used}}, 200, 0.95, 7},
		"waiting work in a minute":  {Capacity{WaitingMU: 60 * 250, Engines: []EngineState{used}}, 100, 0.4, 4},
		"a rate nobody registered":  {Capacity{OfferedMU: 500, ServedMU: 190, Engines: []EngineState{{Slots: 10, Held: 4, RateMU: 100}}}, 100, 0.4, 1},
		"all out of use":            {Capacity{Waiting: 20, Engines: []EngineState{out, out}}, 0, 0, 4},
		"requests of others":        {Capacity{Engines: []EngineState{{Slots: 10, External: 9}}}, 0, 0.9, 2},
		"no backend is registered":  {Capacity{}, 0, 0, 0},
		"exactly the wanted load":   {Capacity{Engines: []EngineState{{Slots: 10, Held: 8}}}, 0, 0.8, 1},
		"more than the wanted load": {Capacity{Engines: []EngineState{{Slots: 10, Held: 9}}}, 0, 0.9, 2},
	} {
		if c.pool.sum(); c.pool.CapacityMU != c.mu || c.pool.Utilisation != c.load || c.pool.Desired != c.desired {
			t.Errorf("%s: capacity %v, load %v, desired %d; want %v, %v, %d", name, c.pool.CapacityMU, c.pool.Utilisation, c.pool.Desired, c.mu, c.load, c.desired)
		}
	}
}

// Advice rises at once and falls when fewer were enough all the time, to the most that was needed in it.
func TestCapacityAdviceFallsLate(t *testing.T) {
	t.Parallel()
	const minute = int64(time.Minute / time.Millisecond)
	var a advice
	for i, step := range []struct {
		at, wanted int64
		want       int
	}{{1, 2, 2}, {2, 5, 5}, {3, 2, 5}, {4, 3, 5}, {7, 1, 5}, {8, 1, 3}, {9, 1, 3}, {10, 3, 3}, {14, 1, 3}, {18, 1, 3}, {19, 1, 1}} {
		a = parseAdvice(a.next(int(step.wanted), step.at*minute).String())
		if a.desired != step.want {
			t.Errorf("step %d, minute %d, %d wanted: %+v, want %d", i, step.at, step.wanted, a, step.want)
		}
	}
	if parseAdvice("") != (advice{}) || parseAdvice("x 1 2") != (advice{}) {
		t.Error("advice out of nothing")
	}
}

func TestCapacityRatesAreSmooth(t *testing.T) {
	t.Parallel()
	var r pace
	at := time.Now()
	if r.count(5_000, at) != 0 {
		t.Error("a rate out of one look")
	}
	sum := int64(5_000)
	for range 15 {
		at, sum = at.Add(2*time.Second), sum+200
		r.count(sum, at)
	}
	if r.perSecond < 60 || r.perSecond > 66 { // 1 - 1/e of 100
		t.Errorf("after half a minute at 100 a second: %v", r.perSecond)
	}
	if r.count(0, at.Add(time.Second)) < 0 {
		t.Error("less than nothing")
	}
}
