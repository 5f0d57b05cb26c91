package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestUpstreamSendsHeadAndBodyAsTold(t *testing.T) {
	var got bytes.Buffer
	want := "POST /v1/x?y=1 HTTP/1.1\r\nHost: qwen.internal:8000\r\nContent-Type: application/json\r\n" +
		"X-Request-Id: abc-1\r\nContent-Length: 11\r\n\r\nhello world"
	e := newScriptedEngine(t, func(c *engineSide) {
		io.CopyN(&got, c.in, int64(len(want)))
		say(c, okAnswer)
		c.ended()
	})
	parts := [][]byte{[]byte("hello"), nil, []byte(" "), []byte("world")}
	before := append([][]byte(nil), parts...)
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, upstreamCall{
		Addr: e.addr, Host: "qwen.internal:8000", Method: "POST", Path: "/v1/x?y=1", Body: parts, BodyLen: 11,
		Header: []headerField{
			{"Content-Type", "application/json"}, {"Content-Length", "3"}, {"transfer-encoding", "chunked"},
			{"Connection", "close"}, {"Keep-Alive", "timeout=5"}, {"TE", "trailers"}, {"Host", "evil"},
			{"Accept-Encoding", "gzip"}, {"Proxy-Authorization", "Basic Zm9v"}, {"X-Request-Id", "abc-1"},
		},
	})
	mustRead(t, r, "ok")
	r.Close(true)
	if got.String() != want {
		t.Fatalf("the engine got\n%q\nwant\n%q", got.String(), want)
	}
	if !reflect.DeepEqual(parts, before) {
		t.Fatal("the caller's slices were consumed")
	}
}

// A pooled request holds on to nobody's prompt.
func TestEngineRequestForgetsTheBody(t *testing.T) {
	call := callTo("a:1", "secret")
	q, err := newEngineRequest(&call)
	if err != nil {
		t.Fatal(err)
	}
	q.buffers(&call)
	q.free()
	for _, part := range q.store {
		if part != nil {
			t.Fatal("a slice was left")
		}
	}
}

func TestUpstreamGetHasNoLength(t *testing.T) {
	e := newScriptedEngine(t, func(c *engineSide) {
		r, _ := c.request()
		say(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX-Had: %v\r\n\r\n%d", r.Header["Content-Length"] != nil, r.ContentLength))
		c.ended()
	})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, upstreamCall{Addr: e.addr, Method: "GET", Path: "/health"})
	defer r.Close(true)
	mustRead(t, r, "0")
	if string(r.Get("x-had")) != "false" {
		t.Fatal("a GET without body told a length")
	}
}

