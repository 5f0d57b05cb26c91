package main

import (
	"slices"

	"github.com/headgate/headgate/bench/engine"
)

// backend is one engine: the step model of vLLM's scheduler. A step computes one token of every answer under way and up to
// Chunk tokens in all of prompts, first come first served, so a long prompt slows everybody's answers beside it.
type backend struct {
	profile engine.Profile
	block   int // tokens
	slots   int
	kv      *kvCache
	waiting []*job
	running []*job
	stepEnd float64 // of the step under way; 0: idle

	// Sums over the whole run.
	requests, prompted, cached, generated int
	preempted                             int
	busyMS                                float64
}

// job is a request on its way.
type job struct {
	*request
	id      int
	replica int
	engine  int // -1: not placed

	placedMS, firstMS, doneMS float64

	computed  int // tokens of the context whose KV is there
	generated int
	planned   int // tokens of this step
	shared    int // blocks of chain held, from the first on
	private   int // blocks held that nobody else sees
	started   bool
	found     int // tokens of the prompt that were cached

	queued   bool
	foretold int     // tokens of the prompt the policy thought cached
	expected float64 // ms to the first token, as the policy thought
}

func (j *job) context() int { return j.prompt + j.generated }

// plan chooses what the next step computes and returns how long it takes; 0: there is nothing to do.
func (b *backend) plan() (ms float64) {
	tokens, context, fits := b.planRunning()
	preempted := false
	for ; !fits; tokens, context, fits = b.planRunning() {
		b.preempt()
		preempted = true
	}
	for !preempted && len(b.waiting) > 0 && len(b.running) < b.slots && tokens < b.profile.Chunk {
		j := b.waiting[0]
		if !b.admit(j, b.profile.Chunk-tokens) {
			break
		}
		b.waiting = slices.Delete(b.waiting, 0, 1)
		b.running = append(b.running, j)
		tokens += j.planned
	}
	if tokens == 0 {
		return 0
	}
	return b.profile.StepMS(tokens, context)
}

func (b *backend) planRunning() (tokens, context int, fits bool) {
	for _, j := range b.running {
		n := min(j.context()-j.computed, b.profile.Chunk-tokens)
		if !b.hold(j, j.computed+n) {
			return 0, 0, false
		}
		j.planned = n
		tokens += n
		if j.computed >= j.prompt {
			context += j.context()
		}
	}
	return tokens, context, true
}

// hold makes room for the first n tokens of a job's context.
func (b *backend) hold(j *job, n int) bool {
	more := (n+b.block-1)/b.block - j.shared - j.private
	if more <= 0 {
		return true
	}
	if !b.kv.take(more) {
		return false
	}
	j.private += more
	return true
}

// admit gives a waiting job what the cache has of its prompt, and room for its first chunk.
func (b *backend) admit(j *job, budget int) bool {
	found := b.warm(j.request)
	for _, name := range j.chain[:found] {
		b.kv.use(name)
	}
	j.shared, j.computed = found, found*b.block
	j.planned = min(j.context()-j.computed, budget)
	if !b.hold(j, j.computed+j.planned) {
		b.drop(j)
		return false
	}
	if !j.started {
		j.started, j.found = true, j.computed
		b.requests++
		b.prompted += j.prompt
		b.cached += j.computed
	}
	return true
}

// warm is how many blocks of the prompt are cached. One token at least is always computed.
func (b *backend) warm(r *request) int {
	return b.kv.match(r.chain[:min(len(r.chain), (r.prompt-1)/b.block)])
}

// preempt takes the KV of the youngest, which is computed again later.
func (b *backend) preempt() {
	last := len(b.running) - 1
	j := b.running[last]
	b.running = b.running[:last]
	b.drop(j)
	b.waiting = slices.Insert(b.waiting, 0, j)
	b.preempted++
}

// drop gives back all KV of a job.
func (b *backend) drop(j *job) {
	b.kv.leave(j.chain[:j.shared])
	b.kv.give(j.private)
	j.shared, j.private, j.computed, j.planned = 0, 0, 0, 0
}

// step ends the step that was planned: first is called for each job whose first token it gave, done for each that is
// complete.
func (b *backend) step(first, done func(*job)) {
	keep := b.running[:0]
	var over []*job
	for _, j := range b.running {
		j.computed += j.planned
		grew := j.planned > 0 && j.computed == j.context()
		j.planned = 0
		b.publish(j)
		if grew {
			j.generated++
			b.generated++
			if j.generated == 1 {
				first(j)
			}
			if j.generated == j.output {
				b.drop(j)
				over = append(over, j)
				continue
			}
		}
		keep = append(keep, j)
	}
	clear(b.running[len(keep):])
	b.running = keep
	for _, j := range over {
		done(j)
	}
}

// publish lets others share the full blocks of a job that are computed.
func (b *backend) publish(j *job) {
	for n := min(j.computed/b.block, len(j.chain)); j.shared < n && j.private > 0; j.shared++ {
		j.private--
		b.kv.give(1)
		b.kv.use(j.chain[j.shared])
	}
}

// backlog is the tokens of prompts this engine has yet to compute.
func (b *backend) backlog() (tokens int) {
	for _, j := range b.running {
		tokens += max(0, j.prompt-j.computed)
	}
	for _, j := range b.waiting {
		tokens += j.prompt - b.warm(j.request)*b.block
	}
	return tokens
}

// decoding is how many answers are under way, and the tokens of context they hold.
func (b *backend) decoding() (n, context int) {
	for _, j := range b.running {
		if j.computed >= j.prompt {
			n++
			context += j.context()
		}
	}
	return n, context
}
