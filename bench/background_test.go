package bench

import (
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// slow is an engine on which a response of 3,000 tokens takes two seconds or more.
var slow = engine.Options{Speed: 20, Slots: 8}

// long is a response in the background that goes on for a while.
const long = `{"model":"qwen","input":"hi","background":true,"ignore_eos":true,"max_output_tokens":3000`

// TestBackgroundIsBilledAtItsEnd: a response in the background holds its slot and its money while the engine works on it,
// and is charged once for what that took, whether its client stays, leaves or cancels.
func TestBackgroundIsBilledAtItsEnd(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, slow)
	key := s.Key("--tenant", "acme", "--name", "ci", "--budget", "5/month", "--parallel", "1")
	here, there := s.Replicas[0], s.Replicas[1]

	id, backend, a := respond(t, here, key, long+`}`, "X-Request-Id: whole")
	if !strings.Contains(a.Body, `"status":"queued"`) && !strings.Contains(a.Body, `"status":"in_progress"`) {
		t.Fatalf("%s", a.Body)
	}
	if n := s.slots(t); n != 1 {
		t.Errorf("%d slots are held while the engine works", n)
	}
	if a := ask(t, "POST", there.URL+"/v1/responses", key, `{"model":"qwen","input":"hi"}`); a.Status != 429 {
		t.Errorf("the key runs more than one request: %d", a.Status)
	}
	s.usedUp(t, "whole")
	if a := ask(t, "GET", there.URL+"/v1/responses/"+id, key, ""); !strings.Contains(a.Body, `"output_tokens":3000`) || a.Header.Get("X-Headgate-Backend") != backend {
		t.Errorf("%d %v %s", a.Status, a.Header, a.Body)
	}
	if a := ask(t, "GET", there.URL+"/v1/responses/"+id+"?stream=true&starting_after=1", key, ""); !strings.HasPrefix(a.Body, "event: response.output_item.added\n") || !strings.Contains(a.Body, "event: response.completed\n") {
		t.Errorf("%d %.500s", a.Status, a.Body)
	}

	answer, err := fleet.Client.Do(fleet.Request(t, here.URL+"/v1/responses", key, long+`,"stream":true}`, "X-Request-Id: leaves"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAtLeast(answer.Body, make([]byte, 100), 100)
	answer.Body.Close()
	if l := s.usedUp(t, "leaves"); l.Outcome != "client_gone" {
		t.Errorf("%s", l.Raw)
	}

	id, _, _ = respond(t, here, key, strings.Replace(long, "3000", "30000", 1)+`}`, "X-Request-Id: cancelled")
	if a := ask(t, "POST", there.URL+"/v1/responses/"+id+"/cancel", key, ""); a.Status != 200 || !strings.Contains(a.Body, `"status":"cancelled"`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if l := s.lineOf(t, "cancelled"); l.Outcome != "ok" || l.UsageSource != "estimated" || l.Completion == 0 || l.Completion > 3000 {
		t.Errorf("%s", l.Raw)
	}
	s.booksAgree(t, "acme", 7)
}

// usedUp waits for the end of a response of 3,000 tokens and returns its usage line, which says so.
func (s *stack) usedUp(t *testing.T, label string) fleet.Line {
	t.Helper()
	l := s.lineOf(t, label)
	var seen engine.Seen
	for _, q := range s.seen() {
		if strings.HasPrefix(q.RequestID, label+"-") && q.Body != nil {
			seen = q
		}
	}
	if l.UsageSource != "backend" || l.Completion != 3000 || l.Completion != int64(seen.Output) || l.Prompt != int64(seen.Prompt) || seen.Ended.IsZero() {
		t.Errorf("the engine counted %d and %d, the line says %s", seen.Prompt, seen.Output, l.Raw)
	}
	return l
}

// TestBackgroundAndShutdown: a replica that leaves cancels what it cannot stay for.
func TestBackgroundAndShutdown(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, slow, "HG_NOTICE_TIME=0s", "HG_DRAIN_TIME=1s")
	key := s.Key("--tenant", "acme", "--name", "ci")
	respond(t, s.Replicas[0], key, strings.Replace(long, "3000", "30000", 1)+`}`, "X-Request-Id: cut")
	if err := syscall.Kill(s.Replicas[0].PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.Replicas[0].WaitExit(30 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if l := s.lineOf(t, "cut"); l.Outcome != "shutdown" || l.UsageSource != "estimated" || l.Completion == 0 {
		t.Errorf("%s", l.Raw)
	}
	for _, e := range s.engines {
		lab.Eventually(t, 10*time.Second, func() bool { return e.Running() == 0 }, "the engine stops")
	}
	s.booksAgree(t, "acme", 1)
}

// TestBackgroundOfADeadEngine: what an engine took with it is estimated, and the slot comes back.
func TestBackgroundOfADeadEngine(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, slow)
	key := s.Key("--tenant", "acme", "--name", "ci")
	_, backend, _ := respond(t, s.Replicas[0], key, strings.Replace(long, "3000", "30000", 1)+`}`, "X-Request-Id: dead")
	e := s.engines[0]
	if backend == "b2" {
		e = s.engines[1]
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if l := s.lineOf(t, "dead"); l.Outcome != "upstream_truncated" || l.UsageSource != "estimated" || l.Completion == 0 {
		t.Errorf("%s", l.Raw)
	}
	s.booksAgree(t, "acme", 1)
}
