package bench

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// agent is a Consul agent that says what it is told. Registrations of replicas are taken and forgotten.
type agent struct {
	*scripted.Server
	mu    sync.Mutex
	asked []query
}

// query is one look at the list of engines.
type query struct {
	at    time.Time
	index string // that it waits for; "": it does not wait
}

// scriptAgent answers query number n (from 0) as list says.
func scriptAgent(t testing.TB, list func(n int, q query) scripted.Script) *agent {
	t.Helper()
	a := &agent{Server: scripted.Start(t)}
	a.Answer(func(q *scripted.Request) scripted.Script {
		path, query, _ := strings.Cut(q.Target, "?")
		if !strings.HasPrefix(path, "/v1/health/service/vllm") {
			return scripted.JSON(200, "")
		}
		return list(a.note(query))
	})
	return a
}

func (a *agent) note(text string) (n int, q query) {
	values, _ := url.ParseQuery(text)
	q = query{at: time.Now(), index: values.Get("index")}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, q)
	return len(a.asked) - 1, q
}

func (a *agent) queries() []query {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]query(nil), a.asked...)
}

// answered is a list as Consul sends it.
func answered(index int, entries ...string) scripted.Script {
	return scripted.Answer(200, "application/json", "["+strings.Join(entries, ",")+"]", "X-Consul-Index: "+strconv.Itoa(index))
}

// steady is a list that stays: who waits for its index waits.
func steady(index int, entries func() []string) func(int, query) scripted.Script {
	return func(_ int, q query) scripted.Script {
		if q.index == strconv.Itoa(index) {
			return scripted.Script{scripted.Pause(20 * time.Second)}.Then(answered(index, entries()...)...)
		}
		return answered(index, entries()...)
	}
}

// entry is backend number i of the lane at the address of b.
func (l *lane) entry(i int, address string, b *scripted.Server) string {
	_, port, _ := net.SplitHostPort(b.Addr)
	return fmt.Sprintf(`{"Node":{"Node":"n1","Address":"127.0.0.1"},"Service":{"ID":%q,"Service":"vllm","Address":%q,"Port":%s,`+
		`"Meta":{"model":%q,"pool":%[4]q,"slots":"64"}},"Checks":[]}`, l.backend(i), address, port, l.model)
}

// agentLane is a lane whose backends nobody has registered yet. It has a world of its own once it is given an agent.
func agentLane(t testing.TB) *lane {
	return &lane{world: &world{redis: lab.Redis(t)}, t: t, tenant: "t1", model: "m-small", asked: new(atomic.Int64)}
}

// begin starts replicas that ask the agent; n backends are to be well.
func (l *lane) begin(a *agent, replicas, n int) {
	l.t.Helper()
	l.Fleet = fleet.Start(l.t, fleet.Options{Replicas: replicas, Redis: l.redis.URL(), Consul: a.Addr,
		Catalogue: "models: {m-small: {price: {prompt: 2, completion: 6}, max_output_tokens: 64}}\n"})
	l.key = l.Key("--tenant", l.tenant, "--models", l.model, "--budget", "1/month")
	l.waitHealthy(n)
}

// load is a steady stream of requests.
type load struct {
	stop, stopped chan struct{}
	running       sync.WaitGroup
	mu            sync.Mutex
	sent          []sent
}

// sent is one request of a load, and its answer.
type sent struct {
	id, body string
	at       time.Time
	fleet.Answer
}

// load sends so many requests a second, to each of the replicas in turn, until end is called.
func (l *lane) load(perSecond int, replicas []*fleet.Replica, body func(i int) string) *load {
	d := &load{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(d.stopped)
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-d.stop:
				return
			case <-tick.C:
			}
			d.running.Go(func() {
				s := sent{id: l.id(), body: body(i), at: time.Now()}
				s.Answer = fleet.Ask(l.t, replicas[i%len(replicas)].URL, l.key, s.body, "X-Request-Id: "+s.id)
				d.mu.Lock()
				defer d.mu.Unlock()
				d.sent = append(d.sent, s)
			})
		}
	}()
	return d
}

// answered is what was answered so far.
func (d *load) answered() []sent {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.sent)
}

// end waits for the last answer and demands that all are good.
func (d *load) end(t testing.TB) []sent {
	t.Helper()
	close(d.stop)
	<-d.stopped
	d.running.Wait()
	bad := 0
	for _, s := range d.sent {
		if s.Status != 200 {
			if bad++; bad <= 5 {
				t.Errorf("request %s: %d %v %s", s.id, s.Status, s.Err, s.Body)
			}
		}
	}
	if bad > 0 || len(d.sent) == 0 {
		t.Errorf("%d of %d requests failed", bad, len(d.sent))
	}
	return d.sent
}

