package coordinator

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/scripts/lua"
)

// holdKey names what one request holds in one pool.
type holdKey struct{ pool, rid string }

type holdState int

const (
	asking  holdState = iota // declared; no reply yet
	waiting                  // in the queue
	holding                  // a slot
	missing                  // a slot that Redis no longer lists: the request runs on, and the beat takes its lease back
)

// hold is what a request of this replica has asked for and not released.
type hold struct {
	attempt int
	state   holdState
	backend string     // as in key names, when holding
	queued  bool       // it has waited
	since   time.Time  // of state
	granted chan grant // nil until it is needed, see wait
	load    load
}

// load is what a lease says of its request beside its backend.
type load struct {
	mu, outputMU int64 // thousandths of a model unit
	tenant       string
}

// grant is the end of a wait: a backend, or an error.
type grant struct {
	backend string
	matched int64 // prompt tokens that are warm there
	err     error
}

// holds is all that requests of this replica hold. It is what the replica believes; Redis decides. A reply or grant for
// what is not in it comes too late and changes nothing here.
type holds struct {
	mu sync.Mutex
	of map[string]map[string]*hold // pool → rid; no empty pools
}

func newHolds() holds { return holds{of: map[string]map[string]*hold{}} }

// ask registers an attempt; it replaces what an earlier one held, as place does in Redis.
func (h *holds) ask(key holdKey, attempt int, of load) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.of[key.pool][key.rid]; old != nil && old.attempt >= attempt {
		return
	}
	if h.of[key.pool] == nil {
		h.of[key.pool] = map[string]*hold{}
	}
	h.of[key.pool][key.rid] = &hold{attempt: attempt, since: time.Now(), load: of}
}

func (h *holds) placed(key holdKey, attempt int, backend string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.of[key.pool][key.rid]; held != nil && held.attempt == attempt {
		held.hold(backend)
	}
}

// queued follows the reply of place; the grant may have come before it.
func (h *holds) queued(key holdKey, attempt int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.of[key.pool][key.rid]; held != nil && held.attempt == attempt && held.state == asking {
		held.state, held.since, held.queued = waiting, time.Now(), true
	}
}

// granted is where the wait of this attempt ends; nil when it is not known.
func (h *holds) granted(key holdKey, attempt int) <-chan grant {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.of[key.pool][key.rid]; held != nil && held.attempt == attempt {
		return held.wait()
	}
	return nil
}

// grant ends the wait of this attempt. It is false when nobody here knows it.
func (h *holds) grant(key holdKey, g lua.Grant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.of[key.pool][key.rid]
	if held == nil || held.attempt != g.Attempt {
		return false
	}
	if held.state == asking || held.state == waiting {
		held.queued = true
		held.hold(g.Backend)
		held.end(grant{backend: g.Backend, matched: g.Matched})
	}
	return true
}

// again ends a wait whose place in the queue is gone.
func (h *holds) again(key holdKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.of[key.pool][key.rid]; held != nil && held.state == waiting {
		held.state = missing
		held.end(grant{err: ErrPlaceAgain})
	}
}

// at is what an attempt holds.
func (h *holds) at(key holdKey, attempt int) (hold, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.of[key.pool][key.rid]; held != nil && held.attempt == attempt {
		return *held, true
	}
	return hold{}, false
}

// release forgets what attempts up to attempt hold, and says whether there was anything.
func (h *holds) release(key holdKey, attempt int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.of[key.pool][key.rid]
	if held == nil || held.attempt > attempt {
		return false
	}
	delete(h.of[key.pool], key.rid)
	if len(h.of[key.pool]) == 0 {
		delete(h.of, key.pool)
	}
	return true
}

// count is how many are in a state, in all pools.
func (h *holds) count(state holdState) int {
	n := 0
	for _, pool := range h.pools() {
		n += h.countIn(pool, state)
	}
	return n
}

// pools is where anything is held.
func (h *holds) pools() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.of))
}

func (h *holds) countIn(pool string, state holdState) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, held := range h.of[pool] {
		if held.state == state {
			n++
		}
	}
	return n
}

// waitingWork is how many requests wait in the pool, and their work in thousandths of a model unit.
func (h *holds) waitingWork(pool string) (n, mu int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range h.of[pool] {
		if held.state == waiting {
			n, mu = n+1, mu+held.load.mu
		}
	}
	return n, mu
}

// slots is how many requests of this replica run on a backend of the pool, whether Redis lists them or not.
func (h *holds) slots(pool string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, held := range h.of[pool] {
		if held.backend != "" {
			n++
		}
	}
	return n
}

// waiters is up to most rids that wait in the pool, others each time when there are more.
func (h *holds) waiters(pool string, most int) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var rids []string
	for rid, held := range h.of[pool] {
		if len(rids) == most {
			break
		}
		if held.state == waiting {
			rids = append(rids, rid)
		}
	}
	return rids
}

func (held *hold) hold(backend string) {
	held.state, held.backend, held.since = holding, backend, time.Now()
}

// wait is where the wait ends. Most requests never wait, and a grant may come before its waiter.
func (held *hold) wait() chan grant {
	if held.granted == nil {
		held.granted = make(chan grant, 1)
	}
	return held.granted
}

func (held *hold) end(g grant) {
	select {
	case held.wait() <- g:
	default: // ended before
	}
}
