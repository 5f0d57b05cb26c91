package coordinator

import "sync"

// flow is what passes through this replica, by pool. Model units are those with which requests were placed, in thousandths.
type flow struct {
	mu    sync.Mutex
	pools map[string]*poolFlow
}

// poolFlow counts since the start of the process.
type poolFlow struct {
	offered, served int64
	answered        map[string]bool // backends, until they are taken
}

func (f *flow) in(pool string) *poolFlow {
	if f.pools == nil {
		f.pools = map[string]*poolFlow{}
	}
	if f.pools[pool] == nil {
		f.pools[pool] = &poolFlow{answered: map[string]bool{}}
	}
	return f.pools[pool]
}

// offer counts a request that wants a slot, by its first attempt.
func (f *flow) offer(a Ask) {
	if a.Attempt > 1 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.in(a.Pool).offered += a.MU
}

// end counts how a request ended that had a slot. One that got it without waiting and was never sent had been refused by
// another part, and offered nothing.
func (f *flow) end(r Release, of hold) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in := f.in(r.Pool)
	switch {
	case r.Answered || r.TTFT > 0:
		in.served += of.load.mu
		in.answered[of.backend] = true
	case r.Unused && !of.queued && r.Attempt == 1:
		in.offered -= of.load.mu
	}
}

// sums is what was offered and served in a pool so far.
func (f *flow) sums(pool string) (offered, served int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in := f.in(pool)
	return in.offered, in.served
}
