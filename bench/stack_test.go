package bench

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/cluster"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// prices: a prompt token costs 2, an answer's token 6 micro-dollars; `exact` charges for the answer alone, so that a
// hold with a cap is the cost itself when the engine ignores its end token.
const prices = `models:
  qwen:
    price: {prompt: 2, completion: 6}
    max_output_tokens: 64
  exact:
    pool: qwen
    price: {prompt: 0, completion: 1}
`

// stack is everything a fleet needs, real: Redis, Consul, engines registered there.
type stack struct {
	redis   *lab.RedisServer
	ask     func(args ...string) string // redis-cli, args[1] is the key; nil: redis.CLI
	consul  *lab.ConsulServer
	engines []*engine.Server
	*fleet.Fleet
}

// engineNames are the models every engine of the stack serves.
var engineNames = []string{"qwen", "exact"}

func newStack(t *testing.T, replicas, engines int, o engine.Options, env ...string) *stack {
	t.Helper()
	return newStackWith(t, prices, replicas, engines, o, env...)
}

func newStackWith(t *testing.T, catalogue string, replicas, engines int, o engine.Options, env ...string) *stack {
	t.Helper()
	s := &stack{redis: lab.Redis(t), consul: lab.Consul(t)}
	for i := range engines {
		s.addEngine(t, fmt.Sprintf("b%d", i+1), o)
	}
	s.Fleet = fleet.Start(t, fleet.Options{Replicas: replicas, Redis: s.redis.URL(), Consul: s.consul.Addr, Catalogue: catalogue, Env: env})
	for _, r := range s.Replicas {
		s.waitServed(t, r, engines)
	}
	return s
}

// addEngine starts an engine and registers it until the test ends.
func (s *stack) addEngine(t *testing.T, id string, o engine.Options) *engine.Server {
	t.Helper()
	o.Models = engineNames
	e, err := engine.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	s.engines = append(s.engines, e)
	register(t, s.consul, id, e.Addr, o.Slots)
	return e
}

// register puts a backend of pool qwen into Consul until the test ends.
func register(t *testing.T, consul *lab.ConsulServer, id, addr string, slots int) {
	t.Helper()
	registerAs(t, consul, id, addr, map[string]string{"model": "qwen,exact", "pool": "qwen", "slots": strconv.Itoa(slots)})
}

// registerAs puts a backend with that service meta into Consul until the test ends.
func registerAs(t *testing.T, consul *lab.ConsulServer, id, addr string, meta map[string]string) {
	t.Helper()
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cluster.Register(ctx, consul.Addr, cluster.Registration{ID: id, Service: "vllm", Address: host, Port: n, TTL: 10 * time.Second, Meta: meta}, zerolog.Nop())
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// waitServed returns when the replica knows n healthy engines, by its own metrics.
func (s *stack) waitServed(t *testing.T, r *fleet.Replica, n int) {
	t.Helper()
	lab.Eventually(t, 30*time.Second, func() bool { return r.Metric(`headgate_backends{pool="qwen",state="healthy"}`) == float64(n) }, "%s uses %d engines", r.Name, n)
}

// seen is every generation request of all engines.
func (s *stack) seen() []engine.Seen {
	var all []engine.Seen
	for _, e := range s.engines {
		all = append(all, e.Seen()...)
	}
	return all
}

// redisCLI is redis-cli at the node that owns args[1].
func (s *stack) redisCLI(args ...string) string {
	if s.ask != nil {
		return s.ask(args...)
	}
	return s.redis.CLI(args...)
}

// spend reads a counter of a spend hash.
func (s *stack) spend(t *testing.T, tenant, scope, id, field string) int64 {
	t.Helper()
	key := "hg:{t:" + tenant + "}:spend:" + scope + ":" + id + ":" + time.Now().UTC().Format("2006-01")
	n, _ := strconv.ParseInt(s.redisCLI("HGET", key, field), 10, 64)
	return n
}

// slots is the sum of the leases on all backends, as redis-cli shows them.
func (s *stack) slots(t *testing.T) int64 {
	t.Helper()
	var sum int64
	for i := range s.engines {
		n, _ := strconv.ParseInt(s.redisCLI("HGET", "hg:{p:qwen}:backend:b"+strconv.Itoa(i+1), "held"), 10, 64)
		sum += n
	}
	return sum
}
