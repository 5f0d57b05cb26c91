package gateway

import (
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// allReads takes all there is.
type allReads struct {
	buf   [64]byte
	got   string
	reads int
	heard chan<- struct{}
	err   error
}

func (m *allReads) lend() []byte { m.reads++; return m.buf[:] }
func (m *allReads) takeBack()    {}
func (m *allReads) took(n int, err error) bool {
	m.got, m.err = m.got+string(m.buf[:n]), err
	if n > 0 && m.heard != nil {
		m.heard <- struct{}{}
	}
	return err == nil
}

// A piece of an answer costs one read, not a second one that finds nothing.
func TestOneReadPerPiece(t *testing.T) {
	noLeaksAtEnd(t)
	const pieces = 40
	heard := make(chan struct{})
	e := newScriptedEngine(t, func(c *engineSide) {
		for range pieces {
			say(c, "x")
			<-heard
		}
	})
	conn, err := dialEngine(t.Context(), engineKey{addr: e.addr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.tcp.Close()
	conn.setReadBy(time.Now().Add(engineTestPatience))
	m := allReads{heard: heard}
	if err := conn.receive(&m); err != nil || len(m.got) != pieces || m.err != io.EOF {
		t.Fatalf("%d pieces, %v, %v", len(m.got), m.err, err)
	}
	if most := pieces + pieces/4; m.reads > most { // one at the start, one at the end, and what the kernel told late
		t.Errorf("%d reads for %d pieces", m.reads, pieces)
	}
}

// The end of a connection that comes together with the last bytes is not waited for.
func TestTheEndBehindBytesIsSeen(t *testing.T) {
	noLeaksAtEnd(t)
	e := newScriptedEngine(t, func(c *engineSide) { say(c, "hello") })
	conn, err := dialEngine(t.Context(), engineKey{addr: e.addr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.tcp.Close()
	awaitThat(t, "the end is with the kernel", func() (there bool) {
		_ = conn.sock.raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			there = err == nil && info.State == unix.BPF_TCP_CLOSE_WAIT
		})
		return there
	})
	conn.setReadBy(time.Now().Add(engineTestPatience))
	var m allReads
	if err := conn.receive(&m); err != nil || m.got != "hello" || m.err != io.EOF {
		t.Errorf("%q, %v, %v", m.got, m.err, err)
	}
}

// A reset that comes together with the last bytes is announced with them: a look finds it.
func TestAResetBehindBytesIsSeen(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	e := newScriptedEngine(t, func(c *engineSide) {
		c.request()
		say(c, chunkedHead)
		<-read
		say(c, "5\r\nhello\r\n")
		c.reset()
	})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	defer r.Close(true)
	close(read)
	awaitThat(t, "the reset is with the kernel", func() (there bool) {
		_ = r.conn.sock.raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			there = err == nil && info.State == unix.BPF_TCP_CLOSE
		})
		return there
	})
	r.SetSilence(engineTestPatience)
	if got, err := eachOf(r); got != "hello" || !errors.Is(err, errUpstreamReset) {
		t.Errorf("%q, %v", got, err)
	}
}
