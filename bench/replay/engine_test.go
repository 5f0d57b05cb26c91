package main

import (
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/bench/engine"
)

// What an engine computes is what its cache had not; its cache keeps its bounds. I2
func TestEngineComputesWhatIsNotCached(t *testing.T) {
	t.Parallel()
	for _, kvTokens := range []int{20_000, 60_000, 430_000} {
		w := documents(5, 300)
		for i := range w.requests { // no prompt larger than the smallest cache
			r := &w.requests[i]
			r.prompt = min(r.prompt, 15_000)
		}
		s := newSimulation(world{workload: w, speed: 1, engines: 2, replicas: 1, profile: engine.Profiles["8b-a100"], slots: 16,
			kvTokens: kvTokens, seed: 1}, func(s *simulation) policy { return oracle{s} })
		s.watch = func() {
			for _, b := range s.engineList {
				if kv := b.kv; kv.used < 0 || kv.used+kv.idle > kv.capacity {
					t.Fatalf("%d used and %d idle of %d blocks", kv.used, kv.idle, kv.capacity)
				}
			}
		}
		o := s.run()
		var prompted, cached, generated, asked, output int
		for i, b := range s.engineList {
			prompted, cached, generated = prompted+b.prompted, cached+b.cached, generated+b.generated
			if b.kv.used != 0 || len(b.running)+len(b.waiting) > 0 {
				t.Fatalf("engine %d: %d blocks in use at the end", i, b.kv.used)
			}
		}
		for _, j := range s.jobs {
			asked, output = asked+j.prompt, output+j.output
			if j.firstMS <= s.due(j) || j.doneMS < j.firstMS || j.found >= j.prompt {
				t.Fatalf("request %d: due %f, first %f, done %f, %d of %d cached", j.id, s.due(j), j.firstMS, j.doneMS, j.found, j.prompt)
			}
		}
		if prompted != asked || generated != output {
			t.Fatalf("%d of %d tokens of prompts, %d of %d of answers", prompted, asked, generated, output)
		}
		if kvTokens < 430_000 != (o.preempted > 0) {
			t.Errorf("%d tokens of KV: %d preemptions", kvTokens, o.preempted)
		}
		if kvTokens == 430_000 && (o.hits < 0.2 || o.hits > 0.9) {
			t.Errorf("hits %.3f", o.hits)
		}
	}
}

// The cache drops what was longest unused, of one prompt the deepest first, and never what is in use.
func TestKVCacheDropsTheLongestUnused(t *testing.T) {
	t.Parallel()
	c := newKVCache(6)
	for _, chain := range [][]uint64{{1, 2, 3}, {7, 8}} {
		for _, name := range chain {
			c.use(name)
		}
		c.leave(chain)
	}
	c.use(8)
	for want, chain := range map[int][]uint64{3: {1, 2, 3}, 2: {7, 8}} {
		if got := c.match(chain); got != want {
			t.Fatalf("%v: %d", chain, got)
		}
	}
	if !c.take(3) || c.match([]uint64{1, 2, 3}) != 1 || c.match([]uint64{7, 8}) != 2 {
		t.Fatal("not the deepest of the longest unused first")
	}
	if c.take(3) || c.match([]uint64{1}) != 1 {
		t.Fatal("more than there is")
	}
	if !c.take(2) || c.match([]uint64{1}) != 0 || c.match([]uint64{7}) != 0 || c.shared[8] == nil {
		t.Fatal("what is in use was dropped")
	}
}

// Beginnings that are equal have equal fingerprints, and only they.
func TestFingerprintsRepeatWhereTheChainDoes(t *testing.T) {
	t.Parallel()
	w := chat(1, 40)
	matches := 0
	for i := range w.requests {
		a := &w.requests[i]
		k := rand.New(rand.NewPCG(uint64(i), 1)).IntN(len(w.requests))
		for _, k := range []int{k, (i + 1) % len(w.requests)} {
			b := &w.requests[k]
			common := 0
			for common < min(len(a.chain), len(b.chain)) && a.chain[common] == b.chain[common] && k != i {
				common++
			}
			for _, f := range a.prefix.Prints {
				for _, g := range b.prefix.Prints {
					if f.Hash == g.Hash && k != i {
						matches++
						if int(f.Tokens) > common*w.block {
							t.Fatalf("requests %d and %d share %d tokens and a fingerprint of %d", i, k, common*w.block, f.Tokens)
						}
					}
				}
			}
		}
	}
	if matches < 5 {
		t.Fatalf("%d fingerprints in common", matches)
	}
}
