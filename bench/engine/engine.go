package engine

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// Engine is one simulated engine: an http.Handler, and Run, without which requests wait for ever. Start does both.
type Engine struct {
	opts    Options
	profile Profile
	mux     *http.ServeMux
	seen    seenLog
	started time.Time

	wake    chan struct{} // there is something to compute
	stopped chan struct{} // closed when Run returns

	mu          sync.Mutex
	batch       *batch
	generations int
	inUse       map[string]bool      // request ids that are running
	responses   map[string]*response // what may be asked for later, by id
	faults      []*Fault
	unhealthy   bool
	refuse      func(bool) error // closes and opens the listener; nil without Start
}

// New returns an engine with an empty cache.
func New(opts Options) (*Engine, error) {
	opts, profile, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		opts:    opts,
		profile: profile,
		started: time.Now(),
		wake:    make(chan struct{}, 1),
		batch:   newBatch(profile, opts.Slots, opts.KVBlocks),
		inUse:   make(map[string]bool),

		responses: make(map[string]*response),
		stopped:   make(chan struct{}),
	}
	e.mux = http.NewServeMux()
	e.mux.HandleFunc("GET /health", e.serveHealth)
	e.mux.HandleFunc("GET /version", e.serveVersion)
	e.mux.HandleFunc("GET /metrics", e.serveMetrics)
	e.mux.HandleFunc("GET /v1/models", e.serveModels)
	for path, parse := range parsers {
		e.mux.HandleFunc("POST "+path, e.generate(parse))
	}
	e.mux.HandleFunc("GET "+responsesPath+"/{id}", e.serveResponse)
	e.mux.HandleFunc("POST "+responsesPath+"/{id}/cancel", e.serveCancel)
	e.mux.HandleFunc("POST /tokenize", e.serveTokenize)
	e.mux.HandleFunc("POST /detokenize", e.serveDetokenize)
	e.mux.HandleFunc("POST /sim/faults", e.serveFaults)
	e.mux.HandleFunc("DELETE /sim/faults", e.serveFaults)
	e.mux.HandleFunc("GET /sim/state", e.serveState)
	return e, nil
}

const (
	responsesPath = "/v1/responses"
	messagesPath  = "/v1/messages"
)

// parsers are the routes that compute something.
var parsers = map[string]parser{
	"/v1/chat/completions":     parseCompletion,
	"/v1/completions":          parseCompletion,
	responsesPath:              parseResponse,
	messagesPath:               parseMessage,
	"/v1/embeddings":           parseEmbedding,
	"/v1/rerank":               parseRerank,
	"/v1/score":                parseScore,
	"/v1/audio/transcriptions": parseAudio,
	"/v1/audio/translations":   parseAudio,
}

// ServeHTTP answers like vLLM's API server.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", e.opts.ServerName)
	if e.opts.APIKey != "" && guarded(r.URL.Path) && r.Header.Get("Authorization") != "Bearer "+e.opts.APIKey {
		writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
		return
	}
	e.mux.ServeHTTP(w, r)
}

// Run steps the batch until ctx ends. The timetable is kept over late timers, so the mean step is right at any Speed.
func (e *Engine) Run(ctx context.Context) error {
	defer close(e.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	next := time.Now()
	for {
		e.mu.Lock()
		stepMS, busy := e.batch.plan()
		e.mu.Unlock()
		if !busy {
			select {
			case <-e.wake:
				next = time.Now()
				continue
			case <-ctx.Done():
				return nil
			}
		}
		next = next.Add(time.Duration(stepMS / e.opts.Speed * float64(time.Millisecond)))
		wait := time.Until(next)
		if wait < -maxLag {
			next = time.Now()
		}
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return nil
			}
		} else if ctx.Err() != nil {
			return nil
		}
		e.mu.Lock()
		e.batch.apply()
		e.mu.Unlock()
	}
}

// Running returns how many sequences are in the batch.
func (e *Engine) Running() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.batch.running)
}

// Waiting returns how many sequences wait for a place in the batch.
func (e *Engine) Waiting() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.batch.waiting)
}

// MaxRunning returns the largest batch there ever was.
func (e *Engine) MaxRunning() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.batch.maxRunning
}

// Generations returns how many requests were valid and went to the scheduler.
func (e *Engine) Generations() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.generations
}

// Seen returns the generation requests in arrival order, refused and broken ones too; the latest 8192. A request is in it
// before its first byte is answered; its end is noted just after the client can see it, so tests wait for Ended.
func (e *Engine) Seen() []Seen { return e.seen.all() }

// Models returns the names the engine serves.
func (e *Engine) Models() []string { return append([]string(nil), e.opts.Models...) }

// submit hands sequences to the scheduler, or says why not.
func (e *Engine) submit(id string, seqs []*sequence) *apiError {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.opts.MaxQueued > 0 && len(e.batch.running)+len(e.batch.waiting)+len(seqs) > e.opts.MaxQueued {
		return serviceUnavailable("The server is overloaded: too many requests are queued. Please retry later.")
	}
	if e.inUse[id] {
		return badRequest("Request id "+id+" already running.", "")
	}
	e.inUse[id] = true
	e.generations++
	for _, s := range seqs {
		e.batch.add(s)
	}
	e.poke()
	return nil
}

// leave frees the request's id and makes the scheduler drop what has not finished, counted under reason.
func (e *Engine) leave(id, reason string, seqs []*sequence) {
	e.abandon(reason, seqs)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.inUse, id)
}

// abandon makes the scheduler drop what has not finished.
func (e *Engine) abandon(reason string, seqs []*sequence) {
	for _, s := range seqs {
		if !s.done.Load() {
			s.abandoned.CompareAndSwap(nil, &reason)
		}
	}
	e.poke()
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}
