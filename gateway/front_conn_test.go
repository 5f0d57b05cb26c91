package gateway

import (
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestDeadlinesReachWaits: a deadline ends a read that waits already as well as the next one, and one that was lifted or put
// off ends none; the same holds for writes.
func TestDeadlinesReachWaits(t *testing.T) {
	t.Parallel()
	front, client := net.Pipe()
	defer client.Close()
	c := &frontConn{Conn: front, open: new(atomic.Int64)}
	defer c.Close()
	past := time.Unix(1, 0)
	for name, use := range map[string]struct {
		set  func(time.Time) error
		wait func([]byte) (int, error)
		meet func([]byte) (int, error)
	}{
		"read":  {c.SetReadDeadline, c.Read, client.Write},
		"write": {c.SetWriteDeadline, c.Write, client.Read},
	} {
		_ = use.set(past)
		if _, err := use.wait([]byte("a")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s after its deadline: %v", name, err)
		}
		_ = use.set(time.Time{})
		ended := make(chan error)
		go func() { _, err := use.wait([]byte("a")); ended <- err }()
		if _, err := use.meet(make([]byte, 1)); err != nil || <-ended != nil {
			t.Errorf("%s after its deadline was lifted: %v", name, err)
		}
		go func() { _, err := use.wait([]byte("a")); ended <- err }()
		_ = use.set(past) // before it waits, or while it does
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s under its deadline: %v", name, err)
		}
	}
}

// TestWriteTimeKept: what is left of an answer's time to be taken is the next one's where it is half of it at least, and a
// connection whose deadline has passed gets all of it.
func TestWriteTimeKept(t *testing.T) {
	t.Parallel()
	c := &frontConn{}
	for _, left := range []time.Duration{-time.Second, time.Second, writeTimeout - time.Second, 3 * writeTimeout} {
		c.writeBy = deadline{set: time.Now().Add(left)}
		c.writeWithin(writeTimeout)
		kept := c.writeBy.want == c.writeBy.set
		if got := time.Until(c.writeBy.want); kept != (left == writeTimeout-time.Second) || got > writeTimeout || got < writeTimeout/2-time.Second {
			t.Errorf("with %v left: kept %v, %v now", left, kept, got)
		}
	}
}

// TestDeadlinesAreFew: each costs the runtime a timer's move. net/http asks for eleven per request.
func TestDeadlinesAreFew(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	l := serveCounted(t, f.Server())
	f.addr = l.Addr().String()
	const requests = 20
	w := f.dial(t)
	for range requests {
		if got := w.send(f.post(f.key, `{"model":"none","messages":[{"role":"user","content":"hi"}]}`)).answer("POST"); got.StatusCode != 404 {
			t.Fatalf("%d %s", got.StatusCode, got.text)
		}
	}
	if l.reads.Load() < requests || l.reads.Load() > 3*requests+3 || l.writes.Load() != 1 {
		t.Errorf("%d requests set %d deadlines for reads and %d for writes", requests, l.reads.Load(), l.writes.Load())
	}
}

// serveCounted serves a port as the public one until the test ends, and counts what reaches its sockets.
func serveCounted(t *testing.T, server *http.Server) *countingListener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, done := &countingListener{Listener: inner}, make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(Listener(l, 100, zerolog.Nop()))
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return l
}

type countingListener struct {
	net.Listener
	reads, writes atomic.Int64 // deadlines
	sent          atomic.Int64 // writes
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &countingConn{c, l}, err
}

type countingConn struct {
	net.Conn
	of *countingListener
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.of.sent.Add(1)
	return c.Conn.Write(p)
}

func (c *countingConn) SetReadDeadline(t time.Time) error {
	c.of.reads.Add(1)
	return c.Conn.SetReadDeadline(t)
}

func (c *countingConn) SetWriteDeadline(t time.Time) error {
	c.of.writes.Add(1)
	return c.Conn.SetWriteDeadline(t)
}

// TestLastWords: what is written as the last goes out in one write with the end of the answer, and with its head.
func TestLastWords(t *testing.T) {
	t.Parallel()
	l := serveCounted(t, &http.Server{ConnContext: withConn, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := newExchange(w, r, time.Minute)
		x.Begin(200, []headerField{{"Content-Type", "text/event-stream"}}, -1)
		if x.Path() == "/more" {
			_ = x.Write([]byte("data: 1\n\n"))
		}
		_ = x.WriteLast([]byte("data: [DONE]\n\n"))
	})})
	f := &front{addr: l.Addr().String()}
	w := f.dial(t)
	for path, want := range map[string]int64{"/": 1, "/more": 2} {
		before := l.sent.Load()
		got := w.send("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n").answer("GET")
		if got.Header.Get("Content-Type") != "text/event-stream" || got.ContentLength >= 0 || !strings.HasSuffix(got.text, "data: [DONE]\n\n") || l.sent.Load() != before+want {
			t.Errorf("%s: %v %q in %d writes", path, got.Header, got.text, l.sent.Load()-before)
		}
	}
}

