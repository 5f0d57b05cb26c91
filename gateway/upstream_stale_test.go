package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BACK-1: the engine closes each connection that has been idle for a while, without reading further, and the next
// request comes at that very moment. Every request is answered, and run exactly once.
func TestBACK1AKeptConnectionClosedAtTheMomentOfUse(t *testing.T) {
	noLeaksAtEnd(t)
	const idle, requests = 100 * time.Millisecond, 30
	var generations, ends atomic.Int64
	e := newScriptedEngine(t, func(c *engineSide) {
		for first := true; ; first = false {
			if !first {
				// Not until the first byte, as a server does: the close falls on whatever has arrived.
				c.SetReadDeadline(time.Now().Add(idle))
			}
			r, _ := c.request()
			if r == nil {
				ends.Add(1)
				return
			}
			generations.Add(1)
			say(c, okAnswer)
		}
	})
	u := newTestUpstream(t, upstreamConfig{})
	for i := range requests {
		r := u.mustDo(t, callTo(e.addr, "hello"))
		mustRead(t, r, "ok")
		r.Close(true)
		// From 1 ms before to 1 ms after, as the check has ± 2 ms.
		<-time.After(idle + time.Duration(i-requests/2)*time.Millisecond/15)
	}
	if n := generations.Load(); n != requests {
		t.Fatalf("%d generations for %d requests", n, requests)
	}
	if ends.Load() == 0 {
		t.Fatal("no connection was closed while idle: nothing was tested")
	}
}

// staleEngine answers the first request of its first connection, then lets then decide; further connections answer.
func staleEngine(t *testing.T, then func(c *engineSide)) *scriptedEngine {
	return newScriptedEngine(t, func(c *engineSide) {
		if c.nth > 1 {
			answering(okAnswer)(c)
			return
		}
		c.request()
		say(c, okAnswer)
		then(c)
	})
}

