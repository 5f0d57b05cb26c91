package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// meterDelay is added to each direction between headgate and Redis: above what a busy machine adds by itself, and a round
// trip below the 150 ms after which a cache that has not answered counts as a miss.
const meterDelay = 50 * time.Millisecond

// metered is one way to reach Redis through relays whose delay can be set.
type metered struct {
	name  string
	redis string // URL
	cache string // HG_CACHE_REDIS_URL; "" = the same
	delay func(time.Duration)
	cli   func(key string, args ...string) string // against the node of a key
	apart func(tenant string) bool                // the tenant's hash slot is on another node than the pool's
}

// TestPromise1_TwoRoundTrips proves from outside what round_trips says, for every shape of a request: with a delay d in each
// direction the engine sees it one round trip (2d) later than without, and the client gets its answer as soon as the engine
// has given it. It prints the table of bench/README.md and compares.
func TestPromise1_TwoRoundTrips(t *testing.T) {
	t.Parallel()
	waits := map[string]map[string]string{} // by topology and shape
	var mu sync.Mutex
	t.Run("measure", func(t *testing.T) {
		for _, make := range []func(*testing.T) metered{standalone, secondRedis, ofCluster} {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				m := newMeter(t, make(t))
				found := m.measureAll()
				mu.Lock()
				defer mu.Unlock()
				waits[m.name] = found
			})
		}
	})
	if t.Failed() {
		return // nothing to compare
	}
	table := waitsTable(waits)
	t.Logf("\n%s", table)
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(table) {
		if !strings.Contains(string(text), line) {
			t.Errorf("bench/README.md does not say %s", line)
		}
	}
}

func standalone(t *testing.T) metered {
	redis := lab.Redis(t)
	relay := lab.Relay(t, redis.Addr)
	return metered{"one Redis", "redis://" + relay.Addr, "", relay.SetDelay,
		func(_ string, args ...string) string { return redis.CLI(args...) }, func(string) bool { return true }}
}

func secondRedis(t *testing.T) metered {
	redis, cache := lab.Redis(t), lab.Redis(t)
	one, two := lab.Relay(t, redis.Addr), lab.Relay(t, cache.Addr)
	t.Cleanup(func() {
		if n := cache.CLI("DBSIZE"); n == "0" || redis.CLI("--scan", "--pattern", "*:cache:*") != "" {
			t.Errorf("answers were not kept in the second Redis: it holds %s keys", n)
		}
	})
	return metered{"a second for the cache", "redis://" + one.Addr, "redis://" + two.Addr, func(d time.Duration) { one.SetDelay(d); two.SetDelay(d) },
		func(_ string, args ...string) string { return redis.CLI(args...) }, func(string) bool { return true }}
}

func ofCluster(t *testing.T) metered {
	c := lab.ClusterRelayed(t, 3, 0)
	pool := c.Owner("{p:qwen}")
	return metered{"cluster", c.URL(), "", c.SetDelay, c.CLI, func(tenant string) bool { return c.Owner("{t:"+tenant+"}") != pool }}
}

// meter is one replica behind relays.
type meter struct {
	metered
	*stack
	t      *testing.T
	narrow *scripted.Server // one slot
	tenant int
	asked  int
}

const meteredModels = `models:
  qwen: {price: {prompt: 2, completion: 6}, max_output_tokens: 64}
  exact: {pool: qwen, price: {prompt: 2, completion: 6}, cache: {ttl: 10m}}
  narrow: {price: {prompt: 2, completion: 6}}
  nowhere: {price: {prompt: 2, completion: 6}}
`

func newMeter(t *testing.T, how metered) *meter {
	m := &meter{metered: how, t: t, stack: &stack{consul: lab.Consul(t)}, narrow: scripted.Start(t, "narrow")}
	m.addEngine(t, "b1", engine.Options{Speed: 20, Slots: 64})
	env := []string{"HG_REDIS_TIMEOUT=5s", "HG_BACKENDS=narrow=http://" + m.narrow.Addr + ";slots=1;id=n1"}
	if how.cache != "" {
		env = append(env, "HG_CACHE_REDIS_URL="+how.cache)
	}
	m.Fleet = fleet.Start(t, fleet.Options{Redis: how.redis, Consul: m.consul.Addr, Catalogue: meteredModels, Env: env})
	m.waitServed(t, m.Replicas[0], 1)
	lab.Eventually(t, patience, func() bool { return healthyIn(m.Replicas[0], []string{"narrow"}) }, "the narrow pool is served")
	return m
}

// measureAll returns, for each shape, the whole number of waits before the answer and after it, as "1 + 0".
func (m *meter) measureAll() map[string]string {
	found := map[string]string{}
	for _, s := range shapes {
		found[s.name] = m.measure(s)
	}
	found[queuedShape] = m.measureQueued()
	return found
}

