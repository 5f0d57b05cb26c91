package main

import (
	"slices"

	"github.com/zeebo/xxh3"
)

// counting is what a gateway replica knows by itself: how many of the requests it sent run where. fleet: all replicas
// share one count.
type counting struct {
	s     *simulation
	fleet bool
	open  [][]int // by replica and engine
}

func newCounting(s *simulation, fleet bool) counting {
	c := counting{s: s, fleet: fleet}
	for range s.replicas {
		c.open = append(c.open, make([]int, s.engines))
	}
	return c
}

func (c counting) of(j *job) []int {
	if c.fleet {
		return c.open[0]
	}
	return c.open[j.replica]
}

func (c counting) sent(j *job, to int) int {
	c.of(j)[to]++
	return to
}

func (c counting) done(j *job) { c.of(j)[j.engine]-- }

// randomly sends each request anywhere.
type randomly struct{ s *simulation }

func (p randomly) place(*job) int { return p.s.random.IntN(p.s.engines) }
func (p randomly) done(*job)      {}

// roundRobin takes turns, each replica its own, from a place of its own on.
type roundRobin struct {
	s    *simulation
	next []int
}

func newRoundRobin(s *simulation) policy {
	p := &roundRobin{s: s}
	for i := range s.replicas {
		p.next = append(p.next, i)
	}
	return p
}

func (p *roundRobin) place(j *job) int {
	p.next[j.replica]++
	return p.next[j.replica] % p.s.engines
}
func (p *roundRobin) done(*job) {}

// leastConnections sends to where the fewest of the requests it knows run.
type leastConnections struct{ counting }

func (p leastConnections) place(j *job) int {
	open := p.of(j)
	least := slices.Min(open)
	var equal []int
	for i, n := range open {
		if n == least {
			equal = append(equal, i)
		}
	}
	return p.sent(j, equal[p.s.random.IntN(len(equal))])
}

// headTokens is how much of a prompt a ring by prefix looks at: all prompts of the conversation trace share their first
// 512 tokens, so a ring by less sends all of them to one engine.
const headTokens = 2048

// ringed sends to the home of a prompt's beginning; with a bound, past engines that have more than bound × the mean of
// the requests this replica knows.
type ringed struct {
	counting
	bound float64 // 0: none
}

func (p ringed) place(j *job) int {
	order := ringOrder(j.head(p.s.block, headTokens), p.s.engines)
	to := order[0]
	if p.bound > 0 {
		open, sum := p.of(j), 1
		for _, n := range open {
			sum += n
		}
		limit := max(1, p.bound*float64(sum)/float64(p.s.engines))
		for _, i := range order {
			if float64(open[i]+1) <= limit {
				to = i
				break
			}
		}
	}
	return p.sent(j, to)
}

// head names the first tokens of a prompt.
func (r *request) head(block, tokens int) uint64 {
	if n := min(len(r.chain), tokens/block); n > 0 {
		return r.chain[n-1]
	}
	return xxh3.HashSeed(nil, uint64(r.prompt))
}

// ringOrder is the engines in the order of their rendezvous with a key.
func ringOrder(key uint64, engines int) []int {
	order := make([]int, engines)
	hash := make([]uint64, engines)
	for i := range order {
		order[i] = i
		hash[i] = xxh3.HashStringSeed(engineName(i), key)
	}
	slices.SortFunc(order, func(a, b int) int {
		if hash[a] > hash[b] {
			return -1
		}
		return 1
	})
	return order
}
