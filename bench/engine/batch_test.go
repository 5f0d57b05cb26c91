package engine

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestStepMS(t *testing.T) {
	a100, h100 := Profiles["8b-a100"], Profiles["8b-h100"]
	for _, c := range []struct {
		p               Profile
		tokens, context int
		want            float64
	}{
		{a100, 1, 0, 12},                              // W + o
		{a100, 1, 1000, 12.092},                       // and a thousand tokens of context
		{a100, 149, 0, 12},                            // below the knee the batch is free
		{a100, 150, 0, 12.05},                         // above it is linear
		{a100, 2048, 0, 0.067*2048 + 2},               // a full chunk: about 0.14 s
		{h100, 8192, 0, 0.022*8192 + 1.5},             // about 0.18 s
		{h100, 64, 64 * 1024, 6 + 0.056*65.536 + 1.5}, // 64 sequences of 1024 tokens
	} {
		if got := c.p.StepMS(c.tokens, c.context); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v: %d tokens, %d context: %v ms, want %v", c.p, c.tokens, c.context, got, c.want)
		}
	}
}

func newSequence(prompt string, length int) *sequence {
	s := &sequence{length: length, reason: "stop", seed: 1, notify: make(chan struct{}, 1)}
	s.text.write([]byte(prompt))
	s.promptTokens = s.text.tokens()
	return s
}

// prompt is a text of n tokens that shares no block with one of another name.
func prompt(name string, n int) string {
	b := make([]byte, n*tokenBytes)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz"[(i+int(name[0])*i/tokenBytes)%26]
	}
	copy(b, name)
	return string(b)
}

// step runs one step and returns its duration.
func step(t *testing.T, b *batch) float64 {
	t.Helper()
	ms, busy := b.plan()
	if !busy {
		t.Fatal("nothing to do")
	}
	b.apply()
	return ms
}

func wantMS(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("%s: %v ms, want %v", what, got, want)
	}
}

func TestAloneFirstTokenAfterItsChunksThenOneTokenPerStep(t *testing.T) {
	b := newBatch(Profiles["8b-a100"], 4, 1000)
	s := newSequence(prompt("x", 5000), 3)
	b.add(s)
	for i, want := range []float64{0.067*2048 + 2, 0.067*2048 + 2, 0.067*904 + 2} {
		wantMS(t, fmt.Sprint("chunk ", i), step(t, b), want)
	}
	if n := s.generated.Load(); n != 1 {
		t.Fatalf("%d tokens after the prompt", n)
	}
	wantMS(t, "second token", step(t, b), 10+0.092*5.001+2)
	wantMS(t, "third token", step(t, b), 10+0.092*5.002+2)
	if !s.done.Load() || len(b.running) != 0 || b.finished["stop"] != 1 {
		t.Fatalf("not finished: %d running, %v", len(b.running), b.finished)
	}
}

func TestLongPromptSlowsItsNeighbour(t *testing.T) {
	b := newBatch(Profiles["8b-a100"], 4, 1000)
	b.add(newSequence(prompt("x", 16), 100))
	step(t, b)
	alone := step(t, b)
	b.add(newSequence(prompt("y", 4000), 5))
	wantMS(t, "alone", alone, 10+0.092*0.017+2)
	wantMS(t, "beside a prompt", step(t, b), 0.067*2048+0.092*0.018+2) // its token takes one of the chunk's places
}

func TestSlotsBoundTheBatchAndTheRestWaitsInOrder(t *testing.T) {
	b := newBatch(Profiles["8b-a100"], 2, 1000)
	var seqs []*sequence
	for i := range 4 {
		seqs = append(seqs, newSequence(prompt(fmt.Sprint(i), 20), 3))
		b.add(seqs[i])
	}
	urgent := newSequence(prompt("u", 20), 3)
	urgent.priority = -1
	b.add(urgent)
	step(t, b)
	if len(b.running) != 2 || b.running[0] != urgent || b.running[1] != seqs[0] || b.waiting[0] != seqs[1] {
		t.Fatalf("running %v", b.running)
	}
	for len(b.running)+len(b.waiting) > 0 {
		step(t, b)
	}
	if b.maxRunning != 2 || b.finished["stop"] != 5 {
		t.Fatalf("max %d, finished %v", b.maxRunning, b.finished)
	}
}

func run(t *testing.T, b *batch, s *sequence) *sequence {
	t.Helper()
	b.add(s)
	for !s.done.Load() {
		step(t, b)
	}
	return s
}

