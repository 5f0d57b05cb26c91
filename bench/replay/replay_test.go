package main

import (
	"testing"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/lab"
)

// small is a world of 4 engines.
func small(w workload, speed float64, replicas int) world {
	return world{workload: w, speed: speed, engines: 4, replicas: replicas, profile: engine.Profiles["8b-a100"],
		slots: 64, kvTokens: 430_000, seed: 1}
}

// registered is what one of these engines computes in a second, in thousandths of MU: in so short a run there is no time
// to learn it.
const registered = 140_000

// contest plays one policy after another, by name.
func contest(t *testing.T, w world, names ...string) map[string]outcome {
	t.Helper()
	store, closed, err := openStore(lab.SharedRedis(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closed)
	all := map[string]outcome{}
	for _, c := range (settings{policies: names, capacityMU: registered}).contestants(store) {
		o, err := play(w, c)
		if err != nil {
			t.Fatal(err)
		}
		all[c.name] = o
	}
	return all
}

func cut(t *testing.T, name string, most int) workload {
	t.Helper()
	all, err := loadTraces("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range all {
		if w.name == name {
			w.requests = w.requests[:min(most, len(w.requests))]
			return w
		}
	}
	t.Fatalf("no workload %q", name)
	return workload{}
}

// near: a is no more than a share above b.
func near(t *testing.T, what string, a, b, share float64) {
	t.Helper()
	if a > b*(1+share) {
		t.Errorf("%s %.3f, the perfect view %.3f", what, a, b)
	}
}

// Questions about shared documents: the goals of placement at small scale.
func TestDocumentsGoWhereTheyAreWarm(t *testing.T) {
	t.Parallel()
	all := contest(t, small(documents(1, 1200), 0.9, 4), "round robin", "least connections", "ring", "bounded ring", "perfect view", "headgate")
	ours, best, turns := all["headgate"], all["perfect view"], all["round robin"]
	near(t, "p50", ours.p50, best.p50, 0.1)
	near(t, "p95", ours.p95, best.p95, 0.1)
	near(t, "p99", ours.p99, best.p99, 0.1)
	if ours.hits < best.hits-0.02 {
		t.Errorf("hits %.3f, the perfect view %.3f", ours.hits, best.hits)
	}
	if ours.hits < 1.8*turns.hits || ours.p95 > turns.p95/1.5 {
		t.Errorf("%+v; in turns %+v", ours, turns)
	}
	for _, other := range []string{"round robin", "least connections", "ring", "bounded ring"} {
		if ours.p95 >= all[other].p95 || ours.p50 >= all[other].p50 {
			t.Errorf("%s: %+v; headgate %+v", other, all[other], ours)
		}
	}
	if ours.wrong > 0.03 {
		t.Errorf("%.3f of all tokens foretold as warm and not", ours.wrong)
	}
	if ours.load > 1.25 {
		t.Errorf("load %.2f", ours.load)
	}
}

// All prompts of this trace begin alike: that must not send them to one engine.
func TestASharedBeginningMakesNoHotSpot(t *testing.T) {
	t.Parallel()
	w := small(cut(t, "conversation", 800), 1, 4)
	w.engines = 8
	all := contest(t, w, "round robin", "least of the fleet", "perfect view", "headgate")
	ours, best, turns := all["headgate"], all["perfect view"], all["round robin"]
	near(t, "p50", ours.p50, best.p50, 0.1)
	near(t, "p95", ours.p95, best.p95, 0.1)
	if ours.hits < best.hits-0.02 || ours.hits < 1.5*turns.hits {
		t.Errorf("hits %.3f, the perfect view %.3f, in turns %.3f", ours.hits, best.hits, turns.hits)
	}
	if ours.p95 >= turns.p95 || ours.p95 >= all["least of the fleet"].p95 || ours.requests > 1.25 {
		t.Errorf("%+v; in turns %+v", ours, turns)
	}
}

// What one replica knows all know: their number changes nothing. Round robin gets worse with it.
func TestTheNumberOfReplicasDoesNotMatter(t *testing.T) {
	t.Parallel()
	w := cut(t, "code", 600)
	one := contest(t, small(w, 3, 1), "round robin", "headgate")
	many := contest(t, small(w, 3, 16), "round robin", "headgate")
	a, b := one["headgate"], many["headgate"]
	near(t, "p50", b.p50, a.p50, 0.05)
	near(t, "p95", b.p95, a.p95, 0.05)
	near(t, "p99", b.p99, a.p99, 0.05)
	if one["round robin"].p50 >= many["round robin"].p50 {
		t.Errorf("round robin of 1 %+v, of 16 %+v", one["round robin"], many["round robin"])
	}
}

// The queue: few slots, more requests. Everybody is served, and no engine runs more than its slots.
func TestTheQueueServesEverybody(t *testing.T) { // I3
	t.Parallel()
	w := small(documents(2, 400), 1, 4)
	w.slots = 4
	store, closed, err := openStore(lab.SharedRedis(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closed)
	s := newSimulation(w, newHeadgate(store, registered))
	most := 0
	s.watch = func() {
		for _, b := range s.engineList {
			most = max(most, len(b.running)+len(b.waiting))
		}
	}
	o := s.run()
	if o.queued < 20 {
		t.Fatalf("only %d requests waited", o.queued)
	}
	if most != w.slots {
		t.Errorf("an engine had %d requests at once, and has %d slots", most, w.slots)
	}
	for _, j := range s.jobs {
		if j.generated != j.output || j.engine < 0 {
			t.Fatalf("request %d: %d of %d tokens", j.id, j.generated, j.output)
		}
	}
}

// I1
func TestReplayIsDeterministic(t *testing.T) {
	t.Parallel()
	names := []string{"random", "round robin", "least connections", "bounded ring", "perfect view", "headgate"}
	one := contest(t, small(chat(3, 60), 1, 4), names...)
	two := contest(t, small(chat(3, 60), 1, 4), names...)
	for _, name := range names {
		if one[name] != two[name] {
			t.Errorf("%s: %+v, then %+v", name, one[name], two[name])
		}
	}
}
