package bench

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// TestLIFE1_ClientLeavesMidStream: the case, with the client leaving in order and by a reset.
func TestLIFE1_ClientLeavesMidStream(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4, "--budget", "0.01/month", "--parallel", "1")
	script := scripted.Script{scripted.StreamHead()}
	for range 200 {
		script = append(script, scripted.Chunk(scripted.E("x")), scripted.Pause(100*time.Millisecond))
	}
	l.play(script.Then(scripted.Chunk(scripted.F+scripted.U(10, 200)+scripted.D), scripted.End()))
	for i, reset := range []bool{false, true} {
		c, id := l.dial(), l.id()
		c.post(l.reqS(`"max_tokens":200`), "X-Request-Id: "+id)
		stream := c.stream()
		for range 5 {
			if _, err := stream.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if l.slots() != 1 || l.spend("reserved_nusd") == 0 {
			t.Error("nothing is held while the stream runs")
		}
		left := c.leave(reset)
		l.goneWithin(l.requests()[i], left, time.Second)
		lab.Succeeds(t, time.Second, l.quiet, "slot and hold are back")
		t.Logf("reset %v: slot and hold were back %s after the client left", reset, time.Since(left))
		line := l.line(id)
		if line.Status != 200 || line.Outcome != "client_gone" || line.UsageSource != "estimated" || line.Completion < 5 || line.Completion > 20 || line.Prompt < 1 {
			t.Errorf("%s", line.Raw)
		}
		l.charged(line, "client_gone", "estimated", line.Prompt, line.Completion)
		l.books()
	}
	l.play(scripted.JSON(200, scripted.J(10, 3)))
	if a, _ := l.ask(l.req()); a.Status != 200 {
		t.Errorf("the next request: %d %s", a.Status, a.Body)
	}
}

// goneWithin waits until the engine has seen its connection closed, and says how long that took.
func (l *lane) goneWithin(q *scripted.Request, left time.Time, most time.Duration) {
	l.t.Helper()
	select {
	case <-q.Gone():
	case <-time.After(patience):
		l.t.Fatalf("the engine goes on %s after the client left", patience)
	}
	took := q.GoneAt().Sub(left)
	l.t.Logf("the engine saw its connection closed %s after the client left", took)
	if took > most {
		l.t.Errorf("the engine was told after %s", took)
	}
}

const truncated = `"type":"upstream_error","param":null,"code":"stream_truncated"}}` + "\n\n"