// TestCON1_AnIndexThatGoesBackwardsRestartsTheWatch: the case.
func TestCON1_AnIndexThatGoesBackwardsRestartsTheWatch(t *testing.T) {
	t.Parallel()
	const atOnce = 100
	l := agentLane(t)
	l.b = []*scripted.Server{scripted.Start(t, l.model), scripted.Start(t, l.model)}
	one, two := l.entry(0, "127.0.0.1", l.b[0]), l.entry(1, "127.0.0.1", l.b[1])
	spin, only := make(chan struct{}), make(chan struct{})
	var third time.Time
	consul := scriptAgent(t, func(n int, q query) scripted.Script {
		switch {
		case n == 0:
			return answered(500, one)
		case n == 1:
			return scripted.Script{scripted.Pause(time.Second)}.Then(answered(20, one, two)...)
		case n == 2:
			third = time.Now()
			close(only)
			return answered(21, two)
		case n == 3:
			return scripted.Script{scripted.Until(spin)}.Then(answered(0, two)...)
		case n < 3+atOnce:
			return answered(0, two)
		case n < 3+2*atOnce:
			return answered(21, two)
		}
		return scripted.Script{scripted.Hang()}
	})
	l.begin(consul, 1, 1)
	d := l.load(10, l.Replicas, func(i int) string { return fleet.Chat(l.model, fmt.Sprint("prompt ", i)) })
	<-only
	time.Sleep(4 * time.Second)
	close(spin)
	lab.Eventually(t, 2*time.Minute, func() bool { return len(consul.queries()) > 3+2*atOnce }, "all answers were asked for")
	all := d.end(t)

	for _, q := range l.b[0].Requests() {
		if q.Arrived.After(third.Add(2 * time.Second)) {
			t.Errorf("a request to B1 %v after the third answer", q.Arrived.Sub(third))
		}
	}
	if n := len(l.requests()); n != len(all) {
		t.Errorf("%d requests were sent, engines had %d", len(all), n)
	}
	queries := consul.queries()
	wants := func(n int) string {
		switch {
		case n == 1:
			return "500"
		case n == 3, n > 3+atOnce:
			return "21"
		}
		return ""
	}
	for n, q := range queries {
		if q.index != wants(n) {
			t.Errorf("query %d waits for index %q, want %q", n+1, q.index, wants(n))
		}
		if n >= 5 && q.at.Sub(queries[n-5].at) < time.Second {
			t.Errorf("query %d is the sixth within %v", n+1, q.at.Sub(queries[n-5].at))
		}
	}
}

// TestCON2_WithoutConsulTheLastKnownBackendsStay: the case at a quarter of its times.
func TestCON2_WithoutConsulTheLastKnownBackendsStay(t *testing.T) {
	t.Parallel()
	const second = time.Second / 4 // of the case
	l := agentLane(t)
	for range 2 {
		b := scripted.Start(t, l.model)
		b.Answer(func(q *scripted.Request) scripted.Script {
			return scripted.Script{scripted.Pause(50 * time.Millisecond)}.Then(usual(q)...)
		})
		l.b = append(l.b, b)
	}
	list := steady(7, func() []string { return []string{l.entry(0, "127.0.0.1", l.b[0]), l.entry(1, "127.0.0.1", l.b[1])} })
	var leaderless atomic.Bool
	consul := scriptAgent(t, func(n int, q query) scripted.Script {
		if leaderless.Load() {
			return scripted.Answer(500, "text/plain", "No cluster leader")
		}
		return list(n, q)
	})
	l.begin(consul, 2, 2)
	first := l.Replicas
	d := l.load(20, first, func(i int) string {
		return fleet.Chat(l.model, fmt.Sprint("prompt ", i), fmt.Sprintf(`"stream":%v`, i%4 < 2))
	})
	away := time.Now()
	must(t, consul.Refuse(true))

	time.Sleep(time.Until(away.Add(20 * second)))
	must(t, l.b[0].Refuse(true))
	died := time.Now()
	for _, r := range first {
		lab.Eventually(t, patience, func() bool { return l.healthy(r) == 1 }, "%s leaves B1 out", r.Name)
	}
	if took := time.Since(died); took > 5*time.Second {
		t.Errorf("B1 was out of use after %v", took)
	}

	time.Sleep(time.Until(away.Add(40 * second)))
	fresh := l.Add()
	lab.Eventually(t, patience, func() bool { return fresh.Metric("headgate_check_up") >= 2 }, "the fresh one looks at itself")
	unready := func() {
		t.Helper()
		a := fleet.Ask(t, fresh.URL, l.key, l.req())
		if a.Status != 503 || a.Header.Get("Retry-After") == "" || fresh.Ready() {
			t.Errorf("a replica that never had a list: ready %v, %d %v %s", fresh.Ready(), a.Status, a.Header, a.Body)
		}
	}
	unready()
	time.Sleep(time.Until(away.Add(60 * second)))
	leaderless.Store(true)
	must(t, consul.Refuse(false))
	time.Sleep(time.Until(away.Add(90 * second)))
	unready()
	leaderless.Store(false)
	back := time.Now()
	lab.Eventually(t, patience, fresh.Ready, "the fresh one is ready")
	if took := time.Since(back); took > 5*time.Second {
		t.Errorf("ready %v after Consul's return", took)
	}
	time.Sleep(time.Until(away.Add(100 * second)))
	d.end(t)
	for _, q := range l.b[0].Requests() {
		if q.Arrived.After(died) {
			t.Errorf("B1 was reached %v after its death", q.Arrived.Sub(died))
		}
	}
	l.books()
}

