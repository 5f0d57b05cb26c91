package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// TestLIFE1_LeavingAtAnyStage: a client leaves while the engine is at a certain point of its answer, in order or by a reset.
// Each time the engine is told, slot and hold are back, and what was made is charged.
func TestLIFE1_LeavingAtAnyStage(t *testing.T) {
	t.Parallel()
	head, hang, a, f := scripted.StreamHead(), scripted.Hang(), scripted.E("a"), scripted.F
	flood := scripted.Script{head}
	for range 2000 {
		flood = append(flood, scripted.Chunk(strings.Repeat(scripted.E("abcdefgh"), 100)))
	}
	whole := scripted.J(10, 3)
	for name, stage := range map[string]struct {
		stream  bool
		script  scripted.Script
		events  int // the client has seen when it leaves
		outcome string
		least   int64 // tokens charged at least
	}{
		"before the head":           {true, scripted.Script{hang}, 0, "client_gone", 0},
		"before the first event":    {true, scripted.Script{head, hang}, 0, "client_gone", 0},
		"behind a comment":          {true, scripted.Script{head, scripted.Chunk(": hi\n\n"), hang}, 0, "client_gone", 0},
		"inside the first event":    {true, scripted.Script{head, scripted.Chunk(a[:50]), hang}, 0, "client_gone", 0},
		"behind an event":           {true, scripted.Begin(a).Then(hang), 1, "client_gone", 1},
		"inside an event":           {true, scripted.Begin(a, a, a[:50]).Then(hang), 2, "client_gone", 2},
		"behind the finish":         {true, scripted.Begin(a, f).Then(hang), 2, "ok", 1},
		"behind the usage":          {true, scripted.Begin(a, f, scripted.U(10, 1)).Then(hang), 3, "ok", 11},
		"behind [DONE]":             {true, scripted.Begin(a, f, scripted.D).Then(hang), 3, "ok", 1},
		"under a flood":             {true, flood.Then(hang), 5, "client_gone", 10},
		"not streamed, no head":     {false, scripted.Script{hang}, 0, "client_gone", 0},
		"not streamed, half a body": {false, scripted.Script{scripted.Head(200, "Content-Type: application/json", "Content-Length: 5000"), scripted.Write(whole[:100]), hang}, 0, "client_gone", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, cases(t), 1, 1, "--budget", "1/month", "--parallel", "1")
			l.play(stage.script)
			for i, reset := range []bool{false, true} {
				c, id := l.dial(), l.id()
				body := l.req()
				if stage.stream {
					body = l.reqS()
				}
				c.post(body, "X-Request-Id: "+id)
				lab.Eventually(t, patience, func() bool { return len(l.requests()) > i }, "the engine has the request")
				if stage.events > 0 {
					for stream := c.stream(); stage.events > 0; {
						for range stage.events {
							if _, err := stream.Next(); err != nil {
								t.Fatal(err)
							}
						}
						break
					}
				}
				l.goneWithin(l.requests()[i], c.leave(reset), time.Second)
				line := l.line(id)
				if line.Outcome != stage.outcome || line.Attempts != 1 || line.Prompt+line.Completion < stage.least || stage.least == 0 && (line.Status != 499 || *line.CostNUSD != 0) {
					t.Errorf("reset %v: %s", reset, line.Raw)
				}
				l.charged(line, stage.outcome, line.UsageSource, line.Prompt, line.Completion)
				l.books()
			}
			l.play(scripted.JSON(200, whole))
			if a, _ := l.ask(l.req()); a.Status != 200 {
				t.Errorf("the next request: %d %s", a.Status, a.Body)
			}
		})
	}
}

// TestLIFE1_LeavingBeforeAnEngineWorks: a client leaves while it sends its body, and while it waits for a slot. No engine is
// given its request.
func TestLIFE1_LeavingBeforeAnEngineWorks(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 1, "--budget", "1/month")
	for _, reset := range []bool{false, true} {
		c, id := l.dial(), l.id()
		c.send([]string{"Authorization: Bearer " + l.key, "Content-Type: application/json", "X-Request-Id: " + id, "Content-Length: 1000"}, l.req()[:20])
		c.leave(reset)
		if line := l.line(id); line.Outcome != "client_gone" || line.Attempts != 0 {
			t.Errorf("in the body, reset %v: %s", reset, line.Raw)
		}
	}
	done := make(chan struct{})
	l.play(scripted.Script{scripted.Until(done)}.Then(scripted.JSON(200, scripted.J(10, 3))...))
	holder, first := l.dial(), l.id()
	holder.post(l.req(), "X-Request-Id: "+first)
	lab.Eventually(t, patience, func() bool { return len(l.requests()) == 1 }, "the only slot is taken")
	waiting := func(n string) func() bool {
		return func() bool { return l.redis.CLI("ZCARD", "hg:{p:"+l.model+"}:queue") == n }
	}
	for _, reset := range []bool{false, true} {
		c, id := l.dial(), l.id()
		c.post(l.reqS(), "X-Request-Id: "+id)
		lab.Eventually(t, patience, waiting("1"), "one waits")
		left := c.leave(reset)
		lab.Eventually(t, patience, waiting("0"), "nobody waits")
		t.Logf("in the queue, reset %v: the place was free %s after the client left", reset, time.Since(left))
		line := l.line(id)
		if line.Outcome != "client_gone" || line.Attempts != 0 || line.QueueMS < 0 {
			t.Errorf("in the queue, reset %v: %s", reset, line.Raw)
		}
		l.costs(line, 0)
	}
	close(done)
	if a := holder.answer(); a.StatusCode != 200 {
		t.Errorf("the one that held the slot: %s", a.Status)
	}
	l.charged(l.line(first), "ok", "backend", 10, 3)
	if n := len(l.requests()); n != 1 {
		t.Errorf("the engine was given %d requests, want 1", n)
	}
	l.books()
}
