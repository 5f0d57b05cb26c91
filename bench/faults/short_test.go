package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
)

const s = time.Second

// TestShort plays the runs that every change has to pass, side by side.
func TestShort(t *testing.T) {
	t.Parallel()
	everything := chaos(7, 12*s)
	everything.load.timeout, everything.then = 8*s, 8*s
	for _, r := range append(short, everything) {
		// They share the machine with all other tests: a call may wait longer for a processor than for Redis.
		r.on.env = append(slices.Clone(r.on.env), "HG_REDIS_TIMEOUT=2s")
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			r.play(t)
		})
	}
}

var short = []run{
	{
		name: "a replica is killed and started again",
		load: load{leave: 0.1, streams: 4, tokens: 200},
		do: []step{
			{at: 1 * s, what: "r1 is killed", do: killReplica(0)},
			{at: 2 * s, what: "r1 is started", do: startReplica(0), repair: true},
		},
		may: []string{reset, cut},
	},
	{
		name: "redis is killed, and back with its append-only file 3 s later",
		on:   setup{redis: []string{"--appendonly", "yes", "--appendfsync", "always"}},
		load: load{leave: 0.1, streams: 4, tokens: 200},
		do: []step{
			{at: 1 * s, what: "redis is killed", do: killRedis},
			{at: 4 * s, what: "redis is back", do: restartRedis, repair: true},
		},
		may: []string{"503 redis_unavailable"},
	},
	{
		name: "an engine is killed and comes back loading, another answers garbage",
		load: load{leave: 0.3},
		do: []step{
			{at: 1 * s, what: "b1 is killed", do: killEngine(0)},
			{at: 2 * s, what: "b1 loads; b2 answers garbage", do: several(startLoading(0), ails(1, engine.Fault{Kind: engine.Garbage}))},
			{at: 5 * s, what: "both are well", do: several(well(0), well(1)), repair: true},
		},
		may: []string{"event stream_truncated", "502 upstream_error"},
	},
}

// The long runs are not played by `go test`, but what they say can be checked.
func TestLongRunsCanBePlayed(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, r := range append(append([]run{chaos(1, 60*s)}, short...), long...) {
		if names[r.name] {
			t.Errorf("two runs are called %q", r.name)
		}
		names[r.name] = true
		repaired := false
		for i, step := range r.do {
			if i > 0 && step.at < r.do[i-1].at {
				t.Errorf("%s: %s comes before what stands in front of it", r.name, step.what)
			}
			repaired = step.repair
		}
		if !repaired {
			t.Errorf("%s: the last step repairs nothing", r.name)
		}
	}
}