func TestPrefixIsComputedOnce(t *testing.T) {
	b := newBatch(Profiles["8b-a100"], 4, 1000)
	text := prompt("x", 64)
	first := run(t, b, newSequence(text, 40))
	if n := first.cached.Load(); n != 0 {
		t.Fatalf("%d tokens cached in an empty engine", n)
	}
	if n := run(t, b, newSequence(text, 2)).cached.Load(); n != 48 { // the last token is always computed, so three blocks of four
		t.Fatalf("the same prompt: %d tokens", n)
	}
	answer := ""
	for i := range 40 {
		answer += string(tokenText(1, i))
	}
	// The last token's KV was never computed: 64 + 39 tokens are there, 96 of them in full blocks.
	if n := run(t, b, newSequence(text+answer+"and then?", 2)).cached.Load(); n != 96 {
		t.Fatalf("the next turn: %d tokens", n)
	}
	salted := newSequence("", 2)
	salted.text.parent = 7
	salted.text.write([]byte(text))
	salted.promptTokens = 64
	if n := run(t, b, salted).cached.Load(); n != 0 {
		t.Fatalf("another salt: %d tokens", n)
	}
	if b.kv.used != 0 {
		t.Fatalf("%d blocks in use", b.kv.used)
	}
}

func TestLeastRecentlyUsedPrefixGoesFirst(t *testing.T) {
	b := newBatch(Profiles["8b-a100"], 1, 10)
	old, kept := prompt("o", 65), prompt("k", 65) // four full blocks each
	run(t, b, newSequence(old, 1))
	run(t, b, newSequence(kept, 1))
	run(t, b, newSequence(prompt("n", 65), 1)) // pushes out the older
	if n := run(t, b, newSequence(kept, 1)).cached.Load(); n != 64 {
		t.Fatalf("the younger prefix: %d tokens", n)
	}
	if n := run(t, b, newSequence(old, 1)).cached.Load(); n == 64 {
		t.Fatal("the older prefix is still there in full")
	}
}

func TestFullCachePreemptsTheLastAndFinishesBoth(t *testing.T) {
	b := newBatch(Profiles["8b-a100"], 4, 5)
	first, last := newSequence(prompt("x", 30), 40), newSequence(prompt("y", 30), 40) // five blocks each at the end
	b.add(first)
	b.add(last)
	for !first.done.Load() {
		step(t, b)
	}
	if b.preemptions == 0 || last.done.Load() {
		t.Fatalf("%d preemptions, last done %v", b.preemptions, last.done.Load())
	}
	for !last.done.Load() {
		step(t, b)
	}
	if last.generated.Load() != 40 || b.kv.used != 0 {
		t.Fatalf("%d tokens, %d blocks in use", last.generated.Load(), b.kv.used)
	}
}

// I1 and I4 over random requests, shared prefixes, leavers and small caches.
func TestBatchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots, blocks := rapid.IntRange(1, 4).Draw(t, "slots"), rapid.IntRange(8, 20).Draw(t, "blocks")
		b := newBatch(Profile{Weights: 1, Token: 1, Chunk: rapid.IntRange(1, 64).Draw(t, "chunk")}, slots, blocks)
		var seqs []*sequence
		reason := "abort"
		check := func() {
			if len(b.running) > slots {
				t.Fatalf("%d running, %d slots", len(b.running), slots)
			}
			held := map[*kvBlock]bool{}
			private := 0
			for _, s := range b.running {
				private += s.lease.private
				for _, k := range s.lease.blocks {
					held[k] = true
				}
			}
			if b.kv.used != private+len(held) || b.kv.used+b.kv.idle.Len() > blocks {
				t.Fatalf("used %d, held %d + %d, idle %d, capacity %d", b.kv.used, private, len(held), b.kv.idle.Len(), blocks)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				s := newSequence(prompt(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "prompt"), rapid.IntRange(1, 80).Draw(t, "tokens")),
					rapid.IntRange(1, 40).Draw(t, "length"))
				s.priority = int64(rapid.IntRange(0, 1).Draw(t, "priority"))
				seqs = append(seqs, s)
				b.add(s)
			case 1:
				if len(seqs) > 0 {
					rapid.SampledFrom(seqs).Draw(t, "leaver").abandoned.Store(&reason)
				}
			default:
				if _, busy := b.plan(); busy {
					check()
					b.apply()
				}
			}
			check()
		}
		for i := 0; len(b.running)+len(b.waiting) > 0; i++ {
			if i > 20000 {
				t.Fatalf("stuck with %d running, %d waiting", len(b.running), len(b.waiting))
			}
			if _, busy := b.plan(); busy {
				b.apply()
			}
			check()
		}
		var finished int64
		for _, n := range b.finished {
			finished += n
		}
		if b.kv.used != 0 || finished != int64(len(seqs)) {
			t.Fatalf("%d blocks in use, %d of %d finished", b.kv.used, finished, len(seqs))
		}
	})
}
