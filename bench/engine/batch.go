package engine

import (
	"slices"
	"sync/atomic"
)

// sequence is one choice of one request: a context that grows by a token per step once its prompt is computed.
type sequence struct {
	text         chain // prompt and what was generated so far
	promptTokens int
	length       int    // tokens it will generate
	reason       string // finished_reason when it has: "stop" or "length"
	seed         uint64
	call         *toolCall // what it generates; nil: a text
	priority     int64
	notify       chan<- struct{} // told, never waited for, when there is news

	// Read by the request's goroutine while the batch goes on.
	generated atomic.Int64
	cached    atomic.Int64 // prompt tokens found in the cache, set before the first token
	done      atomic.Bool

	// Written by the request's goroutine.
	abandoned atomic.Pointer[string] // finished_reason to count; the slot is free at the next step
	stalled   atomic.Bool            // keeps its slot and generates nothing: a hung engine

	// The batch's own.
	computed int // tokens of the context whose KV exists
	planned  int // tokens this step computes
	lease    lease
	started  bool // was in the batch before
}

// context is what must be computed before the next token can be sampled.
func (s *sequence) context() int { return s.promptTokens + int(s.generated.Load()) }

// batch is the scheduler: plan decides what the next step computes and how long that takes, apply makes it so. It has
// neither clock nor lock of its own.
type batch struct {
	profile Profile
	slots   int
	kv      *kvCache
	waiting []*sequence // by priority, then arrival; preempted ones in front
	running []*sequence // in the order they got their slot

	maxRunning  int
	steps       int64
	preemptions int64
	promptTotal int64
	outputTotal int64
	queries     int64 // prompt tokens looked up in the prefix cache, and found there
	hits        int64
	finished    map[string]int64 // by finished_reason
}

func newBatch(p Profile, slots, kvBlocks int) *batch {
	return &batch{profile: p, slots: slots, kv: newKVCache(kvBlocks), finished: make(map[string]int64)}
}

// add lets a sequence wait behind those of its own and of more urgent priority.
func (b *batch) add(s *sequence) {
	at := len(b.waiting)
	for at > 0 && b.waiting[at-1].priority > s.priority {
		at--
	}
	b.waiting = slices.Insert(b.waiting, at, s)
}

// plan chooses the tokens of the next step and returns its duration in milliseconds of real time; busy is false when there
// is nothing to compute.
func (b *batch) plan() (stepMS float64, busy bool) {
	b.dropAbandoned()
	preempted := false
	load, ok := b.planRunning()
	for ; !ok; load, ok = b.planRunning() {
		b.preempt()
		preempted = true
	}
	for !preempted && len(b.waiting) > 0 && len(b.running) < b.slots && load.tokens < b.profile.Chunk { // I1
		s := b.waiting[0]
		if !b.admit(s, b.profile.Chunk-load.tokens) {
			break
		}
		b.waiting = slices.Delete(b.waiting, 0, 1)
		b.running = append(b.running, s)
		load.tokens += s.planned
	}
	b.maxRunning = max(b.maxRunning, len(b.running))
	if load.tokens == 0 {
		return 0, false
	}
	return b.profile.StepMS(load.tokens, load.context), true
}

// stepLoad is what one step computes: tokens, and tokens of context held by the sequences that decode.
type stepLoad struct{ tokens, context int }

// planRunning plans one step of those that have a slot, in the order they got it; false when the KV cache is too small.
func (b *batch) planRunning() (load stepLoad, ok bool) {
	for _, s := range b.running {
		s.planned = 0
		if s.stalled.Load() {
			continue
		}
		n := min(s.context()-s.computed, b.profile.Chunk-load.tokens)
		if !b.kv.grow(&s.lease, blocksFor(s.computed+n)) {
			return load, false
		}
		s.planned = n
		load.tokens += n
		if s.computed >= s.promptTokens {
			load.context += s.context()
		}
	}
	return load, true
}

// admit gives a waiting sequence what the cache has of its context, and room for its first chunk.
func (b *batch) admit(s *sequence, budget int) bool {
	// At least one token is always computed: sampling needs its result.
	reusable := min((s.context()-1)/blockTokens, len(s.text.hashes))
	found := b.kv.match(s.text.hashes[:reusable])
	b.kv.attach(&s.lease, s.text.hashes[:found])
	s.computed = found * blockTokens
	n := min(s.context()-s.computed, budget)
	if !b.kv.grow(&s.lease, blocksFor(s.computed+n)) {
		b.kv.release(&s.lease)
		s.computed = 0
		return false
	}
	if !s.started {
		s.started = true
		s.cached.Store(int64(s.computed))
		b.queries += int64(s.promptTokens)
		b.hits += int64(s.computed)
		b.promptTotal += int64(s.promptTokens)
	}
	s.planned = n
	return true
}

// apply finishes the planned step: computed blocks become visible, every sequence whose context is complete has one more
// token, those at their length leave.
func (b *batch) apply() {
	b.steps++
	keep := b.running[:0]
	for _, s := range b.running {
		s.computed += s.planned
		grew := s.planned > 0 && s.computed == s.context()
		s.planned = 0
		b.kv.publish(&s.lease, s.text.hashes[:min(s.computed/blockTokens, len(s.text.hashes))])
		if !grew {
			keep = append(keep, s)
			continue
		}
		n := int(s.generated.Load())
		s.text.write(tokenText(s.seed, n))
		b.outputTotal++
		if n+1 == s.length {
			b.kv.release(&s.lease)
			b.finished[s.reason]++
		} else {
			keep = append(keep, s)
		}
		s.generated.Store(int64(n + 1))
		s.done.Store(n+1 == s.length) // after the count: who sees done sees every token
		s.tell()
	}
	clear(b.running[len(keep):])
	b.running = keep
}

// preempt takes the KV of the sequence that matters least; it waits before its equals and is computed again later.
func (b *batch) preempt() {
	last := len(b.running) - 1
	for i, s := range b.running {
		if s.priority > b.running[last].priority {
			last = i
		}
	}
	s := b.running[last]
	b.running = slices.Delete(b.running, last, last+1)
	b.kv.release(&s.lease)
	s.computed, s.planned = 0, 0
	at := slices.IndexFunc(b.waiting, func(w *sequence) bool { return w.priority >= s.priority })
	if at < 0 {
		at = len(b.waiting)
	}
	b.waiting = slices.Insert(b.waiting, at, s)
	b.preemptions++
}

// dropAbandoned removes what nobody waits for any more. I2
func (b *batch) dropAbandoned() {
	gone := func(s *sequence) bool {
		reason := s.abandoned.Load()
		if reason == nil {
			return false
		}
		b.kv.release(&s.lease)
		b.finished[*reason]++
		s.done.Store(true)
		s.tell()
		return true
	}
	b.running = slices.DeleteFunc(b.running, gone)
	b.waiting = slices.DeleteFunc(b.waiting, gone)
}

func (s *sequence) tell() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

func blocksFor(tokens int) int { return (tokens + blockTokens - 1) / blockTokens }