// TestLIFE2_ABrokenStreamIsNotPassedOffAsComplete: the four runs of the case, and further ends of their kinds.
func TestLIFE2_ABrokenStreamIsNotPassedOffAsComplete(t *testing.T) {
	t.Parallel()
	a, b, f := scripted.E("a"), scripted.E("b"), scripted.F
	runs := map[string]struct {
		script  scripted.Script
		want    string // what the client gets of it
		outcome string
		source  string
	}{
		"(a) clean end":         {scripted.Stream(a, b), a + b, "upstream_truncated", "estimated"},
		"(b) reset":             {scripted.Begin(a, b).Then(scripted.Reset()), a + b, "upstream_truncated", "estimated"},
		"(b) FIN":               {scripted.Begin(a, b).Then(scripted.Close()), a + b, "upstream_truncated", "estimated"},
		"(b) bad chunk":         {scripted.Begin(a, b).Then(scripted.Write("zz\r\n"), scripted.Hang()), a + b, "upstream_truncated", "estimated"},
		"(b) usage, no finish":  {scripted.Stream(a, b, scripted.U(10, 3)), a + b + scripted.U(10, 3), "upstream_truncated", "backend"},
		"(b) half an event":     {scripted.Stream(a, b[:len(b)-20]), a, "upstream_truncated", "estimated"},
		"(b) an event unended":  {scripted.Stream(a, b[:len(b)-1]), a, "upstream_truncated", "estimated"},
		"(c) finish, clean end": {scripted.Stream(a, f), a + f, "ok", "estimated"},
		"(c) finish, reset":     {scripted.Begin(a, f).Then(scripted.Reset()), a + f, "ok", "estimated"},
		"(c) usage, clean end":  {scripted.Stream(a, f, scripted.U(10, 3)), a + f + scripted.U(10, 3), "ok", "backend"},
		"(d) finish, silence":   {scripted.Begin(a, f).Then(scripted.Hang()), a + f, "ok", "estimated"},
		"(d) [DONE], silence":   {scripted.Begin(scripted.S3()...).Then(scripted.Hang()), strings.Join(scripted.S3(), ""), "ok", "backend"},
		"(d) [DONE] unended":    {scripted.Stream(a, f, strings.TrimSuffix(scripted.D, "\n")), a + f + strings.TrimSuffix(scripted.D, "\n"), "ok", "estimated"},
		"silence, no finish":    {scripted.Begin(a, b).Then(scripted.Hang()), a + b, "timeout", "estimated"},
		"comments, no finish":   {scripted.Begin(a, b).Then(slices.Repeat(scripted.Script{scripted.Chunk(": ping\n\n"), scripted.Pause(300 * time.Millisecond)}, 40)...), a + b, "timeout", "estimated"},
	}
	var mu sync.Mutex
	var uncached []*lane
	t.Run("runs", func(t *testing.T) {
		for name, run := range runs {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				l := newCachedLane(t, cases(t), 2, 4, "--budget", "1/month")
				if run.source == "estimated" {
					mu.Lock()
					uncached = append(uncached, l)
					mu.Unlock()
				}
				l.play(run.script, scripted.Stream(scripted.S3()...))
				began := time.Now()
				answer, line := l.ask(l.reqS())
				took := time.Since(began)
				got := strings.ReplaceAll(answer.Body, ": ping\n\n", "")
				if answer.Status != 200 || answer.Err != nil || !strings.HasPrefix(got, run.want) {
					t.Fatalf("%d %v %q", answer.Status, answer.Err, answer.Body)
				}
				switch rest := got[len(run.want):]; run.outcome {
				case "ok":
					if rest != "" {
						t.Errorf("the client gets %q more", rest)
					}
				case "timeout":
					if !strings.HasPrefix(rest, `data: {"error":`) || !strings.HasSuffix(rest, `"code":"timeout"}}`+"\n\n") || strings.Count(rest, "data:") != 1 {
						t.Errorf("the client gets %q more", rest)
					}
				default:
					if !strings.HasPrefix(rest, `data: {"error":`) || !strings.HasSuffix(rest, truncated) || strings.Count(rest, "data:") != 1 {
						t.Errorf("the client gets %q more", rest)
					}
				}
				switch {
				case strings.Contains(name, "(d) finish") && took < 2*time.Second, took > 5*time.Second: // 3 s, and some for a busy machine
					t.Errorf("the answer ended after %s", took)
				}
				if line.Outcome != run.outcome || line.UsageSource != run.source || line.Attempts != 1 {
					t.Errorf("%s", line.Raw)
				}
				l.charged(line, run.outcome, run.source, line.Prompt, line.Completion)
				if n := len(l.requests()); n != 1 {
					t.Errorf("%d requests reached engines", n)
				}
				l.books()
			})
		}
	})
	time.Sleep(1100 * time.Millisecond) // the latest for a cache write
	for _, l := range uncached {
		if found := l.redis.CLI("KEYS", "hg:{t:"+l.tenant+"}:cache:*"); found != "" {
			t.Errorf("stored: %s", found)
		}
	}
}

// TestLIFE2_SeveralAnswers: with n choices the stream has ended only when each has.
func TestLIFE2_SeveralAnswers(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 4, "--budget", "1/month")
	both := []string{scripted.At(0, "a"), scripted.At(1, "b")}
	one, two := scripted.FinishAt(0), scripted.FinishAt(1)
	for name, run := range map[string]struct {
		n       int
		events  []string
		outcome string
	}{
		"both ended":              {2, append(both[:2:2], one, two), "ok"},
		"one ended":               {2, append(both[:2:2], one), "upstream_truncated"},
		"one ended, with [DONE]":  {2, append(both[:2:2], one, scripted.D), "ok"},
		"two of three":            {3, append(both[:2:2], one, two), "upstream_truncated"},
		"one ended, then its own": {2, append(both[:2:2], one, scripted.U(10, 2)), "upstream_truncated"},
	} {
		for _, end := range []scripted.Script{{scripted.End()}, {scripted.Reset()}, {scripted.Close()}} {
			l.play(scripted.Begin(run.events...).Then(end...), scripted.Stream(scripted.S3()...))
			a, line := l.ask(l.reqS(fmt.Sprintf(`"n":%d`, run.n)))
			if line.Outcome != run.outcome || line.Attempts != 1 || strings.HasSuffix(a.Body, truncated) != (run.outcome != "ok") {
				t.Errorf("%s: %q %s", name, a.Body, line.Raw)
			}
		}
	}
	l.books()
}

