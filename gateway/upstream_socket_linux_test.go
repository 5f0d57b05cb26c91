package gateway

import (
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An engine's machine that vanishes says nothing at all, so that only the kernel can tell: it gives a connection up when
// nothing was acknowledged for 4 s (10 s after a large body), and asks a quiet one before.
func TestAVanishedEngineIsFoundByTheKernel(t *testing.T) {
	noLeaksAtEnd(t)
	e := newScriptedEngine(t, func(c *engineSide) {
		for {
			if r, _ := c.request(); r == nil {
				return
			}
			say(c, okAnswer)
		}
	})
	conn, err := dialEngine(t.Context(), engineKey{addr: e.addr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.tcp.Close()
	option := func(name int) (n int) {
		t.Helper()
		if err := conn.sock.raw.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if idle, every, count := option(unix.TCP_KEEPIDLE), option(unix.TCP_KEEPINTVL), option(unix.TCP_KEEPCNT); idle != 2 || every != 1 || count != 3 {
		t.Errorf("asked after %d s, then every %d s, %d times", idle, every, count)
	}
	for _, c := range []struct {
		body int64
		want time.Duration
	}{{5, engineVanished}, {engineStallBody + 1, engineVanishedBody}, {5, engineVanished}} {
		call := callTo(e.addr, "hello")
		call.BodyLen = c.body
		conn.patienceFor(&call)
		if got := time.Duration(option(unix.TCP_USER_TIMEOUT)) * time.Millisecond; got != c.want {
			t.Errorf("body of %d bytes: given up after %v, want %v", c.body, got, c.want)
		}
	}
}

// oneRead takes one read and counts what it lends.
type oneRead struct {
	buf            [8]byte
	lent, returned atomic.Int64
	n              int
	err            error
}

func (m *oneRead) lend() []byte               { m.lent.Add(1); return m.buf[:] }
func (m *oneRead) takeBack()                  { m.returned.Add(1) }
func (m *oneRead) took(n int, err error) bool { m.n, m.err = n, err; return false }

// While an engine is waited for, its connection holds no memory for what it may say.
func TestWaitingHoldsNoMemory(t *testing.T) {
	noLeaksAtEnd(t)
	speak := make(chan string)
	e := newScriptedEngine(t, func(c *engineSide) {
		for text := range speak {
			say(c, text)
		}
	})
	conn, err := dialEngine(t.Context(), engineKey{addr: e.addr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.tcp.Close()
	var m oneRead
	for i := range int64(3) {
		var engine sync.WaitGroup
		engine.Go(func() {
			for until := time.Now().Add(engineTestPatience); m.returned.Load() <= i && time.Now().Before(until); {
				runtime.Gosched()
			}
			if lent, returned := m.lent.Load(), m.returned.Load(); lent != 2*i+1 || returned != i+1 {
				t.Errorf("while it waits: lent %d times, given back %d times", lent, returned)
			}
			speak <- "hello"
		})
		if err := conn.receive(&m); err != nil || m.err != nil || string(m.buf[:m.n]) != "hello" {
			t.Errorf("%q, %v, %v", m.buf[:m.n], m.err, err)
		}
		engine.Wait()
	}
	conn.setReadBy(time.Now().Add(5 * time.Millisecond))
	if err := conn.receive(&m); !engineIsDeadline(err) {
		t.Errorf("a deadline: %v", err)
	}
	conn.setReadBy(time.Time{})
	close(speak)
	if err := conn.receive(&m); err != nil || m.n != 0 || m.err != io.EOF {
		t.Errorf("the end: %d, %v, %v", m.n, m.err, err)
	}
}
