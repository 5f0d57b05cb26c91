package pipeline

import (
	"context"
	"sync"
	"time"
)

// Pipeline makes batches and knows which post-call batches are still open.
type Pipeline struct {
	mu   sync.Mutex
	open map[*Post]struct{}
}

// New returns a pipeline; the stores named in commands do the sending.
func New() *Pipeline { return &Pipeline{open: map[*Post]struct{}{}} }

// Batch starts the batch before the model call.
func (p *Pipeline) Batch() *Batch { return &Batch{} }

// Post starts the batch after the model call. It is sent by Send, or when its last owner signs off.
func (p *Pipeline) Post() *Post { return &Post{pipeline: p} }

// Drain sends what open post-call batches hold without waiting for their owners, and returns when the stores have
// sent everything, or with ctx's error. // I7
func (p *Pipeline) Drain(ctx context.Context, stores ...*Store) error {
	p.mu.Lock()
	open := make([]*Post, 0, len(p.open))
	for post := range p.open {
		open = append(open, post)
	}
	p.mu.Unlock()
	for _, post := range open {
		post.Send()
	}
	for _, s := range stores {
		if err := s.after.drained(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Post is what the owners of one request leave for Redis after the answer. No client waits for it. Its methods are
// safe for concurrent use; Declare on it goes through the function given to With.
type Post struct {
	pipeline *Pipeline
	mu       sync.Mutex
	batch    Batch
	owners   int
	timer    *time.Timer
}

// With lets an owner declare on the batch; fn must not block.
func (p *Post) With(fn func(*Batch)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn(&p.batch)
}

// Owner registers somebody who will declare later and returns the function by which it signs off. The batch leaves
// with the last signature, and one second after the first registration at the latest. // I5
func (p *Post) Owner() (signOff func()) {
	p.mu.Lock()
	p.owners++
	if p.timer == nil {
		p.timer = time.AfterFunc(postDelay, p.Send)
		p.pipeline.track(p)
	}
	p.mu.Unlock()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		p.owners--
		last := p.owners == 0
		p.mu.Unlock()
		if last {
			p.Send()
		}
	})
}

// Send hands over what is declared now, whoever has not signed off yet: for what must not wait for another owner.
// What is declared later leaves with the next Send or the last signature.
func (p *Post) Send() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owners == 0 && p.timer != nil {
		p.timer.Stop()
		p.timer = nil
		p.pipeline.forget(p)
	}
	for rest := p.batch.take(); len(rest) > 0; {
		var group []*call
		group, rest = ofOneStore(rest)
		group[0].Store.after.put(group)
	}
}

func (p *Pipeline) track(post *Post) {
	p.mu.Lock()
	p.open[post] = struct{}{}
	p.mu.Unlock()
}

func (p *Pipeline) forget(post *Post) {
	p.mu.Lock()
	delete(p.open, post)
	p.mu.Unlock()
}

// queue holds post-call commands of one store until its worker sends them. It is not bounded in length: what it
// holds is money, and each entry belongs to a request that was bounded itself.
type queue struct {
	mu      *sync.Mutex
	waiting []*call
	wake    chan struct{} // holds one token when waiting is not empty
	busy    bool          // something waits or is being sent
	idle    chan struct{} // closed when that ends; nil while nobody waits for it
}

// afterBatch bounds one pipeline of the worker: enough to share a write, few enough that a reply is not late.
const afterBatch = 128

func newQueue() queue { return queue{mu: &sync.Mutex{}, wake: make(chan struct{}, 1)} }

func (q *queue) put(calls []*call) {
	q.mu.Lock()
	q.waiting = append(q.waiting, calls...)
	q.busy = true
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// work sends what is put until ctx ends and nothing is left.
func (q *queue) work(ctx context.Context, s *Store) {
	for {
		calls := q.take()
		if len(calls) > 0 {
			s.send(calls)
			continue
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			if q.empty() {
				return
			}
		}
	}
}

// take removes the next calls, or marks the queue idle.
func (q *queue) take() []*call {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), afterBatch)
	if n == 0 {
		q.busy = false
		if q.idle != nil {
			close(q.idle)
			q.idle = nil
		}
		return nil
	}
	calls := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return calls
}

// Backlog is how many post-call commands wait to be sent.
func (s *Store) Backlog() int {
	s.after.mu.Lock()
	defer s.after.mu.Unlock()
	return len(s.after.waiting)
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) == 0
}

func (q *queue) drained(ctx context.Context) error {
	q.mu.Lock()
	if !q.busy {
		q.mu.Unlock()
		return nil
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
