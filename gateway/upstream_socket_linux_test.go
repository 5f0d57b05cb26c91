package gateway

import (
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
