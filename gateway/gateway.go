// Package gateway is the data plane: one client request from socket to socket. Read serve in request.go first; it
// names the stages in their order.
//
// Invariants:
//
//	I1. A refusal before the engine was called leaves nothing reserved once its answer is out.
//	I2. Before the first byte to the client an attempt that failed by the backend's fault may be repeated; after it, never.
//	I3. The prompt's buffer goes back with the first byte to the client.
//	I4. Every client request writes one usage record, whatever happened to it.
//	I5. A client that leaves ends the engine's work: its connection is closed at once.
//	I6. Bytes that need no change pass unchanged, both ways.
//	I7. Towards an engine: a request is generated at most once, a cut is never a clean end, and a connection that was
//	    aborted or holds surplus bytes is never used again.
//	I8. A response an engine keeps is reached by the tenant that made it, and by nobody else.
package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// Ledger decides whether a request may spend, and replaces the hold by what it spent.
type Ledger interface {
	// Admit declares the decision on b; nothing is sent before b is flushed.
	Admit(b *pipeline.Batch, r coordinator.Request) *pipeline.Handle[coordinator.Admission]
	// AdmitLocally decides from memory while Redis cannot be asked; false: it knows nothing of this key and model.
	AdmitLocally(r coordinator.Request) (coordinator.Admission, bool)
	// Extend declares that the hold of a stream shall cover so many tokens of output in all.
	Extend(b *pipeline.Batch, tenant, rid string, total int64) *pipeline.Handle[coordinator.Granted]
	// Settle is safe to repeat: the same request is charged once.
	Settle(p *pipeline.Post, s coordinator.Settlement)
	// Seen is what this replica remembers of a key that passed before.
	Seen(keyHash string) (coordinator.Hint, bool)
	// Alias declares the look-up of the tenant of an imported key; "" is none.
	Alias(b *pipeline.Batch, keyHash string) *pipeline.Handle[string]
	// Models declares the look-up of a key's model lists, without counting a request.
	Models(b *pipeline.Batch, tenant, keyHash string) *pipeline.Handle[coordinator.Allowed]
}

// Placement finds a backend with a free slot and takes it, or a place in the queue.
type Placement interface {
	Place(b *pipeline.Batch, a coordinator.Ask) *pipeline.Handle[coordinator.Place]
	// Await returns the place a queued request was granted, or ctx's error.
	Await(ctx context.Context, a coordinator.Ask) (coordinator.Place, error)
	// Release declares that whatever attempts up to this one hold is given back, and how it went.
	Release(p *pipeline.Post, r coordinator.Release)
	// Replicas is how many replicas this one saw living lately, itself included.
	Replicas() int
	// Failed declares that a backend failed a request: the fleet leaves it alone for a while.
	Failed(p *pipeline.Post, pool, backend string, why coordinator.Failure)
	// Stale is true when other replicas may have taken this one for dead in the pool.
	Stale(pool string) bool
}

// Cache keeps whole answers.
type Cache interface {
	// Lookup declares a read; nil is a miss.
	Lookup(b *pipeline.Batch, tenant, hash string) *pipeline.Handle[*coordinator.Answer]
	Write(p *pipeline.Post, tenant, hash string, e coordinator.Answer, ttl time.Duration)
}

// Responses remembers which backend holds a Responses object.
type Responses interface {
	// Known is the backend this replica remembers.
	Known(tenant, id string) (backend string, known bool)
	// Find declares the look-up in what the fleet remembers; "" is nobody.
	Find(b *pipeline.Batch, tenant, id string) *pipeline.Handle[string]
	Keep(p *pipeline.Post, tenant, id, backend string)
}

