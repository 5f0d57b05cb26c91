package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

// prices: a prompt token costs 2, an answer's token 6 micro-dollars.
const prices = `models:
  qwen:
    price: {prompt: 2, completion: 6}
    max_output_tokens: 64
`

const (
	tenant   = "acme"  // has all the money it needs
	tight    = "tight" // has a budget that runs out
	poolRoot = "hg:{p:qwen}"
)

// setup is what a run stands on. The zero value of a field is its default.
type setup struct {
	replicas int                                // 3
	engines  int                                // 3
	slots    int                                // of each engine: 16
	speed    float64                            // of the engines: 1 is 12 ms between two tokens
	redis    []string                           // further arguments of redis-server
	env      []string                           // further variables of the replicas
	relayed  bool                               // each replica reaches Redis and Consul through relays of its own
	budget   float64                            // of the tight tenant, in dollars a month: 0.02
	under    []string                           // a command that runs the replicas
	each     func(t *testing.T, i int) []string // variables of replica i alone
	program  func(*testing.T) string            // nil: headgate as it is
	store    func(*testing.T) database          // nil: one redis-server
	pair     bool                               // Consul is two servers that need each other
}

// database is the Redis of a run, whatever its shape.
type database interface{ URL() string }

// world is all of it, running.
type world struct {
	t *testing.T
	setup
	*fleet.Fleet
	db      database
	redis   *lab.RedisServer // db, if it is a single server
	consul  *lab.ConsulServer
	servers *lab.ConsulServers // if it is two
	engines []*engineProcess
	toRedis []*lab.RelayServer // [i] stands between replica i and Redis
	toAgent []*lab.RelayServer // [i] between replica i and Consul
	keys    map[string]string  // by tenant
	reader  *pipeline.Store    // what the books are read with

	done map[string]time.Time // when a step was over, by what it says of itself

	directory map[string]string // what a backup has of tenants, keys and policies: DUMP by key
}

func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	s = s.withDefaults()
	w := &world{t: t, setup: s, keys: map[string]string{}, done: map[string]time.Time{}}
	if s.pair {
		w.servers = lab.ConsulPair(t)
		w.consul = w.servers.Asked
	} else {
		w.consul = lab.Consul(t)
	}
	if s.store != nil {
		w.db = s.store(t)
	} else {
		w.redis = lab.Redis(t, s.redis...)
		w.db = w.redis
	}
	var starting sync.WaitGroup
	w.engines = make([]*engineProcess, s.engines)
	for i := range w.engines {
		starting.Go(func() {
			w.engines[i] = newEngine(t, engineSpec{ID: fmt.Sprintf("b%d", i+1), Consul: w.consul.Addr, Slots: s.slots, Speed: s.speed})
		})
	}
	starting.Wait()
	o := fleet.Options{Replicas: s.replicas, Redis: w.db.URL(), Consul: w.consul.Addr, Catalogue: prices, Env: append([]string{"HG_REDIS_TIMEOUT=450ms"}, s.env...), Under: s.under}
	if s.relayed {
		o.Each = w.throughRelays
	}
	if s.each != nil {
		o.Each = func(i int) []string { return s.each(t, i) }
	}
	if s.program != nil {
		o.Program = s.program(t)
	}
	w.Fleet = fleet.Start(t, o)
	for _, r := range w.Replicas {
		w.waitHealthy(r, s.engines)
	}
	w.keys[tenant] = w.Key("--tenant", tenant, "--team", "search", "--name", "ci", "--rpm", "1000000", "--tpm", "1000000000", "--parallel", "10000", "--budget", "1000/month")
	w.keys[tight] = w.Key("--tenant", tight, "--budget", fmt.Sprintf("%g/month", s.budget))
	w.openReader()
	w.backUp()
	return w
}

func (s setup) withDefaults() setup {
	for field, value := range map[*int]int{&s.replicas: 3, &s.engines: 3, &s.slots: 16} {
		if *field == 0 {
			*field = value
		}
	}
	if s.speed == 0 {
		s.speed = 1
	}
	if s.budget == 0 {
		s.budget = 0.02
	}
	return s
}

// throughRelays puts replica i behind relays of its own.
func (w *world) throughRelays(i int) []string {
	for len(w.toRedis) <= i {
		w.toRedis = append(w.toRedis, lab.Relay(w.t, w.redis.Addr))
		w.toAgent = append(w.toAgent, lab.Relay(w.t, w.consul.Addr))
	}
	return []string{"HG_REDIS_URL=redis://" + w.toRedis[i].Addr + "/0", "HG_CONSUL_ADDR=" + w.toAgent[i].Addr}
}

func (w *world) waitHealthy(r *fleet.Replica, n int) {
	w.t.Helper()
	lab.Eventually(w.t, 40*time.Second, func() bool { return w.healthy(r) == n }, "%s uses %d engines", r.Name, n)
}

func (w *world) healthy(r *fleet.Replica) int {
	return int(r.Metric(`headgate_backends{pool="qwen",state="healthy"}`))
}

// openReader connects the harness to Redis, past all relays.
func (w *world) openReader() {
	w.t.Helper()
	store, err := pipeline.NewStore(pipeline.StoreConfig{Name: "books", URL: w.db.URL(), Timeout: 2 * time.Second, Log: zerolog.Nop()})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = store.Run(ctx) }()
	w.t.Cleanup(func() { cancel(); <-done })
	if err := store.WaitConnected(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.reader = store
}

// keysOf are the names that match a pattern with a hash tag.
func (w *world) keysOf(pattern string) ([]string, error) {
	m, err := w.reader.Do(w.t.Context(), "KEYS", pattern)
	if err != nil {
		return nil, err
	}
	return m.AsStrSlice()
}

// hash is a hash as it stands in Redis.
func (w *world) hash(key string) (map[string]string, error) {
	m, err := w.reader.Do(w.t.Context(), "HGETALL", key)
	if err != nil {
		return nil, err
	}
	return m.AsStrMap()
}

// size is what a command counts: HLEN, ZCARD.
func (w *world) size(command, key string) (int64, error) {
	m, err := w.reader.Do(w.t.Context(), command, key)
	if err != nil {
		return 0, err
	}
	return m.AsInt64()
}

// root of a tenant's keys.
func root(tenant string) string { return "hg:{t:" + tenant + "}" }

// said are the lines of a replica's log that are errors or warnings, for the log of a run.
func said(r *fleet.Replica) map[string]int {
	all := map[string]int{}
	for line := range strings.Lines(r.Output()) {
		if strings.Contains(line, `"level":"error"`) || strings.Contains(line, `"level":"warn"`) {
			_, text, _ := strings.Cut(line, `"message":"`)
			all[strings.TrimSuffix(strings.TrimSpace(text), `"}`)]++
		}
	}
	return all
}
