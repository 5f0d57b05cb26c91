package bench

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// TestBACK1_AConnectionTheEngineHasJustClosed: 200 requests, each 1.000 s behind the last answer on the same connection,
// when the engine closes it. They run in 20 rows of 10 on 10 engines, each row through a connection of its own; within a
// row the moment moves from 4 ms before to 1 ms behind.
func TestBACK1_AConnectionTheEngineHasJustClosed(t *testing.T) {
	t.Parallel()
	const engines, each = 10, 10
	w := cases(t)
	lanes := make([]*lane, engines)
	var ready, done sync.WaitGroup
	for i := range lanes {
		ready.Go(func() {
			lanes[i] = newLane(t, w, 1, 4, "--budget", "1/month")
			lanes[i].b[0].SetIdleClose(time.Second)
		})
	}
	ready.Wait()
	for row := range 2 * engines {
		l, replica := lanes[row/2], w.Replicas[row%2]
		done.Go(func() {
			var last time.Time
			for n := range each {
				if n > 0 {
					off := time.Duration((row*each+n)%50-40) * 100 * time.Microsecond
					time.Sleep(time.Until(last.Add(time.Second + off)))
				}
				a := fleet.Ask(t, replica.URL, l.key, l.req(), "X-Request-Id: "+l.id())
				last = time.Now()
				if a.Status != 200 || a.Body != scripted.J(10, 3) {
					t.Errorf("row %d, request %d: %d %v %s", row, n, a.Status, a.Err, a.Body)
				}
			}
		})
	}
	done.Wait()
	reused := 0
	for i, l := range lanes {
		q := l.requests()
		if len(q) != 2*each {
			t.Errorf("engine %d ran %d generations, want %d", i, len(q), 2*each)
		}
		conns := map[int]bool{}
		for _, one := range q {
			conns[one.Conn] = true
		}
		reused += len(q) - len(conns)
		for _, line := range l.lines(2 * each) {
			l.charged(line, "ok", "backend", 10, 3)
		}
		if spent := l.books(); spent != 2*each*38_000 {
			t.Errorf("engine %d: spent %d, want %d", i, spent, 2*each*38_000)
		}
	}
	t.Logf("%d of %d requests found their connection still open", reused, 2*engines*(each-1))
}

// TestBACK1_TheRaceItself: every second use of a connection finds it closed at that very moment. A request nobody can have
// read is sent once more; one that was read is not.
func TestBACK1_TheRaceItself(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4, "--budget", "1/month")
	b := l.b[0]
	b.SetLateClose(true)
	const each = 20
	long := strings.Repeat("x", 300_000) // more than one write
	for n := range each {
		body := l.reqS()
		l.play(scripted.Stream(scripted.S3()...))
		if n%2 == 1 {
			l.play(scripted.JSON(200, scripted.J(10, 3)))
			body = fleet.Chat(l.model, long)
		}
		a, line := l.ask(body)
		if a.Status != 200 || line.Attempts != 1 {
			t.Errorf("request %d: %d %s", n, a.Status, line.Raw)
		}
		l.charged(line, "ok", "backend", 10, 3)
	}
	q := b.Requests()
	if len(q) != each || q[each-1].Conn < each {
		t.Errorf("%d generations on %d connections, want %d on one each", len(q), q[len(q)-1].Conn, each)
	}
	b.SetLateClose(false)
	l.ask(l.req()) // leaves a connection that is kept
	l.play(nil)
	a, line := l.ask(l.req())
	if a.Status != 502 || line.Attempts != 1 || line.Outcome != "upstream_error" || len(b.Requests()) != each+2 {
		t.Errorf("an engine that read the request and hung up: %d, %d requests: %s", a.Status, len(b.Requests())-each-1, line.Raw)
	}
	if q = b.Requests(); q[each].Conn != q[each+1].Conn {
		t.Error("the connection was not kept, so nothing was shown")
	}
	l.books()
}