// TestLIFE3_RetryOnlyBeforeTheFirstByte: the runs of the case, streamed and not.
func TestLIFE3_RetryOnlyBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 4, "--rpm", "100", "--budget", "1/month")
	s3, asked := strings.Join(scripted.S3(), ""), 0
	for name, first := range map[string]scripted.Script{
		"(a) no byte":       nil,
		"(b) 503":           scripted.JSON(503, `{"error":{"message":"full","type":"ServiceUnavailable","code":503}}`),
		"(b) 500":           scripted.JSON(500, `{"error":{"message":"dead"}}`),
		"(b) 502, HTML":     scripted.Answer(502, "text/html", "<html>bad gateway</html>"),
		"(c) head alone":    {scripted.StreamHead(), scripted.Close()},
		"(c) head, reset":   {scripted.StreamHead(), scripted.Reset()},
		"(c) an empty body": {scripted.StreamHead(), scripted.End()},
		"(c) a comment":     {scripted.StreamHead(), scripted.Chunk(": hello\n\n"), scripted.End()},
		"(c) half an event": {scripted.StreamHead(), scripted.Chunk(scripted.E("zzz")[:100]), scripted.Close()},
		"(c) half a head":   {scripted.Write("HTTP/1.1 200 OK\r\nContent-"), scripted.Close()},
		"(c) an error":      {scripted.StreamHead(), scripted.Chunk(`data: {"error":{"message":"engine died","code":500}}` + "\n\n"), scripted.End()},
	} {
		l.play(first, scripted.Stream(scripted.S3()...))
		before, spent := len(l.requests()), l.spend("spent_nusd")
		a, line := l.ask(l.reqS())
		asked++
		if a.Status != 200 || a.Body != s3 {
			t.Errorf("%s: %d %q", name, a.Status, a.Body)
		}
		l.charged(line, "ok", "backend", 10, 3)
		sent := byAttempt(l.requests())
		if line.Attempts != 2 || line.Backend != a.Header.Get("X-Headgate-Backend") || len(l.requests()) != before+2 {
			t.Errorf("%s: %d requests reached engines: %s", name, len(l.requests())-before, line.Raw)
		} else if b1, b2 := sent[1][asked-1], sent[2][asked-1]; string(b1.Body) != string(b2.Body) || b1.ID() == b2.ID() {
			t.Errorf("%s: the attempts differ: %s %s", name, b1.Body, b2.Body)
		}
		lab.Succeeds(t, patience, l.quiet, "%s: nothing is held", name)
		if got := l.spend("spent_nusd") - spent; got != 38_000 {
			t.Errorf("%s: charged %d", name, got)
		}
	}
	if rpm := l.counted(); rpm != asked {
		t.Errorf("%d requests are counted, want %d", rpm, asked)
	}

	before := len(l.requests())
	l.play(scripted.Begin(scripted.E("a")).Then(scripted.Reset()), scripted.Stream(scripted.S3()...))
	if a, line := l.ask(l.reqS()); !strings.HasSuffix(a.Body, truncated) || line.Outcome != "upstream_truncated" || len(l.requests()) != before+1 {
		t.Errorf("(d) %q %s", a.Body, line.Raw)
	}
	l.play(nil)
	a, line := l.ask(l.reqS())
	if a.Status != 502 || line.Outcome != "upstream_error" || line.Attempts != 2 || len(l.requests()) != before+3 {
		t.Errorf("both fail: %d %s", a.Status, line.Raw)
	}
	l.costs(line, 0)
	if rpm := l.counted(); rpm != asked+2 {
		t.Errorf("%d requests are counted, want %d", rpm, asked+2)
	}
	l.books()
}

// byAttempt sorts what engines were given by the number of the attempt, each in the order of arrival.
func byAttempt(requests []*scripted.Request) map[int][]*scripted.Request {
	slices.SortFunc(requests, func(a, b *scripted.Request) int { return a.Arrived.Compare(b.Arrived) })
	sorted := map[int][]*scripted.Request{}
	for _, q := range requests {
		sorted[q.Attempt()] = append(sorted[q.Attempt()], q)
	}
	return sorted
}