// BODY-2, this client's part: bodies around and far above buffer sizes arrive whole, in several parts, one after the
// other on one connection.
func TestUpstreamBodiesOfEverySizeArriveWhole(t *testing.T) {
	e := newScriptedEngine(t, func(c *engineSide) {
		for {
			r, body := c.request()
			if r == nil {
				return
			}
			say(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: 64\r\nX-Len: %d\r\n\r\n%x", r.ContentLength, sha256.Sum256(body)))
		}
	})
	u := newTestUpstream(t, upstreamConfig{})
	for _, size := range []int{0, 1, 4095, 16<<10 - 1, 16 << 10, 16<<10 + 1, 65535, 65536, 65537, 131072, 1 << 20, 10 << 20} {
		body := bytes.Repeat([]byte("headgate"), size/8+1)[:size]
		call := callTo(e.addr, "")
		call.Body, call.BodyLen = [][]byte{body[:size/3], body[size/3 : size/2], body[size/2:]}, int64(size)
		r := u.mustDo(t, call)
		if got := string(r.Get("X-Len")); got != fmt.Sprint(size) {
			t.Fatalf("size %d: told %s", size, got)
		}
		mustRead(t, r, fmt.Sprintf("%x", sha256.Sum256(body)))
		r.Close(true)
	}
	if n := e.conns.Load(); n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
}

func TestUpstreamSendsNothingAmbiguous(t *testing.T) {
	e := newScriptedEngine(t, answering(okAnswer))
	u := newTestUpstream(t, upstreamConfig{})
	for name, spoil := range map[string]func(c *upstreamCall){
		"line break in a value": func(c *upstreamCall) { c.Header = []headerField{{"X-A", "1\r\nX-B: 2"}} },
		"bare line feed":        func(c *upstreamCall) { c.Header = []headerField{{"X-A", "1\n2"}} },
		"NUL in a value":        func(c *upstreamCall) { c.Header = []headerField{{"X-A", "1\x002"}} },
		"colon in a name":       func(c *upstreamCall) { c.Header = []headerField{{"X-A: 1", "1"}} },
		"space in a name":       func(c *upstreamCall) { c.Header = []headerField{{"X A", "1"}} },
		"empty name":            func(c *upstreamCall) { c.Header = []headerField{{"", "1"}} },
		"space in the path":     func(c *upstreamCall) { c.Path = "/v1 HTTP/1.1" },
		"line break in path":    func(c *upstreamCall) { c.Path = "/v1\r\nX: 1" },
		"no path":               func(c *upstreamCall) { c.Path = "" },
		"absolute path":         func(c *upstreamCall) { c.Path = "http://x/" },
		"method":                func(c *upstreamCall) { c.Method = "PO ST" },
		"host":                  func(c *upstreamCall) { c.Host = "a\r\nX: 1" },
		"scheme":                func(c *upstreamCall) { c.Scheme = "ftp" },
		"length too small":      func(c *upstreamCall) { c.BodyLen-- },
		"length too large":      func(c *upstreamCall) { c.BodyLen++ },
	} {
		call := callTo(e.addr, "hello")
		spoil(&call)
		r, fault := u.Do(context.Background(), call)
		if fault == nil || fault.Kind != upstreamFaultUnsendable || r != nil || fault.Reached {
			t.Errorf("%s: %v", name, fault)
		}
	}
	if n := e.conns.Load(); n != 0 {
		t.Fatalf("%d connections were opened", n)
	}
}

func TestUpstreamFaultsSayWhatHappened(t *testing.T) {
	closedPort := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}()
	expired, cancelExpired := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancelExpired()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	after := func(raw string) func(c *engineSide) {
		return func(c *engineSide) { c.request(); say(c, raw) }
	}
	silent := func(c *engineSide) { c.request(); c.ended() }
	background := context.Background()

	for _, tt := range []struct {
		name              string
		ctx               context.Context
		addr              string
		script            func(c *engineSide)
		connect           time.Duration
		head              time.Duration // 0 = patience
		kind              upstreamFaultKind
		received, reached bool
	}{
		{name: "refused", ctx: background, addr: closedPort, kind: upstreamFaultConnect},
		{name: "no such name", ctx: background, addr: "no-such-name.invalid:80", kind: upstreamFaultConnect},
		{name: "connect timeout", ctx: background, script: silent, connect: 1, kind: upstreamFaultConnectTimeout},
		{name: "closed after the request", ctx: background, script: after(""), kind: upstreamFaultDied, reached: true},
		{name: "closed within the head", ctx: background, script: after("HTTP/1.1 200 OK\r\nContent-"), kind: upstreamFaultDied, received: true, reached: true},
		{name: "closed after an interim head", ctx: background, script: after("HTTP/1.1 100 Continue\r\n\r\n"), kind: upstreamFaultDied, received: true, reached: true},
		{name: "not HTTP", ctx: background, script: after("\x15\x03\x01\x00\x02\x02"), kind: upstreamFaultBad, received: true, reached: true},
		{name: "no head in time", ctx: background, script: silent, head: 50 * time.Millisecond, kind: upstreamFaultTimeout, reached: true},
		{name: "cancelled before", ctx: cancelled, script: silent, kind: upstreamFaultCancelled},
		{name: "expired before", ctx: expired, script: silent, kind: upstreamFaultTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := tt.addr
			if addr == "" {
				addr = newScriptedEngine(t, tt.script).addr
			}
			u := newTestUpstream(t, upstreamConfig{ConnectTimeout: tt.connect})
			call := callTo(addr, "hello")
			if tt.head > 0 {
				call.HeadBy = time.Now().Add(tt.head)
			}
			r, fault := u.Do(tt.ctx, call)
			if fault == nil || r != nil {
				t.Fatal("no fault")
			}
			if fault.Kind != tt.kind || fault.Received != tt.received || fault.Reached != tt.reached || fault.Err == nil {
				t.Fatalf("%v, received %v, reached %v; want %v, %v, %v", fault, fault.Received, fault.Reached, tt.kind, tt.received, tt.reached)
			}
		})
	}
}

// What an engine says before it has read everything is read, although it then resets or stops reading.
func TestUpstreamReadsAnEarlyAnswer(t *testing.T) {
	const early = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large"
	for _, name := range []string{"and closes", "and stops reading"} {
		t.Run(name, func(t *testing.T) {
			stop := make(chan struct{})
			e := newScriptedEngine(t, func(c *engineSide) {
				c.in.Peek(1)
				say(c, early)
				if name == "and stops reading" {
					<-stop
				}
			})
			defer close(stop)
			u := newTestUpstream(t, upstreamConfig{})
			call := callTo(e.addr, strings.Repeat("x", 32<<20))
			r := u.mustDo(t, call)
			if r.Status != 413 {
				t.Fatalf("status %d", r.Status)
			}
			mustRead(t, r, "too large")
			r.Close(true)
			if n := u.idle.count(); n != 0 {
				t.Fatal("a connection with an unfinished request was kept")
			}
		})
	}
}

func TestUpstreamOverTLS(t *testing.T) {
	body := strings.Repeat("0123456789", 30_000)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Write(body)
	}))
	defer s.Close()
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	u := newTestUpstream(t, upstreamConfig{TLS: &tls.Config{RootCAs: roots}})
	for i := range 3 {
		call := callTo(s.Listener.Addr().String(), body)
		call.Scheme, call.Host = "https", "example.com"
		r := u.mustDo(t, call)
		mustRead(t, r, body)
		if r.Reused != (i > 0) {
			t.Fatalf("call %d: reused %v", i, r.Reused)
		}
		r.Close(true)
	}
	call := callTo(s.Listener.Addr().String(), body)
	call.Scheme, call.Host = "https", "somebody-else.test"
	if _, fault := u.Do(context.Background(), call); fault == nil || fault.Kind != upstreamFaultConnect {
		t.Fatalf("wrong name: %v", fault)
	}
}
