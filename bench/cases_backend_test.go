package bench

import (
	"fmt"
	"strings"
	"sync"
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
