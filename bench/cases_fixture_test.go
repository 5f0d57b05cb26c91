package bench

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// patience bounds every wait of the cases that is not itself promised.
const patience = 20 * time.Second

// world is what all cases share: two replicas on one Redis and one Consul. Each case has a lane of its own in it.
type world struct {
	*fleet.Fleet
	redis  *lab.RedisServer
	consul *lab.ConsulServer
}

// maxLanes is how many models the catalogue names.
const maxLanes = 500

var lanesUsed atomic.Int64

// cases is the world in which streams may be silent for 2 s.
var cases = fleet.Share(func(t testing.TB) *world {
	return newWorld(t, 2, "HG_STREAM_SILENCE=2s", "HG_CORS_ORIGINS=https://app.example")
})

func newWorld(t testing.TB, replicas int, env ...string) *world {
	t.Helper()
	w := &world{redis: lab.Redis(t), consul: lab.Consul(t)}
	w.start(t, replicas, env)
	return w
}

// beside is one more replica, with settings of its own, for this test alone. It shares Redis and Consul with the others.
func (w *world) beside(t testing.TB, env ...string) *world {
	t.Helper()
	own := &world{redis: w.redis, consul: w.consul}
	own.start(t, 1, env)
	return own
}

func (w *world) start(t testing.TB, replicas int, env []string) {
	t.Helper()
	w.Fleet = fleet.Start(t, fleet.Options{Replicas: replicas, Redis: w.redis.URL(), Consul: w.consul.Addr, Catalogue: laneModels(), Env: env})
}

// laneModels is the catalogue of a world.
func laneModels() string {
	models := "models:\n"
	for i := range maxLanes {
		models += "  " + modelName(i) + ": {price: {prompt: 2, completion: 6}, max_output_tokens: 64}\n"
		models += "  " + cachedName(i) + ": {price: {prompt: 2, completion: 6}, max_output_tokens: 64, cache: {ttl: 10m, max_bytes: 1048576}}\n"
	}
	return models
}

func modelName(lane int) string  { return fmt.Sprintf("m-small-%03d", lane) }
func cachedName(lane int) string { return fmt.Sprintf("m-cached-%03d", lane) }

// lane is one test's part of a world: a tenant with one key, and a model with backends B1, B2 … that nobody else uses.
// Its price: 2 micro-dollars a prompt token, 6 an output token.
type lane struct {
	*world
	t      testing.TB
	tenant string
	model  string
	key    string
	b      []*scripted.Server
	asked  *atomic.Int64
}

// newLane makes one. policy is what its key may do: arguments of `headgate keys create`.
func newLane(t testing.TB, w *world, backends, slots int, policy ...string) *lane {
	t.Helper()
	return w.lane(t, modelName, backends, slots, policy...)
}

// newCachedLane is newLane with a model whose answers may be cached.
func newCachedLane(t testing.TB, w *world, backends, slots int, policy ...string) *lane {
	t.Helper()
	return w.lane(t, cachedName, backends, slots, policy...)
}

func (w *world) lane(t testing.TB, name func(int) string, backends, slots int, policy ...string) *lane {
	t.Helper()
	n := int(lanesUsed.Add(1))
	if n >= maxLanes {
		t.Fatalf("more than %d lanes", maxLanes)
	}
	l := &lane{world: w, t: t, tenant: fmt.Sprintf("t%03d", n), model: name(n), asked: new(atomic.Int64)}
	for i := range backends {
		b := scripted.Start(t, l.model)
		l.b = append(l.b, b)
		host, port, _ := net.SplitHostPort(b.Addr)
		number, _ := strconv.Atoi(port)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = cluster.Register(ctx, w.consul.Addr, cluster.Registration{ID: l.backend(i), Service: "vllm", Address: host, Port: number, TTL: time.Minute,
				Meta: map[string]string{"model": l.model, "pool": l.model, "slots": strconv.Itoa(slots)}}, zerolog.Nop())
		}()
		t.Cleanup(func() { cancel(); <-done })
	}
	l.key = w.Key(append([]string{"--tenant", l.tenant, "--models", l.model}, policy...)...)
	l.waitHealthy(backends)
	return l
}

// in is the lane for a subtest.
func (l *lane) in(t testing.TB) *lane {
	sub := *l
	sub.t = t
	return &sub
}

// backend is the id of B1 (0), B2 (1) …
func (l *lane) backend(i int) string { return fmt.Sprintf("%s-b%d", l.model, i+1) }

