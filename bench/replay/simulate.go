package main

import (
	"container/heap"
	"math/rand/v2"

	"github.com/headgate/headgate/bench/engine"
)

// world is a workload on a fleet, before a policy is chosen.
type world struct {
	workload
	speed    float64 // arrivals come so many times as fast as recorded
	engines  int
	replicas int
	profile  engine.Profile
	slots    int
	kvTokens int
	seed     uint64
}

// simulation is one policy in one world, in virtual time. It is deterministic: the same world gives the same outcome.
type simulation struct {
	world
	engineList []*backend
	jobs       []*job
	policy     policy
	now        float64 // ms
	random     *rand.Rand

	events events
	serial int
	left   int    // jobs that are not done
	watch  func() // after each event, for tests; nil: nobody
}

// policy decides where requests go.
type policy interface {
	// place returns the engine for a job, or -1: the policy will submit it later.
	place(j *job) int
	// done is called when a job is complete.
	done(j *job)
}

// runs is a policy that also acts by the clock.
type runs interface{ start(s *simulation) }

type event struct {
	at     float64
	serial int
	do     func()
}

type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, k int) { e[i], e[k] = e[k], e[i] }
func (e events) Less(i, k int) bool {
	return e[i].at < e[k].at || e[i].at == e[k].at && e[i].serial < e[k].serial
}
func (e *events) Push(x any) { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// newSimulation prepares a run; make is given the simulation whose engines the policy may look at.
func newSimulation(w world, make func(*simulation) policy) *simulation {
	s := &simulation{world: w, random: rand.New(rand.NewPCG(w.seed, 1)), left: len(w.requests)}
	for range w.engines {
		s.engineList = append(s.engineList, &backend{profile: w.profile, block: w.block, slots: w.slots,
			kv: newKVCache(w.kvTokens / w.block)})
	}
	for i := range w.requests {
		s.jobs = append(s.jobs, &job{request: &w.requests[i], id: i, engine: -1, replica: s.random.IntN(w.replicas)})
	}
	s.policy = make(s)
	return s
}

// after plans something ms from now.
func (s *simulation) after(ms float64, do func()) {
	s.serial++
	heap.Push(&s.events, event{s.now + ms, s.serial, do})
}

// run goes on until every job is done.
func (s *simulation) run() outcome {
	if p, ok := s.policy.(runs); ok {
		p.start(s)
	}
	s.arrivals(0)
	for s.left > 0 {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
		if s.watch != nil {
			s.watch()
		}
	}
	return s.outcome()
}

// arrivals lets job i arrive, and plans the next.
func (s *simulation) arrivals(i int) {
	if i == len(s.jobs) {
		return
	}
	j := s.jobs[i]
	s.after(max(0, s.due(j)-s.now), func() {
		if to := s.policy.place(j); to >= 0 {
			s.submit(j, to)
		}
		s.arrivals(i + 1)
	})
}

// due is when a job arrives at a gateway.
func (s *simulation) due(j *job) float64 { return j.atMS / s.speed }

// submit sends a job to an engine.
func (s *simulation) submit(j *job, to int) {
	j.engine, j.placedMS = to, s.now
	b := s.engineList[to]
	b.waiting = append(b.waiting, j)
	if b.stepEnd == 0 {
		s.step(b)
	}
}

// step begins the next step of an engine.
func (s *simulation) step(b *backend) {
	ms := b.plan()
	if ms == 0 {
		b.stepEnd = 0
		return
	}
	b.busyMS += ms
	b.stepEnd = s.now + ms
	s.after(ms, func() {
		b.step(func(j *job) { j.firstMS = s.now }, func(j *job) {
			j.doneMS = s.now
			s.left--
			s.policy.done(j)
		})
		s.step(b)
	})
}