// TestBACK2_AClientsMistakeIsNoSickBackend: the case, for 400, 404, 413 and 422, and further ones.
func TestBACK2_AClientsMistakeIsNoSickBackend(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 64, "--budget", "1/month")
	prefixes := l.prefixes()
	for _, status := range []int{400, 404, 413, 422, 401, 403, 429} {
		bad := fmt.Sprintf(`{"error":{"message":"too  long","type":"BadRequestError","code":%d}}`+"\n", status)
		for _, b := range l.b {
			b.Answer(func(q *scripted.Request) scripted.Script {
				if strings.Contains(string(q.Body), `"content":"BAD`) {
					return scripted.Answer(status, "application/json; charset=utf-8", bad, "Retry-After: 7")
				}
				return scripted.JSON(200, scripted.J(10, 3))
			})
		}
		before := len(l.requests())
		var wg sync.WaitGroup
		ids := make([]string, 50)
		for i := range ids {
			ids[i] = l.id()
			wg.Go(func() {
				body := fleet.Chat(l.model, "BAD"+strings.Repeat("x", 1997)+fmt.Sprint(i), fmt.Sprintf(`"stream":%v`, i%2 == 0))
				a := fleet.Ask(t, l.Replicas[i%2].URL, l.key, body, "X-Request-Id: "+ids[i])
				if a.Status != status || a.Body != bad || a.Header.Get("Retry-After") != "7" || a.Header.Get("Content-Type") != "application/json; charset=utf-8" {
					t.Errorf("%d: the client gets %d %v %s", status, a.Status, a.Header, a.Body)
				}
			})
		}
		wg.Wait()
		if n := len(l.requests()) - before; n != len(ids) {
			t.Errorf("%d: engines were given %d requests, want %d", status, n, len(ids))
		}
		lines := l.lines(0)
		for _, id := range ids {
			line, ok := lines[id]
			if !ok {
				line = l.line(id)
			}
			if line.Attempts != 1 || line.Outcome != "rejected" || line.Status != status {
				t.Errorf("%d: %s", status, line.Raw)
			}
			l.costs(line, 0)
		}
		lab.Succeeds(t, patience, l.quiet, "the slots of 50 times %d are back", status)
		for i, prefix := range prefixes {
			if a, line := l.ask(fleet.Chat(l.model, prefix)); a.Status != 200 || line.Backend != l.backend(i) {
				t.Errorf("behind 50 times %d: %d from %s, want %s", status, a.Status, line.Backend, l.backend(i))
			}
		}
		for _, r := range l.Replicas {
			if n := l.healthy(r); n != 2 {
				t.Errorf("behind 50 times %d: %s uses %d backends", status, r.Name, n)
			}
		}
	}
	l.books()
}

// prefixes are first messages, one for each backend, that are sent there when nothing stands against it.
func (l *lane) prefixes() []string {
	l.t.Helper()
	found := make([]string, len(l.b))
	left := len(found)
	for i := 0; left > 0; i++ {
		prefix := fmt.Sprintf("GOOD %d", i)
		a, line := l.ask(fleet.Chat(l.model, prefix))
		if a.Status != 200 || i > 200 {
			l.t.Fatalf("%d prefixes, %d backends without one: %s", i, left, a.Body)
		}
		for n := range found {
			if found[n] == "" && line.Backend == l.backend(n) {
				found[n] = prefix
				left--
			}
		}
	}
	return found
}

