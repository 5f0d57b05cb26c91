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

// lentOnce is memory that counts what it is asked for.
type lentOnce struct {
	buf            [8]byte
	lent, returned atomic.Int64
}

func (m *lentOnce) lend() []byte { m.lent.Add(1); return m.buf[:] }
func (m *lentOnce) takeBack()    { m.returned.Add(1) }

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
	var m lentOnce
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
		n, err := conn.receive(&m)
		if err != nil || string(m.buf[:n]) != "hello" {
			t.Errorf("%q, %v", m.buf[:n], err)
		}
		engine.Wait()
	}
	conn.setReadBy(time.Now().Add(5 * time.Millisecond))
	if n, err := conn.receive(&m); n != 0 || !engineIsDeadline(err) {
		t.Errorf("a deadline: %d, %v", n, err)
	}
	conn.setReadBy(time.Time{})
	close(speak)
	if n, err := conn.receive(&m); n != 0 || err != io.EOF {
		t.Errorf("the end: %d, %v", n, err)
	}
}
