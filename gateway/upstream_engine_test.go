package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// engineTestPatience bounds every wait of these tests; nothing is asserted about how much of it is used.
const engineTestPatience = 20 * time.Second

// scriptedEngine is a TCP server whose connections run a script. It counts connections and whole requests.
type scriptedEngine struct {
	t        testing.TB
	addr     string
	conns    atomic.Int64
	requests atomic.Int64
	done     sync.WaitGroup
	mu       sync.Mutex
	open     map[*net.TCPConn]bool
}

// engineSide is one connection as the script sees it.
type engineSide struct {
	*net.TCPConn
	in     *bufio.Reader
	engine *scriptedEngine
	nth    int64 // of this engine's connections, from 1
}

func newScriptedEngine(t testing.TB, script func(c *engineSide)) *scriptedEngine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &scriptedEngine{t: t, addr: l.Addr().String(), open: map[*net.TCPConn]bool{}}
	e.done.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			tcp := nc.(*net.TCPConn)
			tcp.SetDeadline(time.Now().Add(engineTestPatience))
			e.mu.Lock()
			e.open[tcp] = true
			e.mu.Unlock()
			c := &engineSide{TCPConn: tcp, in: bufio.NewReader(tcp), engine: e, nth: e.conns.Add(1)}
			e.done.Go(func() {
				defer func() {
					tcp.Close()
					e.mu.Lock()
					delete(e.open, tcp)
					e.mu.Unlock()
				}()
				script(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		e.mu.Lock()
		for c := range e.open {
			c.Close()
		}
		e.mu.Unlock()
		e.done.Wait()
	})
	return e
}

// request reads one whole request; nil at the end of the connection.
func (c *engineSide) request() (*http.Request, []byte) {
	r, err := http.ReadRequest(c.in)
	if err != nil {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, nil
	}
	c.engine.requests.Add(1)
	return r, body
}

// ended blocks until the client's end of the connection is closed or reset.
func (c *engineSide) ended() error {
	_, err := io.Copy(io.Discard, c.in)
	var n net.Error
	if errors.As(err, &n) && n.Timeout() {
		return err
	}
	return nil
}

func (c *engineSide) reset() {
	c.SetLinger(0)
	c.Close()
}

func say(c io.Writer, s string) { io.WriteString(c, s) }

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func answering(raw string) func(c *engineSide) {
	return func(c *engineSide) {
		for {
			if r, _ := c.request(); r == nil {
				return
			}
			say(c, raw)
		}
	}
}

func newTestUpstream(t testing.TB, cfg upstreamConfig) *upstream {
	u := newUpstream(cfg)
	t.Cleanup(u.Close)
	return u
}

func callTo(addr, body string) upstreamCall {
	c := upstreamCall{Addr: addr, Method: "POST", Path: "/v1/chat/completions", HeadBy: time.Now().Add(engineTestPatience)}
	if body != "" {
		c.Body, c.BodyLen = [][]byte{[]byte(body)}, int64(len(body))
	}
	return c
}

func (u *upstream) mustDo(t testing.TB, call upstreamCall) *upstreamReply {
	t.Helper()
	r, fault := u.Do(context.Background(), call)
	if fault != nil {
		t.Fatalf("%v (received %v, reached %v)", fault, fault.Received, fault.Reached)
	}
	return r
}

// allOf reads the body to its end by Next, copying.
func allOf(r *upstreamReply) (body string, err error) {
	var b bytes.Buffer
	for {
		data, err := r.Next()
		b.Write(data)
		if err != nil {
			return b.String(), err
		}
		if len(data) == 0 {
			return b.String(), errors.New("Next gave nothing and no error")
		}
	}
}

func mustRead(t testing.TB, r *upstreamReply, want string) {
	t.Helper()
	if got, err := allOf(r); got != want || err != io.EOF {
		t.Fatalf("body %.100q, %v; want %.100q and the clean end", got, err, want)
	}
	if !r.Ended() {
		t.Fatal("Ended is false after io.EOF")
	}
}

// noLeaksAtEnd must come first in a test that is not parallel: it then runs after every other clean-up.
func noLeaksAtEnd(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func awaitThat(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(engineTestPatience); !ok(); {
		if time.Now().After(until) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *engineIdle) count() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.conns {
		n += len(list)
	}
	return n
}