// Config is what the data plane is told.
type Config struct {
	Replica           string
	MaxBodyBytes      int64
	FirstTokenTimeout time.Duration // from the request's end to the first event of a stream
	StreamSilence     time.Duration // between events of a stream
	RequestTimeout    time.Duration // of an answer that is not streamed
	QueueWait         time.Duration
	Attempts          int            // in all
	ServeAlone        bool           // while Redis is away keys that passed before are served within a share of their limits
	PromptBytes       int64          // prompts in memory at one time; 0: 1 GiB
	ConnectTimeout    time.Duration  // to an engine; 0: 2 s
	EngineRoots       *x509.CertPool // authorities of https engines; nil: the system's
	BodyTimeout       time.Duration  // of a request body that stands still; 0: 30 s
	CORSOrigins       []string       // origins whose pages may call from a browser; * for all
}

// Deps are the parts the data plane calls.
type Deps struct {
	Ledger    Ledger
	Placement Placement
	Cache     Cache
	Responses Responses
	Cluster   *cluster.Cluster
	Catalogue *catalogue.Store
	Pipeline  *pipeline.Pipeline
	UsageLog  *UsageLog
	Observe   func(*coordinator.Record) // sees every record once; nil: nobody
	Log       zerolog.Logger
}

// Gateway serves client requests.
type Gateway struct {
	cfg       Config
	deps      Deps
	upstream  *upstream
	prompts   *prompts
	flights   flights
	alone     alone
	keepAlive time.Duration // how long a stream's client hears nothing
	unpackers *unpackers
	cors      cors

	unreadable unreadable

	closing context.Context // ends when Drain begins: nobody waits in the queue any more
	close   context.CancelFunc
	cut     context.Context // ends what outlives the drain, with errShutdown as its cause; every request's context is its child
	cutAll  context.CancelCauseFunc

	leaving atomic.Bool // every answer ends its connection

	mu      sync.Mutex
	running int
	idle    chan struct{} // made by Drain; closed when running is 0
}

// errShutdown is the cause of a request that outlived the drain.
var errShutdown = errors.New("replica shuts down")

// New returns a gateway that serves as soon as its handler is called.
func New(cfg Config, deps Deps) *Gateway {
	if cfg.PromptBytes == 0 {
		cfg.PromptBytes = 1 << 30
	}
	if cfg.BodyTimeout == 0 {
		cfg.BodyTimeout = defaultBodyTimeout
	}
	g := &Gateway{
		cfg:       cfg,
		deps:      deps,
		upstream:  newUpstream(upstreamConfig{ConnectTimeout: cfg.ConnectTimeout, TLS: &tls.Config{RootCAs: cfg.EngineRoots}}),
		prompts:   newPrompts(cfg.PromptBytes),
		keepAlive: keepAliveEvery,
		unpackers: newUnpackers(),
		cors:      newCORS(cfg.CORSOrigins),
	}
	g.closing, g.close = context.WithCancel(context.Background())
	g.cut, g.cutAll = context.WithCancelCause(context.Background())
	return g
}

// Running is the number of client requests in work.
func (g *Gateway) Running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}

// PromptBytes is the memory lent to request bodies now, in bytes.
func (g *Gateway) PromptBytes() int64 { return g.prompts.inUse() }

// Leave has every answer from now on end its connection, so that the client's next request goes elsewhere.
func (g *Gateway) Leave() { g.leaving.Store(true) }

// Drain tells the waiting to go elsewhere, lets running requests end, and cuts those that are left when ctx ends: they
// get an error event and are billed. It returns when none is left. It is called once.
func (g *Gateway) Drain(ctx context.Context) {
	g.Leave()
	g.close()
	g.mu.Lock()
	g.idle = make(chan struct{})
	if g.running == 0 {
		close(g.idle)
	}
	g.mu.Unlock()
	select {
	case <-g.idle:
	case <-ctx.Done():
		g.cutAll(errShutdown)
		<-g.idle
	}
	g.upstream.Close()
}

// enter counts a request in; leave counts it out.
func (g *Gateway) enter() {
	g.mu.Lock()
	g.running++
	g.mu.Unlock()
}

func (g *Gateway) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}