// TestBACK3_WaitingForASlotAndLeavingTheQueue: the case, but the last twelve are generated four times as fast.
func TestBACK3_WaitingForASlotAndLeavingTheQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, "HG_QUEUE_LIMIT=10", "HG_QUEUE_WAIT=30s")
	l := newLane(t, w, 1, 1, "--budget", "1/month")
	b := l.b[0]
	var pause atomic.Int64
	var mu sync.Mutex
	ends := map[string]time.Time{} // when B1 had answered, by the prompt's name
	running, most := 0, 0
	b.Answer(func(q *scripted.Request) scripted.Script {
		mu.Lock()
		defer mu.Unlock()
		running++
		most = max(most, running)
		return scripted.Script{scripted.Pause(time.Duration(pause.Load())), scripted.Do(func() {
			mu.Lock()
			defer mu.Unlock()
			running--
			ends[promptOf(q)] = time.Now()
		})}.Then(scripted.JSON(200, scripted.J(10, 3))...)
	})
	ask := func(replica int, prompt string, client *http.Client) fleet.Answer {
		r := fleet.Request(t, l.Replicas[replica].URL+"/v1/chat/completions", l.key, fleet.Chat(l.model, prompt), "X-Request-Id: "+l.tenant+prompt)
		answer, err := client.Do(r)
		if err != nil {
			return fleet.Answer{Err: err}
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return fleet.Answer{Status: answer.StatusCode, Header: answer.Header, Body: string(body), Err: err}
	}
	good := func(prompt string, a fleet.Answer) {
		if a.Status != 200 {
			t.Errorf("%s: %d %v %s", prompt, a.Status, a.Err, a.Body)
		}
	}

	pause.Store(int64(2 * time.Second))
	var wg sync.WaitGroup
	wg.Go(func() { good("A", ask(0, "A", fleet.Client)) })
	lab.Eventually(t, patience, func() bool { return len(b.Requests()) == 1 }, "A runs")
	time.Sleep(100 * time.Millisecond)
	impatient := &http.Client{Transport: fleet.Client.Transport, Timeout: 500 * time.Millisecond}
	if a := ask(1, "B", impatient); a.Err == nil {
		t.Errorf("B was answered: %d %s", a.Status, a.Body)
	}
	good("C", ask(1, "C", fleet.Client))
	wg.Wait()
	q := b.Requests()
	if len(q) != 2 || promptOf(q[0]) != "A" || promptOf(q[1]) != "C" {
		t.Fatalf("B1 saw %d requests", len(q))
	}
	if took := q[1].Arrived.Sub(ends["A"]); took > 300*time.Millisecond {
		t.Errorf("C ran %v after A's end", took)
	}
	gone := l.line(l.tenant + "B")
	if gone.Outcome != "client_gone" {
		t.Errorf("B's record: %s", gone.Raw)
	}
	l.costs(gone, 0)

	pause.Store(0)
	lab.Eventually(t, patience, func() bool { return l.slots() == 0 }, "nothing runs")
	others := time.Now()
	b.SetLoad(1, 0)
	time.Sleep(time.Second) // one reading
	wg.Go(func() { good("G", ask(0, "G", fleet.Client)) })
	time.Sleep(time.Until(others.Add(3 * time.Second)))
	over := time.Now()
	b.SetLoad(0, 0)
	wg.Wait()
	if q = b.Requests(); len(q) != 3 || q[2].Arrived.Before(over) {
		t.Errorf("%d requests; G came %v before others were done", len(q), over.Sub(q[len(q)-1].Arrived))
	}

	pause.Store(int64(500 * time.Millisecond))
	lab.Eventually(t, patience, func() bool { return l.slots() == 0 }, "nothing runs")
	var served, refused atomic.Int64
	began := time.Now()
	for i := range 12 {
		wg.Go(func() {
			switch a := ask(i%2, fmt.Sprint("T", i), fleet.Client); {
			case a.Status == 200:
				served.Add(1)
			case a.Status == 503 && a.Header.Get("Retry-After") != "" && time.Since(began) < time.Second:
				refused.Add(1)
			default:
				t.Errorf("of twelve: %d %v after %v: %s", a.Status, a.Header, time.Since(began), a.Body)
			}
		})
	}
	wg.Wait()
	if served.Load() != 11 || refused.Load() != 1 || len(b.Requests()) != 14 {
		t.Errorf("%d served, %d refused, B1 saw %d", served.Load(), refused.Load(), len(b.Requests())-3)
	}
	if most != 1 {
		t.Errorf("%d at a time", most)
	}
	l.books()
}

// promptOf is the content of a request's first message.
func promptOf(q *scripted.Request) string { return promptIn(string(q.Body)) }

func promptIn(body string) string {
	_, rest, _ := strings.Cut(body, `"content":"`)
	prompt, _, _ := strings.Cut(rest, `"`)
	return prompt
}