// waitHealthy returns when every replica uses n backends of the lane.
func (l *lane) waitHealthy(n int) {
	l.t.Helper()
	for _, r := range l.Replicas {
		lab.Eventually(l.t, patience, func() bool { return l.healthy(r) == n }, "%s uses %d backends of %s", r.Name, n, l.model)
	}
}

func (l *lane) healthy(r *fleet.Replica) int {
	return int(r.Metric(`headgate_backends{pool="` + l.model + `",state="healthy"}`))
}

// play has attempt number n of every request answered by script n, whichever backend it goes to; attempts beyond the last
// script get that one. What the fleet holds against the backends for what went before is forgotten.
func (l *lane) play(scripts ...scripted.Script) {
	l.t.Helper()
	for i, b := range l.b {
		b.Answer(func(q *scripted.Request) scripted.Script {
			attempt := q.Attempt()
			if attempt < 1 {
				l.t.Errorf("a request that is no client's: %q", q.Head)
				return nil
			}
			return scripts[min(attempt, len(scripts))-1]
		})
		l.forgive(i)
	}
}

// forgive ends a backend's cool-down.
func (l *lane) forgive(i int) {
	l.t.Helper()
	l.redis.CLI("HDEL", "hg:{p:"+l.model+"}:backend:"+l.backend(i), "cooldown_until", "failures", "silent")
}

// req is REQ, reqS is REQ-S; more are further members of the body.
func (l *lane) req(more ...string) string { return fleet.Chat(l.model, "hi", more...) }
func (l *lane) reqS(more ...string) string {
	return l.req(append([]string{`"stream":true`, `"stream_options":{"include_usage":true}`}, more...)...)
}

// id is a label for the next request.
func (l *lane) id() string { return fmt.Sprintf("%s-%d", l.tenant, l.asked.Add(1)) }

// ask posts a chat request to the first replica and returns the answer with its usage line.
func (l *lane) ask(body string, fields ...string) (fleet.Answer, fleet.Line) {
	l.t.Helper()
	id := l.id()
	a := fleet.Ask(l.t, l.Replicas[0].URL, l.key, body, append(fields, "X-Request-Id: "+id)...)
	return a, l.line(id)
}

// line waits for the one usage line of a request.
func (l *lane) line(id string) fleet.Line {
	l.t.Helper()
	var found []fleet.Line
	lab.Eventually(l.t, patience, func() bool {
		found = l.linesOf(id)
		return len(found) > 0
	}, "a usage line for %s", id)
	if len(found) != 1 {
		l.t.Errorf("%d usage lines for %s", len(found), id)
	}
	return found[0]
}

func (l *lane) linesOf(id string) (found []fleet.Line) {
	for _, line := range l.Lines() {
		if line.RequestID == id {
			found = append(found, line)
		}
	}
	return found
}

// lines waits for n usage lines of the lane's tenant and returns them by request id; two of one id fail the test.
func (l *lane) lines(n int) map[string]fleet.Line {
	l.t.Helper()
	found := map[string]fleet.Line{}
	lab.Eventually(l.t, patience, func() bool {
		clear(found)
		for _, line := range l.Lines() {
			if line.Tenant != l.tenant {
				continue
			}
			if twin, ok := found[line.RequestID]; ok {
				l.t.Errorf("two usage lines of one request:\n%s%s", twin.Raw, line.Raw)
			}
			found[line.RequestID] = line
		}
		return len(found) >= n
	}, "%d usage lines of %s", n, l.tenant)
	return found
}

// charged checks what a usage line says was used, and that the cost follows from it.
func (l *lane) charged(line fleet.Line, outcome, source string, prompt, completion int64) {
	l.t.Helper()
	if line.Outcome != outcome || line.UsageSource != source || line.Prompt != prompt || line.Completion != completion {
		l.t.Errorf("want %s with %d/%d by %s: %s", outcome, prompt, completion, source, line.Raw)
	}
	l.costs(line, 1000*(2*prompt+6*completion))
}

func (l *lane) costs(line fleet.Line, nusd int64) {
	l.t.Helper()
	if line.CostNUSD == nil || *line.CostNUSD != nusd {
		l.t.Errorf("want a cost of %d nano-dollars: %s", nusd, line.Raw)
	}
}

// books waits until nothing is reserved or held any more and compares what Redis says was spent with the sum of the lane's
// usage lines, which it returns.
func (l *lane) books() (spent int64) {
	l.t.Helper()
	lab.Succeeds(l.t, patience, l.quiet, "nothing of %s is reserved or held", l.tenant)
	for _, line := range l.Lines() {
		if line.Tenant == l.tenant && line.CostNUSD != nil {
			spent += *line.CostNUSD
		}
	}
	if got := l.spend("spent_nusd"); got != spent {
		l.t.Errorf("Redis says %d nano-dollars were spent, the usage lines %d", got, spent)
	}
	return spent
}

