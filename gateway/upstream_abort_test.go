package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// Whatever a call is doing when its client leaves, the engine sees the connection closed.
func TestUpstreamCancelClosesTheConnection(t *testing.T) {
	noLeaksAtEnd(t)
	huge := make([]byte, 32<<20)
	for _, tt := range []struct {
		name   string
		scheme string
		body   []byte
		script func(c *engineSide, reached func())
		reply  bool
	}{
		{name: "in the TLS handshake", scheme: "https", body: []byte("x"), script: func(c *engineSide, reached func()) { reached() }},
		{name: "while the body is written", body: huge, script: func(c *engineSide, reached func()) {
			c.in.Peek(1)
			reached()
		}},
		{name: "waiting for the head", body: []byte("x"), script: func(c *engineSide, reached func()) {
			c.request()
			reached()
		}},
		{name: "within the head", body: []byte("x"), script: func(c *engineSide, reached func()) {
			c.request()
			say(c, "HTTP/1.1 200 O")
			reached()
		}},
		{name: "between two tokens", body: []byte("x"), reply: true, script: func(c *engineSide, reached func()) {
			c.request()
			say(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
			reached()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			closed := make(chan error, 1)
			e := newScriptedEngine(t, func(c *engineSide) {
				tt.script(c, cancel)
				closed <- c.ended()
			})
			u := newTestUpstream(t, upstreamConfig{ConnectTimeout: engineTestPatience})
			call := callTo(e.addr, "")
			call.Scheme, call.Body, call.BodyLen = tt.scheme, [][]byte{tt.body}, int64(len(tt.body))
			r, fault := u.Do(ctx, call)
			if tt.reply && fault == nil {
				defer r.Close(true)
				_, err := allOf(r)
				if !errors.Is(err, errUpstreamAborted) {
					t.Fatalf("Next after cancel: %v", err)
				}
			} else if fault == nil || fault.Kind != upstreamFaultCancelled {
				t.Fatalf("%v, want cancelled", fault)
			}
			if err := <-closed; err != nil {
				t.Fatalf("the engine's end: %v", err)
			}
			if n := u.idle.count(); n != 0 {
				t.Fatalf("%d connections kept", n)
			}
		})
	}
}

// Abort closes at once even if nobody reads the reply, and after Close it leaves the connection's next user alone.
func TestUpstreamAbort(t *testing.T) {
	closed := make(chan error, 8)
	e := newScriptedEngine(t, func(c *engineSide) {
		for {
			if r, _ := c.request(); r == nil {
				closed <- nil
				return
			}
			say(c, okAnswer)
		}
	})
	u := newTestUpstream(t, upstreamConfig{})
	first := u.mustDo(t, callTo(e.addr, "x"))
	mustRead(t, first, "ok")
	first.Close(true)
	first.Abort()

	second := u.mustDo(t, callTo(e.addr, "x"))
	if !second.Reused {
		t.Fatal("an Abort after Close took the connection from its next user")
	}
	mustRead(t, second, "ok")
	second.Abort()
	<-closed
	second.Close(true)
	second.Close(true)
	if n := u.idle.count(); n != 0 {
		t.Fatalf("%d connections kept", n)
	}
	if _, err := second.Next(); err == nil {
		t.Fatal("Next after Close")
	}
}

// Many calls at once, each cancelled, aborted or finished at some moment: no leaks, no answer in the wrong hands.
func TestUpstreamUnderConcurrentAborts(t *testing.T) {
	noLeaksAtEnd(t)
	e := newScriptedEngine(t, func(c *engineSide) {
		for {
			r, body := c.request()
			if r == nil {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(body), body)
			fmt.Fprintf(c, "%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		}
	})
	u := newUpstream(upstreamConfig{MaxIdle: 4})
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for i := range 60 {
				body := fmt.Sprintf("worker %d call %d", worker, i)
				ctx, cancel := context.WithCancel(context.Background())
				if i%5 == 1 {
					go cancel()
				}
				r, fault := u.Do(ctx, callTo(e.addr, body))
				if fault != nil {
					if ctx.Err() == nil {
						t.Errorf("%s: %v", body, fault)
					}
					cancel()
					continue
				}
				var aborting sync.WaitGroup
				if i%5 == 2 {
					aborting.Go(r.Abort)
				}
				got, err := allOf(r)
				if err == io.EOF && got != body+body || !strings.HasPrefix(body+body, got) {
					t.Errorf("%s: got %q, %v", body, got, err)
				}
				r.Close(i%7 != 3)
				cancel()
				aborting.Wait()
			}
		})
	}
	all.Wait()
	if n := u.idle.count(); n > 4 {
		t.Errorf("%d idle", n)
	}
	u.Close()
	e.mu.Lock()
	for c := range e.open {
		c.SetDeadline(time.Now().Add(engineTestPatience))
	}
	e.mu.Unlock()
	awaitThat(t, "every connection is closed", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.open) == 0
	})
}
