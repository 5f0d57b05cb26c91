package cluster

import (
	"context"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Reading is what one engine said of itself.
type Reading struct {
	Backend                                 string
	Running, Waiting                        int64
	KVUse                                   float64 // 0 to 1; 0 = not said
	KVTokens                                int64   // capacity; 0 = not said
	PromptTokens, PrefixQueries, PrefixHits int64   // tokens since the process began; 0 = not said
	// Started is another text after each start of the process; "" = nothing new is known of it.
	Started string
}

// Look is some backends of one pool, at most 64.
type Look struct {
	Pool     string
	Backends []string
}

// Published is readings of one pool with what the fleet held when its engines were asked.
type Published[S any] struct {
	Pool     string
	Held     S
	Readings []Reading
}

// Board is where the replicas share what they read. S is what the fleet held on the backends of one Look.
type Board[S any] interface {
	// Living are the replicas that live; nobody while that is not known. It must not block.
	Living() []string
	// Busy reports whether this replica has requests in a pool. It must not block.
	Busy(pool string) bool
	// Before looks, in one flush, at what the fleet holds: one result for each of looks.
	Before(ctx context.Context, looks []Look) ([]S, error)
	// Publish writes all in one flush.
	Publish(ctx context.Context, all []Published[S]) error
}

const (
	// readEvery is the pace of GET /metrics in a pool with requests, idleEvery in one that has had none for idleAfter.
	readEvery = 250 * time.Millisecond
	idleEvery = time.Second
	idleAfter = time.Minute
	// roundLimit is when a round publishes what it has; who answers later goes into the next one.
	roundLimit = 150 * time.Millisecond
	// readTimeout is long because /metrics shares the engine's event loop with tokenization. What is older than 5 s is of
	// no use to anybody.
	readTimeout = 4 * time.Second
	// readPause follows a failed reading, twice as long each time up to longestPause: many engines have no /metrics.
	readPause    = time.Second
	longestPause = 15 * time.Second
	// readWorkers bounds the requests to engines at a time.
	readWorkers = 32
	// lookSize bounds a Look.
	lookSize = 64
)

// Readings asks engines what runs there and tells the fleet. It says nothing of an engine's health: a slow or missing
// /metrics takes no backend out.
//
//	R1  A backend is read by the two living replicas that hashing chose, and by no other.
//	R2  A round is one flush before engines are asked, and one behind it.
//	R3  No engine is asked again before it has answered or 4 s have passed; at most 32 are asked at a time.
//	R4  An engine that does not answer delays no other's reading by more than a round.
type Readings[S any] struct {
	pools  func() []*Pool
	board  Board[S]
	log    zerolog.Logger
	prober prober

	work chan scrape[S]
	done chan scrape[S] // with a place for each worker, so that none waits for the next round

	// Of Run's goroutine alone.
	looks  int // so far
	share  share
	meters map[meterKey]*meter
	busy   map[string]time.Time // by pool: when it last had requests
}

type meterKey struct{ pool, backend string }

// scrape is one request to an engine, and then its answer.
type scrape[S any] struct {
	backend *Backend
	look    int // in which its Look was
	held    S
	said    exposition
	err     error
}

// NewReadings prepares the readings of the replica of that name, as Board.Living has it; it asks nobody before Run. roots are the
// authorities of https engines; nil: the system's.
func NewReadings[S any](replica string, pools func() []*Pool, board Board[S], roots *x509.CertPool, log zerolog.Logger) *Readings[S] {
	return &Readings[S]{pools: pools, board: board, log: log, prober: newProber(roots),
		work: make(chan scrape[S]), done: make(chan scrape[S], readWorkers),
		share: share{replica: replica}, meters: map[meterKey]*meter{}, busy: map[string]time.Time{}}
}

// Run reads until ctx ends; it returns nil.
func (r *Readings[S]) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range readWorkers {
		workers.Go(func() { r.worker(ctx) })
	}
	defer r.prober.close()
	defer workers.Wait()
	if !sleep(ctx, rand.N(readEvery)) { // so that the replicas do not ask in step
		return nil
	}
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for {
		r.round(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// round asks the engines that are due and publishes what they and earlier ones said. Redis away means no readings: those
// of before end by themselves.
func (r *Readings[S]) round(ctx context.Context) {
	looks, before := r.due(time.Now()), r.looks
	var scrapes []scrape[S]
	if len(looks) > 0 {
		held, err := r.board.Before(ctx, named(looks)) // R2
		if err == nil {
			scrapes = r.scrapes(looks, held)
		}
	}
	answers := r.ask(ctx, scrapes, before)
	if len(answers) > 0 && ctx.Err() == nil { // what was cut by our own end says nothing of an engine
		r.publish(ctx, answers)
	}
}

// due is the backends that this replica reads and that are to be asked now, by pool.
func (r *Readings[S]) due(now time.Time) (looks [][]*Backend) {
	pools := r.pools()
	r.share.of(pools, r.board.Living())
	reads := make(map[meterKey]bool, len(r.meters))
	for _, p := range pools {
		every := r.pace(p.Name, now)
		var due []*Backend
		for _, b := range r.share.mine[p] {
			key := meterKey{b.Pool, b.ID}
			reads[key] = true
			if b.Healthy() && r.meter(key, b.Host).due(now, every) {
				due = append(due, b)
			}
		}
		for part := range slices.Chunk(due, lookSize) {
			looks = append(looks, part)
		}
	}
	for key, m := range r.meters {
		if !reads[key] && !m.asking {
			delete(r.meters, key)
		}
	}
	return looks
}

// pace is how often the backends of a pool are read.
func (r *Readings[S]) pace(pool string, now time.Time) time.Duration {
	if r.board.Busy(pool) {
		r.busy[pool] = now
	}
	if last, ever := r.busy[pool]; !ever || now.Sub(last) > idleAfter {
		return idleEvery
	}
	return readEvery
}

func (r *Readings[S]) meter(key meterKey, host string) *meter {
	m := r.meters[key]
	if m == nil {
		m = &meter{host: host}
		r.meters[key] = m
	}
	m.at(host)
	return m
}

func named(looks [][]*Backend) []Look {
	all := make([]Look, len(looks))
	for i, look := range looks {
		all[i].Pool = look[0].Pool
		for _, b := range look {
			all[i].Backends = append(all[i].Backends, b.ID)
		}
	}
	return all
}

// scrapes are the requests of a round, whose engine was asked longest ago first: not all may come to their turn.
func (r *Readings[S]) scrapes(looks [][]*Backend, held []S) (all []scrape[S]) {
	for i, look := range looks {
		r.looks++
		for _, b := range look {
			all = append(all, scrape[S]{backend: b, look: r.looks, held: held[i]})
		}
	}
	slices.SortStableFunc(all, func(a, b scrape[S]) int { return r.of(a).asked.Compare(r.of(b).asked) })
	return all
}

func (r *Readings[S]) of(s scrape[S]) *meter { return r.meters[meterKey{s.backend.Pool, s.backend.ID}] }

// ask gives the scrapes to the workers and returns what was answered within the limit of a round, also what is there of
// earlier rounds, whose looks were not after before. // R4
func (r *Readings[S]) ask(ctx context.Context, scrapes []scrape[S], before int) (answers []scrape[S]) {
	limit := time.NewTimer(roundLimit)
	defer limit.Stop()
	for open := 0; len(scrapes) > 0 || open > 0; {
		work, next := r.work, scrape[S]{}
		if len(scrapes) > 0 {
			next = scrapes[0]
		} else {
			work = nil
		}
		select {
		case work <- next:
			m := r.of(next)
			m.asked, m.asking = time.Now(), true
			scrapes, open = scrapes[1:], open+1
		case s := <-r.done:
			if s.look > before {
				open--
			}
			answers = append(answers, s)
		case <-limit.C:
			return answers
		case <-ctx.Done():
			return nil
		}
	}
	return r.late(answers)
}

// late adds what is there already of engines that were asked in earlier rounds.
func (r *Readings[S]) late(answers []scrape[S]) []scrape[S] {
	for {
		select {
		case s := <-r.done:
			answers = append(answers, s)
		default:
			return answers
		}
	}
}

// publish files the answers and tells the fleet.
func (r *Readings[S]) publish(ctx context.Context, answers []scrape[S]) {
	var all []Published[S]
	var told []*meter
	places := map[int]int{} // in all, by look
	for _, s := range answers {
		b, m := s.backend, r.of(s)
		if m.host != b.Host { // it has moved since
			m.asking = false
			continue
		}
		if m.take(b, s.said, s.err, r.log) {
			r.busy[b.Pool] = time.Now()
		}
		if s.err != nil {
			continue
		}
		at, ok := places[s.look]
		if !ok {
			at = len(all)
			places[s.look] = at
			all = append(all, Published[S]{Pool: b.Pool, Held: s.held})
		}
		all[at].Readings = append(all[at].Readings, Reading{Backend: b.ID, Running: s.said.running, Waiting: s.said.waiting,
			KVUse: s.said.kvUse, KVTokens: s.said.kvTokens, PromptTokens: s.said.promptTokens,
			PrefixQueries: s.said.prefixQueries, PrefixHits: s.said.prefixHits, Started: m.started()})
		told = append(told, m)
	}
	if len(all) > 0 && r.board.Publish(ctx, all) == nil { // R2
		for _, m := range told {
			m.published()
		}
	}
}

func (r *Readings[S]) worker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-r.work:
			s.said, s.err = r.prober.metrics(ctx, s.backend)
			select {
			case r.done <- s:
			case <-ctx.Done():
				return
			}
		}
	}
}

// metrics asks GET /metrics once.
func (p prober) metrics(ctx context.Context, b *Backend) (exposition, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	resp, err := p.open(ctx, spec{scheme: b.Scheme, host: b.Host, addr: b.Addr, basePath: b.BasePath}, "/metrics")
	if err != nil {
		return exposition{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return exposition{}, fmt.Errorf("GET /metrics: status %d", resp.StatusCode)
	}
	return parseExposition(resp.Body)
}