func (l *lane) quiet() error {
	root := "hg:{t:" + l.tenant + "}"
	for _, key := range []string{":open", ":parallel"} {
		if n := l.redis.CLI("HLEN", root+key); n != "0" {
			return fmt.Errorf("%s entries in %s", n, key)
		}
	}
	if n := l.spend("reserved_nusd"); n != 0 {
		return fmt.Errorf("%d nano-dollars are reserved", n)
	}
	if n := l.slots(); n != 0 {
		return fmt.Errorf("%d slots are held", n)
	}
	return nil
}

// spend is a field of the tenant's counter of this month.
func (l *lane) spend(field string) int64 {
	n, _ := strconv.ParseInt(l.redis.CLI("HGET", "hg:{t:"+l.tenant+"}:spend:tenant:"+l.tenant+":"+time.Now().UTC().Format("2006-01"), field), 10, 64)
	return n
}

// slots is the sum of the leases on the lane's backends.
func (l *lane) slots() (sum int64) {
	for i := range l.b {
		n, _ := strconv.ParseInt(l.redis.CLI("HGET", "hg:{p:"+l.model+"}:backend:"+l.backend(i), "held"), 10, 64)
		sum += n
	}
	return sum
}

// counters are the tenant's keys that a refused request must not have made.
func (l *lane) counters() string {
	return l.redis.CLI("KEYS", "hg:{t:"+l.tenant+"}:*rate*") + l.redis.CLI("KEYS", "hg:{t:"+l.tenant+"}:spend*") + l.redis.CLI("KEYS", "hg:{t:"+l.tenant+"}:open")
}

// counted is how many requests of the last minute count against the limits of the tenant's keys.
func (l *lane) counted() (sum int) {
	for key := range strings.FieldsSeq(l.redis.CLI("KEYS", "hg:{t:"+l.tenant+"}:rate:*")) {
		n, _ := strconv.Atoi(l.redis.CLI("HGET", key, "requests"))
		sum += n
	}
	return sum
}

// requests are those all backends of the lane were given, B1's first.
func (l *lane) requests() (all []*scripted.Request) {
	for _, b := range l.b {
		all = append(all, b.Requests()...)
	}
	return all
}

// client is one connection to a replica that sends what it is told.
type client struct {
	*net.TCPConn
	l  *lane
	in *bufio.Reader
}

// dial connects to the first replica until the test ends.
func (l *lane) dial() *client {
	l.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(l.Replicas[0].URL, "http://"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return &client{TCPConn: c.(*net.TCPConn), l: l, in: bufio.NewReaderSize(c, 1<<10)}
}

// post sends a chat request with the lane's key; fields are "Name: value".
func (c *client) post(body string, fields ...string) {
	c.l.t.Helper()
	fields = append([]string{"Authorization: Bearer " + c.l.key, "Content-Type: application/json"}, fields...)
	c.send(append(fields, "Content-Length: "+strconv.Itoa(len(body))), body)
}

// send sends a request with exactly these header lines, and Host.
func (c *client) send(fields []string, body string) {
	c.l.t.Helper()
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n" + strings.Join(fields, "\r\n") + "\r\n\r\n"
	if _, err := c.Write([]byte(head + body)); err != nil {
		c.l.t.Fatal(err)
	}
}

// answer reads the head of the answer.
func (c *client) answer() *http.Response {
	c.l.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(3 * patience))
	a, err := http.ReadResponse(c.in, &http.Request{Method: "POST"})
	if err != nil {
		c.l.t.Fatal(err)
	}
	return a
}

// stream is answer for an event stream, and a parser of its events by the standard.
func (c *client) stream() *sse.Reader {
	c.l.t.Helper()
	a := c.answer()
	if a.StatusCode != 200 || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream") {
		c.l.t.Fatalf("no stream: %s %v", a.Status, a.Header)
	}
	return sse.NewReader(a.Body)
}

// leave closes the connection, in order or by a reset, and returns when that was.
func (c *client) leave(reset bool) time.Time {
	if reset {
		_ = c.SetLinger(0)
	}
	at := time.Now()
	c.Close()
	return at
}

// events are the data of a stream's events.
func events(t testing.TB, stream string) (all []string) {
	t.Helper()
	for r := sse.NewReader(strings.NewReader(stream)); ; {
		e, err := r.Next()
		if err != nil {
			return all
		}
		all = append(all, e.Data)
	}
}
