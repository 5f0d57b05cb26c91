package coordinator

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"github.com/rs/zerolog"

	"github.com/headgate/headgate/pipeline"
)

// ResponsesConfig says where the fleet remembers who holds what.
type ResponsesConfig struct {
	Store *pipeline.Store
	Log   zerolog.Logger
}

// Responses remembers which backend holds a Responses object: the object lies in that one engine's memory, so whoever
// continues, reads or cancels it must go there. It is safe for concurrent use.
//
// Invariants:
//
//	R1. A response is found by its own tenant only.
//	R2. What one replica keeps is found by all, for a day.
//	R3. What is remembered here is bounded, whatever comes in.
type Responses struct {
	cfg    ResponsesConfig
	failed atomic.Int64

	mu           sync.RWMutex
	young, older map[responseName]string // backends, in two generations
}

// responseName is a response under the only tenant that may know it. // R1
type responseName struct{ tenant, id string }

const (
	responseTTL = 24 * time.Hour // engines forget earlier: at their restart
	// responsesMax is how many are remembered here. Conversations go on within minutes, so that the last ones are enough
	// to save most of the look-ups.
	responsesMax = 100_000
)

// NewResponses starts nothing.
func NewResponses(cfg ResponsesConfig) *Responses { return &Responses{cfg: cfg} }

// Known is the backend this replica remembers; false: another one may know it.
func (r *Responses) Known(tenant, id string) (backend string, known bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	name := responseName{tenant, id}
	if backend, known = r.young[name]; !known {
		backend, known = r.older[name]
	}
	return backend, known
}

// Find declares the look-up of the backend that holds a response on b; "" is none that the fleet knows of.
func (r *Responses) Find(b *pipeline.Batch, tenant, id string) *pipeline.Handle[string] {
	command := pipeline.Command{Store: r.cfg.Store, Name: "GET", Key: ResponseHolder(tenant, id)}
	return pipeline.Declare(b, command, func(m rueidis.RedisMessage) (string, error) {
		if m.IsNil() {
			return "", nil
		}
		backend, err := m.ToString()
		if err == nil && backend != "" {
			r.put(responseName{tenant, id}, backend)
		}
		return backend, err
	})
}

// Keep remembers here at once, and declares on post for the fleet, that backend holds a response of the tenant.
func (r *Responses) Keep(post *pipeline.Post, tenant, id, backend string) {
	r.put(responseName{tenant, id}, backend)
	post.With(func(b *pipeline.Batch) {
		command := pipeline.Command{Store: r.cfg.Store, Name: "SET", Key: ResponseHolder(tenant, id),
			Args: []string{backend, "EX", strconv.Itoa(int(responseTTL.Seconds()))}}
		pipeline.Declare(b, command, func(rueidis.RedisMessage) (bool, error) { return true, nil }).
			Then(func(_ bool, err error) { r.kept(err) })
	})
}

// kept logs the first failure in a row: other replicas will not find what was made meanwhile.
func (r *Responses) kept(err error) {
	if err == nil {
		r.failed.Store(0)
	} else if r.failed.Add(1) == 1 {
		r.cfg.Log.Warn().Err(err).Msg("where responses are held is not stored")
	}
}

// put moves a name to the younger generation; the older one goes when that is full. // R3
func (r *Responses) put(name responseName, backend string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.young == nil || len(r.young) >= responsesMax/2 {
		r.young, r.older = map[responseName]string{}, r.young
	}
	r.young[name] = backend
}