// run is what one request told.
type run struct {
	lead, lag time.Duration // from the client's start to the engine, or to the answer where no engine is asked; from the engine's end to the client's
	trips     int           // by the usage line
}

// measure compares runs without and with the delay. What a busy machine adds is not Redis: of each the shortest counts, and
// more are made while they do not agree.
func (m *meter) measure(s shape) string {
	var plain, delayed []run
	var before, after float64
	for range 12 {
		plain, delayed = append(plain, m.once(s, 0)), append(delayed, m.once(s, meterDelay))
		before = trips(plain, delayed, func(r run) time.Duration { return r.lead })
		after = trips(plain, delayed, func(r run) time.Duration { return r.lag })
		if len(plain) > 1 && before > float64(s.waits)-0.2 && before < float64(s.waits)+0.4 && after < 0.3 {
			break
		}
	}
	m.t.Logf("%-22s %-40s %.2f waits before, %.2f after", m.name, s.name, before, after)
	if before < float64(s.waits)-0.45 || before > float64(s.waits)+0.45 {
		m.t.Errorf("%s, %s: %.2f round trips before the answer, want %d", m.name, s.name, before, s.waits)
	}
	if after > 0.3 {
		m.t.Errorf("%s, %s: the client waited %.2f round trips after the engine was done, want 0", m.name, s.name, after)
	}
	for _, r := range append(plain, delayed...) {
		if r.trips != s.waits {
			m.t.Errorf("%s, %s: round_trips is %d, want %d", m.name, s.name, r.trips, s.waits)
		}
	}
	return fmt.Sprintf("%.0f + %.0f", before, max(after, 0))
}

// trips is how many round trips the delay added.
func trips(plain, delayed []run, of func(run) time.Duration) float64 {
	shortest := func(runs []run) time.Duration {
		best := of(runs[0])
		for _, r := range runs[1:] {
			best = min(best, of(r))
		}
		return best
	}
	return float64(shortest(delayed)-shortest(plain)) / float64(2*meterDelay)
}

// once makes a tenant and a key, asks in the shape, and says what was seen.
func (m *meter) once(s shape, delay time.Duration) run {
	m.t.Helper()
	for late := 0; ; late++ {
		c := m.newCaller()
		c.prepare(s)
		body := c.body(s)
		label := c.label()
		before := len(m.engines[0].Seen())
		m.delay(delay)
		started := time.Now()
		a := ask(m.t, "POST", m.Replicas[0].URL+s.path, c.key, body, append(s.fields, "X-Request-Id: "+label)...)
		ended := time.Now()
		m.delay(0)
		seen := m.engines[0].Seen()[before:]
		if s.hit && len(seen) == 1 && late < 5 { // an answer after 150 ms counts as a miss: on a busy machine it may be
			continue
		}
		if a.Status != s.status || len(seen) != map[bool]int{true: 1}[s.status == 200 && !s.hit] {
			m.t.Fatalf("%s, %s: status %d, the engine saw %d requests: %s", m.name, s.name, a.Status, len(seen), a.Body)
		}
		if s.says != "" && !strings.Contains(a.Body, s.says) {
			m.t.Errorf("%s: not refused for what it should: %s", s.name, a.Body)
		}
		r := run{lead: ended.Sub(started), trips: m.lineOf(m.t, label).RoundTrips}
		if len(seen) == 1 {
			r.lead, r.lag = seen[0].Time.Sub(started), ended.Sub(seen[0].Ended)
		}
		return r
	}
}

const queuedShape = "chat, queued: beside the time queued"

// measureQueued has one request hold the only slot while the other waits for it. What the second takes besides the time in
// the queue, by its own line, is one round trip.
func (m *meter) measureQueued() string {
	var plain, delayed []run
	for range 3 {
		plain, delayed = append(plain, m.queuedOnce(0)), append(delayed, m.queuedOnce(meterDelay))
	}
	before := trips(plain, delayed, func(r run) time.Duration { return r.lead })
	after := trips(plain, delayed, func(r run) time.Duration { return r.lag })
	m.t.Logf("%-22s %-40s %.2f waits before, %.2f after", m.name, queuedShape, before, after)
	if before < 0.55 || before > 1.45 || after > 0.3 {
		m.t.Errorf("%s: a queued request waits %.2f round trips beside the queue and %.2f after", m.name, before, after)
	}
	for _, r := range append(plain, delayed...) {
		if r.trips != 1 {
			m.t.Errorf("%s: round_trips of a queued request is %d", m.name, r.trips)
		}
	}
	return fmt.Sprintf("%.0f + %.0f", before, max(after, 0))
}

