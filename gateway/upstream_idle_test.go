package gateway

import (
	"fmt"
	"testing"
	"time"
)

// idleConns leaves n connections to e in the pool, in the order of the returned slice.
func idleConns(t *testing.T, u *upstream, e *scriptedEngine, n int) (conns []*engineConn) {
	t.Helper()
	var open []*upstreamReply
	for range n {
		r := u.mustDo(t, callTo(e.addr, "x"))
		mustRead(t, r, "ok")
		open = append(open, r)
	}
	for _, r := range open {
		conns = append(conns, r.conn)
		r.Close(true)
	}
	return conns
}

func TestUpstreamUsesTheLastConnectionFirst(t *testing.T) {
	e := newScriptedEngine(t, answering(okAnswer))
	u := newTestUpstream(t, upstreamConfig{})
	conns := idleConns(t, u, e, 3)
	for i := 2; i >= 0; i-- {
		r := u.mustDo(t, callTo(e.addr, "x"))
		defer r.Close(false)
		if r.conn != conns[i] || !r.Reused {
			t.Fatalf("call %d took another connection", i)
		}
	}
}

func TestUpstreamKeepsConnectionsApart(t *testing.T) {
	e, other := newScriptedEngine(t, answering(okAnswer)), newScriptedEngine(t, answering(okAnswer))
	u := newTestUpstream(t, upstreamConfig{})
	idleConns(t, u, e, 1)
	r := u.mustDo(t, callTo(other.addr, "x"))
	defer r.Close(true)
	if r.Reused {
		t.Fatal("another engine's connection was used")
	}
	plain, secure := callTo("a:1", ""), callTo("a:1", "")
	secure.Scheme = "https"
	named := secure
	named.Host = "b.example:1"
	if a, b, c := engineKeyOf(&plain), engineKeyOf(&secure), engineKeyOf(&named); a == b || b == c || c.name != "b.example" {
		t.Fatalf("keys %v %v %v", a, b, c)
	}
}

func TestUpstreamTheOldestGivesWay(t *testing.T) {
	e := newScriptedEngine(t, answering(okAnswer))
	u := newTestUpstream(t, upstreamConfig{MaxIdle: 2})
	conns := idleConns(t, u, e, 3)
	if u.idle.count() != 2 {
		t.Fatalf("%d idle", u.idle.count())
	}
	for _, want := range []*engineConn{conns[2], conns[1], nil} {
		if got := u.idle.pop(conns[0].key); got != want {
			t.Fatalf("took %p, want %p", got, want)
		} else if got != nil {
			got.close()
		}
	}
}

// Nothing stays open beyond the idle limit, also if no request ever comes again.
func TestUpstreamClosesIdleConnections(t *testing.T) {
	noLeaksAtEnd(t)
	ended := make(chan error, 3)
	e := newScriptedEngine(t, func(c *engineSide) {
		answering(okAnswer)(c)
		ended <- c.ended()
	})
	u := newTestUpstream(t, upstreamConfig{IdleTimeout: 50 * time.Millisecond})
	idleConns(t, u, e, 3)
	for range 3 {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	awaitThat(t, "the pool forgets the address and stops its timer", func() bool {
		u.idle.mu.Lock()
		defer u.idle.mu.Unlock()
		return len(u.idle.conns) == 0 && u.idle.sweep == nil
	})
}

func TestUpstreamDoesNotUseAnExpiredConnection(t *testing.T) {
	e := newScriptedEngine(t, answering(okAnswer))
	u := newTestUpstream(t, upstreamConfig{IdleTimeout: time.Hour})
	conn := idleConns(t, u, e, 1)[0]
	conn.idleUntil = time.Now()
	r := u.mustDo(t, callTo(e.addr, "x"))
	defer r.Close(true)
	if r.Reused {
		t.Fatal("reused after its time")
	}
}

// An engine that says how long it waits is believed, if that is shorter than our own limit.
func TestUpstreamHonoursKeepAliveTimeout(t *testing.T) {
	for told, want := range map[string]time.Duration{
		"timeout=2": 1600 * time.Millisecond, "Timeout=5, max=100": 4 * time.Second, "max=3, timeout=1": 800 * time.Millisecond,
		"timeout=600": 4 * time.Second, "timeout=x": 4 * time.Second, "max=7": 4 * time.Second, "timeout=0": time.Millisecond,
	} {
		e := newScriptedEngine(t, answering("HTTP/1.1 200 OK\r\nKeep-Alive: "+told+"\r\nContent-Length: 2\r\n\r\nok"))
		u := newTestUpstream(t, upstreamConfig{})
		before := time.Now()
		conn := idleConns(t, u, e, 1)[0]
		if conn.idleUntil.After(time.Now().Add(want)) || want > time.Millisecond && conn.idleUntil.Before(before.Add(want)) {
			t.Errorf("%s: kept for %v, want %v", told, conn.idleUntil.Sub(before), want)
		}
	}
}

func TestUpstreamCloseKeepsNothing(t *testing.T) {
	noLeaksAtEnd(t)
	e := newScriptedEngine(t, answering(okAnswer))
	u := newUpstream(upstreamConfig{})
	running := u.mustDo(t, callTo(e.addr, "x"))
	idleConns(t, u, e, 2)
	u.Close()
	if n := u.idle.count(); n != 0 {
		t.Fatalf("%d idle after Close", n)
	}
	mustRead(t, running, "ok") // a running call goes on
	running.Close(true)
	if n := u.idle.count(); n != 0 {
		t.Fatalf("%d idle after a late return", n)
	}
	r := u.mustDo(t, callTo(e.addr, "x"))
	mustRead(t, r, "ok")
	r.Close(true)
	awaitThat(t, "every connection is closed", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.open) == 0
	})
	u.Close()
}

