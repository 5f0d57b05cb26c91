package lab

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// echo answers every connection with what it sends.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func roundTrip(t *testing.T, c net.Conn) time.Duration {
	start := time.Now()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

func TestRelayDelaysEachDirection(t *testing.T) {
	t.Parallel()
	r := Relay(t, echo(t), 40*time.Millisecond)
	c := dial(t, r.Addr)
	if took := roundTrip(t, c); took < 80*time.Millisecond {
		t.Fatalf("round trip of %s with 40 ms each way", took)
	}
	segments := r.Segments()
	if len(segments) != 2 || !segments[0].Up || segments[1].Up || segments[0].Head != "x" {
		t.Fatalf("log: %+v", segments)
	}
	for _, s := range segments {
		Eventually(t, time.Second, func() bool { return !r.Segments()[0].Sent.IsZero() }, "sent")
		if !s.Sent.IsZero() && s.Sent.Sub(s.Read) < 40*time.Millisecond {
			t.Fatalf("passed on after %s", s.Sent.Sub(s.Read))
		}
	}
	r.SetDelay(0)
	fastest := time.Hour
	for range 10 {
		fastest = min(fastest, roundTrip(t, c))
	}
	if fastest >= 80*time.Millisecond {
		t.Fatalf("the delay is still there: %s", fastest)
	}
	if up, down := r.Bytes(); up != 11 || down != 11 {
		t.Fatalf("%d up, %d down", up, down)
	}
}

// I3: 8 MB at 50 ms each way. One 32 KB segment at a time would take 256 × 50 ms = 13 s.
func TestRelayDelayDoesNotLimitThroughput(t *testing.T) {
	t.Parallel()
	r := Relay(t, echo(t), 50*time.Millisecond)
	c := dial(t, r.Addr)
	want := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
	go c.Write(want)
	start := time.Now()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("bytes changed or changed places")
	}
	if n := len(r.Segments()); n < 256 {
		t.Fatalf("only %d segments: the test shows nothing", n)
	}
	if took := time.Since(start); took > 6*time.Second {
		t.Fatalf("took %s", took)
	}
}

func TestRelayFreezeHoldsAndCutResets(t *testing.T) {
	t.Parallel()
	r := Relay(t, echo(t))
	c := dial(t, r.Addr)
	roundTrip(t, c)
	r.Freeze()
	c.Write([]byte("x"))
	Eventually(t, 5*time.Second, func() bool { up, _ := r.Bytes(); return up == 2 }, "the relay has the byte")
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("a byte passed a frozen relay")
	}
	r.Thaw()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	r.Cut()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("a cut connection lives")
	}
	roundTrip(t, dial(t, r.Addr))
	if n := r.Conns(); n != 2 {
		t.Fatalf("%d connections", n)
	}
}

func TestRelayPassesHalfClose(t *testing.T) {
	t.Parallel()
	c := dial(t, Relay(t, echo(t), 5*time.Millisecond).Addr)
	c.Write([]byte("all of it"))
	c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "all of it" {
		t.Fatalf("%q, %v", got, err)
	}
}