func (m *meter) queuedOnce(delay time.Duration) run {
	m.t.Helper()
	release := make(chan struct{})
	var ended time.Time
	note := scripted.Do(func() { ended = time.Now() })
	m.narrow.Answer(func(q *scripted.Request) scripted.Script {
		if promptOf(q) == "holds" {
			return append(scripted.Script{scripted.Until(release)}, scripted.JSON(200, scripted.J(10, 3))...)
		}
		return append(scripted.Script{note}, scripted.JSON(200, scripted.J(10, 3))...)
	})
	c := m.newCaller()
	c.prepare(shape{})
	var holder sync.WaitGroup
	before := len(m.narrow.Requests())
	holder.Go(func() {
		if a := fleet.Ask(m.t, m.Replicas[0].URL, c.key, fleet.Chat("narrow", "holds")); a.Status != 200 {
			m.t.Errorf("the holder: %d %s", a.Status, a.Body)
		}
	})
	defer holder.Wait()
	lab.Eventually(m.t, patience, func() bool { return len(m.narrow.Requests()) == before+1 }, "the slot is held")
	label := c.label()
	m.delay(delay)
	defer m.delay(0)
	go func() {
		defer close(release)
		queue := "hg:{p:narrow}:queue"
		for until := time.Now().Add(patience); time.Now().Before(until) && m.cli(queue, "ZCARD", queue) != "1"; {
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(3 * meterDelay) // it is told so, and waits
	}()
	started := time.Now()
	a := fleet.Ask(m.t, m.Replicas[0].URL, c.key, fleet.Chat("narrow", "waits"), "X-Request-Id: "+label)
	got := time.Now()
	requests := m.narrow.Requests()
	line := m.lineOf(m.t, label)
	if a.Status != 200 || len(requests) != before+2 || line.QueueMS == 0 {
		m.t.Fatalf("%d %s; %d requests; %s", a.Status, a.Body, len(requests), line.Raw)
	}
	return run{requests[before+1].Arrived.Sub(started) - time.Duration(line.QueueMS)*time.Millisecond, got.Sub(ended), line.RoundTrips}
}

// caller is a tenant of its own with one key, limited in every way but not by much.
type caller struct {
	m            *meter
	tenant, root string
	key, record  string
	team         string // redis key of the policy
	served       string // text of the prompt that was served before
	previous     string // id of a Responses object
}

func (m *meter) newCaller() *caller {
	m.tenant++
	c := &caller{m: m, tenant: "t" + strconv.Itoa(m.tenant)}
	for !m.apart(c.tenant) {
		c.tenant += "x"
	}
	c.root = "hg:{t:" + c.tenant + "}"
	c.key = fmt.Sprintf("sk-%s-%032d", c.tenant, m.tenant)
	c.record, c.team = keyRecord(c.tenant, c.key), c.root+":team:search"
	c.set(c.root, "name", c.tenant)
	c.set(c.team, "rpm", "1000", "tpm", "1000000", "budget_usd", "5", "period", "month")
	c.set(c.record, "id", "k1", "team", "search", "user", "ann", "rpm", "1000", "tpm", "1000000", "budget_usd", "1", "period", "day")
	c.served = "first use of " + c.tenant
	return c
}

func (c *caller) set(record string, fields ...string) {
	c.m.cli(record, append([]string{"HSET", record}, fields...)...)
}

func (c *caller) label() string { c.m.asked++; return fmt.Sprintf("m%d", c.m.asked) }

// prepare has the key used once, unless its first use is the shape, and then does what the shape needs done.
func (c *caller) prepare(s shape) {
	c.m.t.Helper()
	if !s.first {
		warm := shape{path: "/v1/chat/completions", ask: `{"model":"exact","messages":[{"role":"user","content":"%"}],"max_tokens":3}`, status: 200}
		if a := ask(c.m.t, "POST", c.m.Replicas[0].URL+warm.path, c.key, c.body(warm), s.fields...); a.Status != 200 {
			c.m.t.Fatalf("first use: %d %s", a.Status, a.Body)
		}
		lab.Eventually(c.m.t, patience, func() bool {
			open := c.root + ":open"
			return c.m.cli(open, "HLEN", open) == "0"
		}, "it is settled")
	}
	if s.before != nil {
		s.before(c)
	}
}

// body is the shape's for this caller; % stands for a prompt nobody asked before, or the one that was.
func (c *caller) body(s shape) string {
	content := c.served
	if !s.hit && s.ask != "" && s.name != "" {
		content = "hello from " + c.tenant
	}
	return strings.NewReplacer("%", content, "^", c.previous).Replace(s.ask)
}