// The connection is kept only after a clean end that both sides agreed to, with nothing behind it.
func TestUpstreamKeepsOnlyCleanConnections(t *testing.T) {
	for _, tt := range []struct {
		name, answer, body string
		method             string
		unread, noReuse    bool
		kept               bool
	}{
		{name: "length", answer: okAnswer, body: "ok", kept: true},
		{name: "no body", answer: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", kept: true},
		{name: "chunks", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", body: "ok", kept: true},
		{name: "trailers", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n", body: "ok", kept: true},
		{name: "204", answer: "HTTP/1.1 204 No Content\r\n\r\n", kept: true},
		{name: "304 with a length", answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", kept: true},
		{name: "HEAD", method: "HEAD", answer: "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", kept: true},
		{name: "interim heads", answer: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + okAnswer, body: "ok", kept: true},
		{name: "redirect", answer: "HTTP/1.1 307 Temporary Redirect\r\nLocation: /x\r\nContent-Length: 2\r\n\r\nok", body: "ok", kept: true},
		{name: "engine's 500", answer: "HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nok", body: "ok", kept: true},
		{name: "1.0 keep-alive", answer: "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok", body: "ok", kept: true},
		{name: "1.0", answer: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", body: "ok"},
		{name: "close", answer: "HTTP/1.1 200 OK\r\nConnection: x-internal, Close\r\nContent-Length: 2\r\n\r\nok", body: "ok"},
		{name: "surplus", answer: okAnswer + "HTTP/1.1 200 OK\r\n", body: "ok"},
		{name: "surplus after 204", answer: "HTTP/1.1 204 No Content\r\n\r\nok"},
		{name: "surplus after chunks", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n\n", body: "ok"},
		{name: "body not read", answer: okAnswer, unread: true},
		{name: "caller does not want it", answer: okAnswer, body: "ok", noReuse: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newScriptedEngine(t, answering(tt.answer))
			u := newTestUpstream(t, upstreamConfig{})
			call := callTo(e.addr, "x")
			if tt.method != "" {
				call = upstreamCall{Addr: e.addr, Method: tt.method, Path: "/"}
			}
			r := u.mustDo(t, call)
			if !tt.unread {
				mustRead(t, r, tt.body)
			}
			r.Close(!tt.noReuse)
			if kept := u.idle.count() == 1; kept != tt.kept {
				t.Fatalf("kept %v, want %v", kept, tt.kept)
			}
		})
	}
}

// The end of the connection is the end of the body where nothing else is told, in 1.0 and in 1.1.
func TestUpstreamBodyUntilClose(t *testing.T) {
	for _, minor := range []int{0, 1} {
		e := newScriptedEngine(t, func(c *engineSide) {
			c.request()
			say(c, fmt.Sprintf("HTTP/1.%d 200 OK\r\n\r\nall of it", minor))
		})
		u := newTestUpstream(t, upstreamConfig{})
		r := u.mustDo(t, callTo(e.addr, "x"))
		mustRead(t, r, "all of it")
		if r.ContentLength() != -1 {
			t.Fatal("a length out of nowhere")
		}
		r.Close(true)
		if u.idle.count() != 0 {
			t.Fatal("kept a closed connection")
		}
	}
}