// TestCON3_AddressesOfEveryFormAndAddressesThatChange: the case.
func TestCON3_AddressesOfEveryFormAndAddressesThatChange(t *testing.T) {
	t.Parallel()
	l := agentLane(t)
	l.b = []*scripted.Server{scripted.StartOn(t, "[::1]:0", l.model), scripted.Start(t, l.model), scripted.Start(t, l.model)}
	moved := scripted.Start(t, l.model)
	slow := scripted.Begin(scripted.S3()[0])
	for range 5 {
		slow = slow.Then(scripted.Pause(time.Second), scripted.Chunk(scripted.S3()[1]))
	}
	for _, e := range scripted.S3()[2:] {
		slow = slow.Then(scripted.Chunk(e))
	}
	slow = slow.Then(scripted.End())
	l.b[2].Answer(func(q *scripted.Request) scripted.Script {
		if strings.Contains(string(q.Body), `"stream":true`) {
			return slow
		}
		return scripted.JSON(200, scripted.J(10, 3))
	})
	first, second := l.entry(0, "::1", l.b[0]), l.entry(1, "", l.b[1])
	move := make(chan struct{})
	consul := scriptAgent(t, func(_ int, q query) scripted.Script {
		before, after := answered(7, first, second, l.entry(2, "127.0.0.1", l.b[2])), answered(8, first, second, l.entry(2, "127.0.0.1", moved))
		select {
		case <-move:
			if q.index == "8" {
				return scripted.Script{scripted.Hang()}
			}
			return after
		default:
		}
		if q.index == "7" {
			return scripted.Script{scripted.Until(move)}.Then(after...)
		}
		return before
	})
	l.begin(consul, 1, 3)
	ask := func(from int) {
		t.Helper()
		var wg sync.WaitGroup
		for part := range 10 {
			wg.Go(func() {
				for i := range 30 {
					if a := fleet.Ask(t, l.Replicas[0].URL, l.key, fleet.Chat(l.model, fmt.Sprint("first message ", from+30*part+i))); a.Status != 200 {
						t.Errorf("%d %v %s", a.Status, a.Err, a.Body)
					}
				}
			})
		}
		wg.Wait()
	}
	ask(0)
	for i, b := range l.b {
		q := b.Requests()
		if len(q) == 0 {
			t.Fatalf("of 300 requests B%d had none", i+1)
		}
		if host := q[0].Header("Host"); len(host) != 1 || host[0] != b.Addr {
			t.Errorf("B%d at %s was asked as %v", i+1, b.Addr, host)
		}
	}
	prefix := l.prefixes()[2]
	stream := make(chan fleet.Answer, 1)
	go func() {
		stream <- fleet.Ask(t, l.Replicas[0].URL, l.key, fleet.Chat(l.model, prefix, `"stream":true`))
	}()
	lab.Eventually(t, patience, func() bool {
		q := l.b[2].Requests()
		return strings.Contains(string(q[len(q)-1].Body), `"stream":true`)
	}, "the stream runs")
	close(move)
	at := time.Now()
	time.Sleep(2 * time.Second)
	ask(1000)
	for _, q := range l.b[2].Requests() {
		if q.Arrived.After(at.Add(2 * time.Second)) {
			t.Errorf("the old address was used %v after the move", q.Arrived.Sub(at))
		}
	}
	if len(moved.Requests()) == 0 {
		t.Error("the new address was not used")
	}
	if a := <-stream; a.Status != 200 || a.Err != nil || !strings.HasSuffix(a.Body, "data: [DONE]\n\n") || time.Since(at) < 4*time.Second {
		t.Errorf("the running stream: %d %v, %v after the move: %s", a.Status, a.Err, time.Since(at), a.Body)
	}
	l.b = append(l.b, moved)
	l.books()
}

// usual is the answer in the form that was asked for.
func usual(q *scripted.Request) scripted.Script {
	if strings.Contains(string(q.Body), `"stream":true`) {
		return scripted.Stream(scripted.S3()...)
	}
	return scripted.JSON(200, scripted.J(10, 3))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
