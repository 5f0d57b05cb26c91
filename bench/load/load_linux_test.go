package load

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func startEngine(t *testing.T, ports int) (*Engine, netip.AddrPort, string) {
	t.Helper()
	e, err := NewEngine(ports)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(e.Ports[ports-1]))
	return e, at, "http://" + at.String()
}

// TestWholeAnswers: answers of every form are read to their end, never more at a time than there are clients; a broken one is
// an error. I1, I3
func TestWholeAnswers(t *testing.T) {
	t.Parallel()
	_, at, url := startEngine(t, 2)
	for name, c := range map[string]struct {
		ask   Ask
		plan  Plan
		least int
	}{
		"at once":       {Ask{Bytes: 300}, Plan{Tokens: 1}, len(answerBody)},
		"large":         {Ask{Bytes: 300_000}, Plan{Tokens: 1}, len(answerBody)},
		"a stream":      {Ask{Bytes: 100_000, Stream: true}, Plan{Tokens: 4}, 4 * EventBytes},
		"a slow stream": {Ask{Bytes: 300, Stream: true}, Plan{TTFT: 20 * time.Millisecond, Pace: 5 * time.Millisecond, Tokens: 5}, 5 * EventBytes},
	} {
		if err := Tell(url, c.plan); err != nil {
			t.Fatal(err)
		}
		before, _ := AskStats(url)
		got, err := Run(Job{Addr: at, Requests: [][]byte{c.ask.Wire()}, Clients: 5, Warm: 50 * time.Millisecond, Window: 300 * time.Millisecond, Least: c.least})
		if err != nil || got.Errors > 0 || got.Served < 5 || got.Open > 5 || len(got.Whole) != got.Served {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		after, err := AskStats(url)
		if n := after.Requests - before.Requests; err != nil || n < int64(got.Served) || after.BodyBytes-before.BodyBytes != n*int64(bodyOf(c.ask)) {
			t.Errorf("%s: the engine had %+v after %+v, %v", name, after, before, err)
		}
	}
	if err := Tell(url, Plan{Tokens: 2}); err != nil {
		t.Fatal(err)
	}
	got, err := Run(Job{Addr: at, Requests: [][]byte{Ask{Bytes: 300, Stream: true}.Wire()}, Clients: 1, Window: 50 * time.Millisecond, Least: 9 * EventBytes})
	if err != nil || got.Errors == 0 || got.Served > 0 {
		t.Errorf("answers that are too short: %v, %v", got, err)
	}
}

func bodyOf(a Ask) int {
	_, body, _ := strings.Cut(string(a.Wire()), "\r\n\r\n")
	return len(body)
}

// TestBrokenAnswers: what is not a whole answer is an error. I1
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, sent := range []string{
		"", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123", "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}", "nonsense at its worst\r\n\r\n",
		head + "5\r\nhello\r\n0\r\n\r\n", head + "e\r\ndata: [DONE]\n\n\r\n", head + "zz\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{}",
	} {
		got, err := Run(Job{Addr: scripted(t, sent), Requests: [][]byte{Ask{Bytes: 10}.Wire()}, Clients: 1, Window: 100 * time.Millisecond})
		if err != nil || got.Errors == 0 || got.Served > 0 {
			t.Errorf("%q: %v, %v", sent, got, err)
		}
	}
	whole := head + "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
	for cut := range len(whole) { // in two pieces, wherever it is cut
		var a answer
		done, err := a.take([]byte(whole[:cut]))
		if err != nil || done {
			t.Fatalf("cut at %d: %v %v", cut, done, err)
		}
		if done, err = a.take([]byte(whole[cut:])); err != nil || !done || a.judge(14) != nil {
			t.Fatalf("cut at %d: %v %v %v", cut, done, err, a.judge(14))
		}
	}
}

// scripted says that to whoever asks, and closes.
func scripted(t *testing.T, sent string) netip.AddrPort {
	t.Helper()
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
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, sent)
			c.Close()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// TestPace: tokens come at their times, so a stream lasts what it should, and a held one stays open. I2
func TestPace(t *testing.T) {
	t.Parallel()
	_, at, url := startEngine(t, 1)
	plan := Plan{TTFT: 30 * time.Millisecond, Pace: 10 * time.Millisecond, Tokens: 20}
	if err := Tell(url, plan); err != nil {
		t.Fatal(err)
	}
	ask := Ask{Bytes: 1000, Stream: true, Tokens: 20}.Wire()
	got, err := Run(Job{Addr: at, Requests: [][]byte{ask}, Clients: 50, Ramp: 100 * time.Millisecond, Warm: 200 * time.Millisecond, Window: time.Second, Least: 20 * EventBytes})
	if err != nil || got.Errors > 0 || got.Served < 50 {
		t.Fatalf("%v, %v", got, err)
	}
	ideal := plan.TTFT + time.Duration(plan.Tokens)*plan.Pace
	if least := slices.Min(got.Whole); least < ideal-3*time.Millisecond {
		t.Errorf("a stream of %v, due %v", least, ideal)
	}
	if err := Tell(url, Plan{TTFT: time.Millisecond, Pace: time.Hour, Tokens: 2}); err != nil {
		t.Fatal(err)
	}
	if got, err = Run(Job{Addr: at, Requests: [][]byte{ask}, Clients: 50, Window: 50 * time.Millisecond, Hold: true}); err != nil || got.Open != 50 || got.Errors > 0 {
		t.Errorf("held: %v, %v", got, err)
	}
	if s, err := AskStats(url); err != nil || s.AskedUsage != 0 {
		t.Errorf("nobody asked for usage: %+v, %v", s, err)
	}
	if _, err := get(url + "/set?ttft=x"); err == nil {
		t.Error("a plan that is none was taken")
	}
}