// TestFieldsEndNoLine: whatever a value holds, the fields are those that were given.
func TestFieldsEndNoLine(t *testing.T) {
	t.Parallel()
	front, client := net.Pipe()
	defer client.Close()
	c := &frontConn{Conn: front, open: new(atomic.Int64)}
	defer c.Close()
	got := make(chan string)
	go func() {
		var all [500]byte
		n, _ := client.Read(all[:])
		got <- string(all[:n])
	}()
	c.putHead([]headerField{{"A", " x\r\nB: y\n\r\nz \r\n"}}, []headerField{{"C", ""}})
	const sent = "HTTP/1.1 400 Bad Request\r\nDate: now\r\n\r\nbody"
	if n, err := c.Write([]byte(sent)); n != len(sent) || err != nil {
		t.Errorf("%d %v", n, err)
	}
	want := "HTTP/1.1 400 Bad Request\r\nA: x  B: y   z\r\nC: \r\nDate: now\r\n\r\nbody"
	if all := <-got; all != want {
		t.Errorf("%q", all)
	}
	if c.head != nil {
		t.Error("the fields would be written again")
	}
}

// TestWholeAnswers: an answer in one piece is framed alike whether net/http was told of it or not, and a small one is one
// write. Where net/http has more to say than is known here nothing goes out.
func TestWholeAnswers(t *testing.T) {
	t.Parallel()
	l := serveCounted(t, &http.Server{ConnContext: withConn, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := newExchange(w, r, time.Minute)
		x.leaving = new(atomic.Bool)
		x.leaving.Store(x.Query() == "leave")
		length, _ := strconv.Atoi(x.Path()[1:])
		x.Begin(203, []headerField{{"Content-Type", "text/x"}}, int64(length))
		if x.Query() != "silent" {
			_ = x.WriteLast(make([]byte, length))
		}
		x.end()
	})})
	f := &front{addr: l.Addr().String()}
	for _, path := range []string{"/0", "/0?silent", "/1", "/2048", "/2049", "/100000"} {
		length, _ := strconv.Atoi(strings.TrimSuffix(path[1:], "?silent"))
		for _, ask := range []struct {
			line, fields string
			close        bool
		}{
			{"GET " + path + " HTTP/1.1", "", false},
			{"GET " + path + " HTTP/1.1", "Connection: close\r\n", true},
			{"GET " + path + " HTTP/1.0", "", true},
			{"GET " + path + " HTTP/1.0", "Connection: keep-alive\r\n", false},
			{"HEAD " + path + " HTTP/1.1", "", false},
			{"GET " + strings.TrimSuffix(path, "?silent") + "?leave HTTP/1.1", "", true},
		} {
			before := l.sent.Load()
			method, _, _ := strings.Cut(ask.line, " ")
			got := f.dial(t).send(ask.line + "\r\nHost: h\r\n" + ask.fields + "\r\n").answer(method)
			want := length
			if method == "HEAD" {
				want = 0
			}
			if got.StatusCode != 203 || got.Header.Get("Content-Type") != "text/x" || got.Header.Get("Date") == "" || len(got.Header["Content-Length"]) != 1 ||
				got.ContentLength != int64(length) || len(got.text) != want || got.Close != ask.close {
				t.Errorf("%s %q: %v %d bytes, close %v", ask.line, ask.fields, got.Header, len(got.text), got.Close)
			}
			if n := l.sent.Load() - before; length <= maxSmall && n != 1 {
				t.Errorf("%s: %d writes", ask.line, n)
			}
		}
	}
	c := &frontConn{Conn: unwritten{}, body: []byte("x")}
	c.putHead()
	if _, err := c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")); err != errNotEmpty {
		t.Errorf("two lengths: %v", err)
	}
}

// unwritten is a connection that takes nothing.
type unwritten struct{ net.Conn }

func (unwritten) SetWriteDeadline(time.Time) error { return nil }
func (unwritten) Write([]byte) (int, error)        { return 0, errors.New("it was written to") }
