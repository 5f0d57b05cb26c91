package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol/scan"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// paper is an exchange that keeps what it is told.
type paper struct {
	mu      sync.Mutex
	status  int
	written strings.Builder
	gone    bool
}

func (p *paper) Context() context.Context     { return context.Background() }
func (p *paper) Method() string               { return "POST" }
func (p *paper) Path() string                 { return "/v1/chat/completions" }
func (p *paper) Query() string                { return "" }
func (p *paper) Header(string) []string       { return nil }
func (p *paper) RemoteIP() string             { return "" }
func (p *paper) BodyLength() int64            { return 0 }
func (p *paper) ReadBody([]byte) (int, error) { return 0, errors.New("no body") }

func (p *paper) Begin(status int, _ []headerField, _ int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = status
}

func (p *paper) Write(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return errors.New("gone")
	}
	p.written.Write(b)
	return nil
}

func (p *paper) WriteLast(b []byte) error { return p.Write(b) }

func (p *paper) Cut() {}

func (p *paper) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.written.String()
}

// relayTest relays what an engine says, with a comment every 5 ms of quiet.
func relayTest(t *testing.T, p *paper, script func(c *engineSide)) (*request, attemptEnd) {
	t.Helper()
	e := newScriptedEngine(t, script)
	u := newTestUpstream(t, upstreamConfig{})
	g := &Gateway{
		cfg:       Config{FirstTokenTimeout: engineTestPatience, StreamSilence: engineTestPatience, RequestTimeout: engineTestPatience},
		upstream:  u,
		prompts:   newPrompts(1 << 20),
		keepAlive: 5 * time.Millisecond,
	}
	route, _, _ := routeOf(http.MethodPost, "/v1/chat/completions")
	r := &request{g: g, x: p, ctx: t.Context(), start: time.Now(), route: *route}
	r.scan = scan.Body{Stream: true, IncludeUsage: true, N: 1, Prompts: 1}
	r.record.Outcome = coordinator.OutcomeOK
	reply := u.mustDo(t, callTo(e.addr, "x"))
	defer reply.Close(true)
	return r, r.relayStream(nil, reply)
}

func (p *paper) waitFor(t *testing.T, what string, cond func(text string) bool) {
	t.Helper()
	for deadline := time.Now().Add(engineTestPatience); !cond(p.text()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("not in time: %s: %q", what, p.text())
			return
		}
	}
}

const (
	relayHead   = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	relayEvent  = `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	relayFinish = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
)

// TestKeepAlive: comments come while the engine is quiet, between events only; without them the bytes are the engine's.
func TestKeepAlive(t *testing.T) {
	p := &paper{}
	large := strings.Replace(relayEvent, `"a"`, `"`+strings.Repeat("x", 2*sse.MaxHeld)+`"`, 1)
	comments := func(n int) func(string) bool {
		return func(text string) bool { return strings.Count(text, string(keepAlive)) >= n }
	}
	want := relayEvent + relayEvent + large + relayFinish
	r, end := relayTest(t, p, func(c *engineSide) {
		c.request()
		say(c, relayHead)
		time.Sleep(20 * time.Millisecond) // a comment now would be a begun answer
		if p.text() != "" {
			t.Errorf("before the first event the client gets %q", p.text())
		}
		say(c, relayEvent)
		p.waitFor(t, "comments behind an event", comments(3))
		say(c, relayEvent[:30]) // held: the client stands between two events
		p.waitFor(t, "comments while an event is held", comments(6))
		say(c, relayEvent[30:])
		say(c, large[:len(large)-10]) // handed on: it does not
		p.waitFor(t, "the large event", func(text string) bool { return strings.HasSuffix(text, large[:len(large)-10]) })
		time.Sleep(30 * time.Millisecond)
		if !strings.HasSuffix(p.text(), large[:len(large)-10]) {
			t.Errorf("inside an event the client gets %q", p.text()[len(p.text())-40:])
		}
		say(c, large[len(large)-10:]+relayFinish)
		c.Close()
	})
	if end.kind != answered || r.record.Outcome != coordinator.OutcomeOK {
		t.Errorf("%+v, %s", end, r.record.Outcome)
	}
	if got := strings.ReplaceAll(p.text(), string(keepAlive), ""); got != want {
		t.Errorf("without the comments:\n%.300q\nwant\n%.300q", got, want)
	}
	reader := sse.NewReader(strings.NewReader(p.text()))
	for i := range 4 {
		e, err := reader.Next()
		if err != nil || !strings.Contains(want, "data: "+e.Data+"\n\n") {
			t.Errorf("event %d: %.100q %v", i, e.Data, err)
		}
	}
}

// TestKeepAliveFindsTheClientGone: a client nobody else misses is missed by the next comment, and the engine is told.
func TestKeepAliveFindsTheClientGone(t *testing.T) {
	p := &paper{}
	told := make(chan error, 1)
	r, end := relayTest(t, p, func(c *engineSide) {
		c.request()
		say(c, relayHead+relayEvent)
		p.waitFor(t, "a comment", func(text string) bool { return strings.Contains(text, string(keepAlive)) })
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
		told <- c.ended()
	})
	if err := <-told; err != nil || end.kind != answered || r.record.Outcome != coordinator.OutcomeClientGone {
		t.Errorf("%v, %+v, %s", err, end, r.record.Outcome)
	}
}

// TestUnsentIsBounded: an engine that says much before its first event does not fill the memory.
func TestUnsentIsBounded(t *testing.T) {
	p := &paper{}
	comment := ": " + strings.Repeat("x", 1000) + "\n\n"
	_, end := relayTest(t, p, func(c *engineSide) {
		c.request()
		say(c, relayHead)
		for range 2 * maxUnsent / len(comment) {
			say(c, comment)
		}
		p.waitFor(t, "the beginning", func(text string) bool { return len(text) > maxUnsent })
		say(c, relayEvent+relayFinish)
		c.Close()
	})
	if end.kind != answered || p.status != 200 || !strings.HasSuffix(strings.ReplaceAll(p.text(), string(keepAlive), ""), relayEvent+relayFinish) {
		t.Errorf("%+v %d", end, p.status)
	}
}

func TestOnOneLine(t *testing.T) {
	if got := string(onOneLine([]byte("{\r\n\"a\":\n1}\n"))); got != "{  \"a\": 1} " {
		t.Errorf("%q", got)
	}
}

// TestDoneNeedsNoEnd: an engine that has said [DONE] and leaves its body open keeps neither the client nor its slot for the
// silence allowed.
func TestDoneNeedsNoEnd(t *testing.T) {
	p := &paper{}
	began := time.Now()
	r, end := relayTest(t, p, func(c *engineSide) {
		c.request()
		say(c, relayHead+relayEvent+relayFinish+"data: [DONE]\n\n")
		c.ended()
	})
	if end.kind != answered || r.record.Outcome != coordinator.OutcomeOK || time.Since(began) > engineTestPatience/2 {
		t.Errorf("%+v, %s after %s", end, r.record.Outcome, time.Since(began))
	}
	if got := strings.ReplaceAll(p.text(), string(keepAlive), ""); got != relayEvent+relayFinish+"data: [DONE]\n\n" {
		t.Errorf("%q", got)
	}
}