// A connection whose end has already arrived is not even tried.
func TestUpstreamLeavesAClosedConnection(t *testing.T) {
	for name, end := range map[string]func(c *engineSide){
		"closed": func(c *engineSide) { c.Close() },
		"reset":  func(c *engineSide) { c.reset() },
		"unasked bytes": func(c *engineSide) {
			say(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
			c.ended()
		},
	} {
		t.Run(name, func(t *testing.T) {
			taken := make(chan struct{})
			e := staleEngine(t, func(c *engineSide) { <-taken; end(c) })
			u := newTestUpstream(t, upstreamConfig{})
			r := u.mustDo(t, callTo(e.addr, "x"))
			mustRead(t, r, "ok")
			conn := r.conn
			r.Close(true)
			if u.idle.count() != 1 {
				t.Fatal("the connection was not kept")
			}
			close(taken)
			awaitThat(t, "the end or the bytes arrive", func() bool { return conn.sock.look() != engineQuiet })
			r = u.mustDo(t, callTo(e.addr, "x"))
			defer r.Close(true)
			mustRead(t, r, "ok")
			if r.Reused || r.Repeated || e.requests.Load() != 2 {
				t.Fatalf("reused %v, repeated %v, %d requests", r.Reused, r.Repeated, e.requests.Load())
			}
		})
	}
}

// The engine's close crosses the request: the request is resent once, on a new connection.
func TestUpstreamRepeatsWhatAClosedConnectionDidNotRead(t *testing.T) {
	for _, tt := range []struct {
		name string
		size int
		end  func(c *engineSide)
	}{
		{"request in its buffer, unread", 10, func(c *engineSide) { waitUnread(t, c); c.Close() }},
		{"reset", 10, func(c *engineSide) { waitUnread(t, c); c.reset() }},
		{"request still being written", 32 << 20, func(c *engineSide) { waitUnread(t, c); c.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := staleEngine(t, tt.end)
			u := newTestUpstream(t, upstreamConfig{})
			r := u.mustDo(t, callTo(e.addr, "x"))
			mustRead(t, r, "ok")
			r.Close(true)
			r = u.mustDo(t, callTo(e.addr, strings.Repeat("x", tt.size)))
			defer r.Close(true)
			mustRead(t, r, "ok")
			if r.Reused || !r.Repeated || e.requests.Load() != 2 || e.conns.Load() != 2 {
				t.Fatalf("reused %v, repeated %v, %d requests, %d connections", r.Reused, r.Repeated, e.requests.Load(), e.conns.Load())
			}
		})
	}
}

// waitUnread waits until bytes are in the socket, without reading them.
func waitUnread(t *testing.T, c *engineSide) {
	var s engineSocket
	if err := s.open(c.TCPConn); err != nil {
		t.Error(err)
	}
	awaitThat(t, "the request arrives", func() bool { return s.look() == engineSpoke })
}

// The engine's end crosses the request: its kernel never takes it in. What the kernel acknowledged is the proof, so an
// orderly end is as good as a reset, and Reached is false.
func TestUpstreamKnowsWhatWasNeverAcknowledged(t *testing.T) {
	e := staleEngine(t, func(c *engineSide) {})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	mustRead(t, r, "ok")
	conn := r.conn
	if n, known := conn.acked(); !known || n == 0 {
		t.Fatalf("after an answer: acknowledged %d, known %v", n, known)
	}
	r.Close(true)
	awaitThat(t, "the end arrives", func() bool { return !conn.usable() })

	// As if it had arrived a moment after take looked.
	call := callTo(e.addr, "second")
	request, err := newEngineRequest(&call)
	if err != nil {
		t.Fatal(err)
	}
	late := &upstreamReply{owner: u, stop: func() bool { return true }}
	defer late.drop()
	fault := u.attempt(context.Background(), late, &call, request, u.idle.pop(conn.key))
	if fault == nil || fault.Kind != upstreamFaultDied || fault.Received || fault.Reached || !fault.stale {
		t.Fatalf("%+v", fault)
	}
}

// LIFE-3 (a) on a connection from the pool: the engine read the request and closed without a byte. It may have run
// it, so this client does not send it there again, and says so.
func TestUpstreamDoesNotRepeatWhatWasRead(t *testing.T) {
	e := staleEngine(t, func(c *engineSide) { c.request() })
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	mustRead(t, r, "ok")
	r.Close(true)
	_, fault := u.Do(context.Background(), callTo(e.addr, "second"))
	if fault == nil || fault.Kind != upstreamFaultDied || fault.Received || !fault.Reached {
		t.Fatalf("%v", fault)
	}
	if e.requests.Load() != 2 || e.conns.Load() != 1 {
		t.Fatalf("%d requests on %d connections", e.requests.Load(), e.conns.Load())
	}
}

// A second dead connection is a fault: no loop.
func TestUpstreamRepeatsOnlyOnce(t *testing.T) {
	e := newScriptedEngine(t, func(c *engineSide) {
		if c.nth == 1 {
			c.request()
			say(c, okAnswer)
		}
		waitUnread(t, c)
		c.reset()
	})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	mustRead(t, r, "ok")
	r.Close(true)
	_, fault := u.Do(context.Background(), callTo(e.addr, "second"))
	if fault == nil || fault.Kind != upstreamFaultDied || fault.Received {
		t.Fatalf("%v", fault)
	}
	if e.conns.Load() != 2 {
		t.Fatalf("%d connections, want 2", e.conns.Load())
	}
}

func TestUpstreamRepeatsNothingAfterTheFirstByte(t *testing.T) {
	e := staleEngine(t, func(c *engineSide) { waitUnread(t, c); say(c, "H"); c.Close() })
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	mustRead(t, r, "ok")
	r.Close(true)
	_, fault := u.Do(context.Background(), callTo(e.addr, "second"))
	if fault == nil || !fault.Received || !fault.Reached || e.conns.Load() != 1 {
		t.Fatalf("%v, %d connections", fault, e.conns.Load())
	}
}

func TestEngineStale(t *testing.T) {
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	pipe := &net.OpError{Op: "write", Err: syscall.EPIPE}
	const soon, late = time.Millisecond, upstreamStaleWindow
	for _, tt := range []struct {
		err            error
		reached, known bool
		after          time.Duration
		want           bool
	}{
		{io.EOF, false, true, late, true}, // never taken in
		{reset, false, true, late, true},
		{pipe, false, true, late, true},
		{reset, true, true, soon, true}, // closed with unread bytes
		{pipe, true, true, soon, true},
		{reset, true, true, late, false}, // may have died over it
		{io.EOF, true, true, soon, false},
		{io.ErrUnexpectedEOF, true, true, soon, false},
		{io.EOF, true, false, soon, true}, // the system does not tell
		{reset, true, false, soon, true},
		{io.EOF, true, false, late, false},
		{errors.New("tls: bad record"), false, true, soon, false},
		{fmt.Errorf("wrapped: %w", reset), true, true, soon, true},
	} {
		if got := engineStale(tt.err, tt.reached, tt.known, tt.after); got != tt.want {
			t.Errorf("%v, reached %v, known %v, after %v: %v", tt.err, tt.reached, tt.known, tt.after, got)
		}
	}
}