// TestBUD3_EveryReservationIsSettledOrReturned: the case.
func TestBUD3_EveryReservationIsSettledOrReturned(t *testing.T) {
	t.Parallel()
	const each = 100
	w := newWorld(t, 2, "HG_QUEUE_WAIT=4s")
	ok := newLane(t, w, 1, 64, "--budget", "1/month")
	bad, refuse, failing, busy := ok.beside(1, 64), ok.beside(1, 64), ok.beside(2, 64), ok.beside(1, 1)
	models := []*lane{ok, bad, failing, refuse, busy}
	var names []string
	for _, l := range models {
		names = append(names, l.model)
	}
	ok.key = w.Key("--tenant", ok.tenant, "--models", strings.Join(names, ","), "--budget", "1/month")
	ok.b[0].Answer(usual)
	bad.play(scripted.JSON(400, `{"error":{"message":"no","type":"BadRequestError","code":400}}`))
	failing.play(scripted.JSON(500, `{"error":{"message":"no","type":"InternalServerError","code":500}}`))
	must(t, refuse.b[0].Refuse(true))
	release := make(chan struct{})
	busy.b[0].Play(scripted.Script{scripted.Until(release)}.Then(scripted.JSON(200, scripted.J(10, 3))...))
	other := w.Key("--tenant", busy.tenant, "--models", busy.model)
	var holder sync.WaitGroup
	holder.Go(func() {
		if a := fleet.Ask(t, w.Replicas[0].URL, other, busy.req()); a.Status != 200 {
			t.Errorf("who has the slot: %d %s", a.Status, a.Body)
		}
	})
	defer holder.Wait()
	defer close(release)
	lab.Eventually(t, patience, func() bool { return busy.slots() == 1 }, "the slot is taken")

	var wg sync.WaitGroup
	impatient := &http.Client{Transport: fleet.Client.Transport, Timeout: 300 * time.Millisecond}
	for i := range each {
		for m, l := range models {
			client := fleet.Client
			if l == busy {
				client = impatient
			}
			body := fleet.Chat(l.model, fmt.Sprint("hi ", i), fmt.Sprintf(`"stream":%v`, i%2 == 0))
			r := fleet.Request(t, w.Replicas[(i+m)/2%2].URL+"/v1/chat/completions", ok.key, body, "X-Request-Id: "+ok.id())
			wg.Go(func() {
				a, err := client.Do(r)
				if err == nil {
					_, _ = io.Copy(io.Discard, a.Body)
					a.Body.Close()
				}
				switch {
				case l == busy && err == nil:
					t.Errorf("%s answers %d", l.model, a.StatusCode)
				case l != busy && (err != nil || (a.StatusCode == 200) != (l == ok) || (a.StatusCode == 400) != (l == bad)):
					t.Errorf("model %d answers %v %v", m, a, err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
	}
	wg.Wait()
	ended := time.Now()
	lab.Succeeds(t, patience, func() error {
		for _, l := range models[:4] {
			if n := l.slots(); n != 0 {
				return fmt.Errorf("%d slots of %s", n, l.model)
			}
		}
		return ok.quiet()
	}, "everything is given back")
	if took := time.Since(ended); took > 2*time.Second {
		t.Errorf("something was reserved %v after the last answer", took)
	}
	if n := len(ok.lines(len(models) * each)); n != len(models)*each {
		t.Errorf("%d usage lines", n)
	}
	if spent := ok.books(); spent != each*38_000 {
		t.Errorf("spent %d nano-dollars, want %d", spent, each*38_000)
	}
	if n := busy.slots(); n != 1 {
		t.Errorf("%d slots of the busy one", n)
	}
}

// beside is a lane of the same key, in the same world, with a model of its own.
func (l *lane) beside(backends, slots int) *lane {
	other := newLane(l.t, l.world, backends, slots)
	other.key, other.asked = l.key, l.asked
	return other
}

// promptsIn are the different prompts of some requests.
func promptsIn(all []sent) map[string]bool {
	prompts := map[string]bool{}
	for _, s := range all {
		prompts[promptIn(s.body)] = true
	}
	return prompts
}

// TestDEP2_ABackendThatRestartsWithAnOpenPortAndNoModel: the case at three fifths of its times.
func TestDEP2_ABackendThatRestartsWithAnOpenPortAndNoModel(t *testing.T) {
	t.Parallel()
	const second = 600 * time.Millisecond // of the case
	l := newLane(t, cases(t), 2, 64, "--budget", "1/month")
	for _, b := range l.b {
		b.Answer(usual)
	}
	const prefixes = 40
	prompt := func(i int) string { return fmt.Sprint("prefix ", i%prefixes) }
	d := l.load(20, l.Replicas, func(i int) string {
		return fleet.Chat(l.model, prompt(i), fmt.Sprintf(`"stream":%v`, i/prefixes%2 == 0))
	})
	var before []sent // answered before B1 goes away
	lab.Eventually(t, patience, func() bool { before = d.answered(); return len(promptsIn(before)) == prefixes }, "%d prefixes are answered", prefixes)
	begin := time.Now().Add(-5 * second)
	at := func(seconds time.Duration) time.Time { return begin.Add(seconds * second) }
	must(t, l.b[0].Refuse(true))
	time.Sleep(time.Until(at(10)))
	l.b[0].SetHealth(503)
	l.b[0].Play(scripted.Script{scripted.Hang()})
	open := time.Now()
	must(t, l.b[0].Refuse(false))
	time.Sleep(time.Until(at(25)))
	well := time.Now()
	l.b[0].Answer(usual)
	l.b[0].SetHealth(200)
	again := well.Add(5 * time.Second)
	time.Sleep(time.Until(again.Add(prefixes / 20 * 2 * time.Second)))
	sent := d.end(t)

	for _, q := range l.b[0].Requests() {
		if q.Arrived.After(open) && q.Arrived.Before(well) {
			t.Errorf("B1 was sent a request %v after its port was open, %v before it was well", q.Arrived.Sub(open), well.Sub(q.Arrived))
		}
	}
	lines := l.lines(len(sent))
	home := map[string]string{} // by prompt
	for _, s := range before {
		home[promptIn(s.body)] = lines[s.id].Backend
	}
	back, stayed := 0, 0
	for _, s := range sent {
		was, is := home[promptIn(s.body)], lines[s.id].Backend
		switch {
		case was == l.backend(1) && is != was:
			t.Errorf("a prefix of B2 went to %s %v after the start", is, s.at.Sub(begin))
		case was == l.backend(1):
			stayed++
		case s.at.After(again) && is != was:
			t.Errorf("%q goes to %s %v after B1 was well", promptIn(s.body), is, s.at.Sub(well))
		case s.at.After(again):
			back++
		}
	}
	if back == 0 || stayed == 0 {
		t.Errorf("%d requests went back to B1, %d stayed on B2", back, stayed)
	}
	l.books()
}
