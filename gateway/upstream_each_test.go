package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// eachOf reads a body to its end by Each, copying.
func eachOf(r *upstreamReply) (body string, err error) {
	var b strings.Builder
	err = r.Each(func(data []byte) error {
		b.Write(data)
		if len(data) == 0 {
			return errors.New("Each gave nothing")
		}
		return nil
	})
	return b.String(), err
}

// Each ends as Next would, with the same bytes before it.
func TestEachEndsAsNextDoes(t *testing.T) {
	noLeaksAtEnd(t)
	for _, tt := range []struct {
		name  string
		rest  string // behind the first chunk
		end   func(c *engineSide)
		want  string
		err   error
		reuse int
	}{
		{name: "in order", rest: "5\r\nworld\r\n0\r\n\r\n", end: func(c *engineSide) { c.ended() }, want: "helloworld", err: io.EOF, reuse: 1},
		{name: "more than asked for", rest: "0\r\n\r\nmore", end: func(c *engineSide) { c.ended() }, want: "hello", err: io.EOF},
		{name: "cut", rest: "5\r\nworl", end: func(c *engineSide) {}, want: "helloworl", err: errUpstreamCut},
		{name: "reset", end: (*engineSide).reset, want: "hello", err: errUpstreamReset}, // found by a look if the kernel tells of both at once
		{name: "bad framing", rest: "what\r\n", end: func(c *engineSide) { c.ended() }, want: "hello", err: errUpstreamBad},
	} {
		t.Run(tt.name, func(t *testing.T) {
			begun := make(chan struct{})
			e := newScriptedEngine(t, func(c *engineSide) {
				c.request()
				say(c, chunkedHead)
				<-begun // so that the bytes come by reads of Each's own
				say(c, "5\r\nhello\r\n"+tt.rest)
				tt.end(c)
			})
			u := newTestUpstream(t, upstreamConfig{})
			r := u.mustDo(t, callTo(e.addr, "x"))
			close(begun)
			got, err := eachOf(r)
			if got != tt.want && tt.err != errUpstreamReset || !errors.Is(err, tt.err) { // a reset may take the bytes with it
				t.Errorf("%q, %v; want %q, %v", got, err, tt.want, tt.err)
			}
			if got, again := eachOf(r); got != "" || !errors.Is(again, tt.err) {
				t.Errorf("the end does not stay: %q, %v", got, again)
			}
			r.Close(true)
			if n := u.idle.count(); n != tt.reuse {
				t.Errorf("%d connections kept, want %d", n, tt.reuse)
			}
		})
	}
}

// Each is woken by the wake, not by its own looks; it goes on where it was; and silence counts over all of it.
func TestEachWakes(t *testing.T) {
	speak := make(chan struct{})
	e := newScriptedEngine(t, func(c *engineSide) {
		c.request()
		say(c, chunkedHead+"5\r\nhello\r\n")
		<-speak
		say(c, "5\r\nworld\r\n")
		c.ended()
	})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	defer r.Close(true)
	r.SetSilence(engineTestPatience)
	for _, wake := range []time.Duration{5 * time.Millisecond, engineLook + 200*time.Millisecond} {
		r.SetWake(wake)
		began := time.Now()
		if _, err := eachOf(r); err != errUpstreamQuiet || time.Since(began) < wake {
			t.Errorf("%v after %s, wake %s", err, time.Since(began), wake)
		}
	}
	r.SetWake(0)
	r.SetSilence(40 * time.Millisecond)
	close(speak)
	began := time.Now()
	got, err := eachOf(r)
	if got != "world" || !errors.Is(err, errUpstreamSilent) || time.Since(began) < 40*time.Millisecond {
		t.Errorf("%q, %v after %s", got, err, time.Since(began))
	}
}

// A connection is looked at before its silence is too long, however little is allowed.
func TestEachLooksBeforeItGivesUp(t *testing.T) {
	for _, silence := range []time.Duration{0, 20 * time.Millisecond, engineLook, 10 * engineLook} {
		r := upstreamReply{take: func([]byte) error { return nil }, silence: silence}
		if look := r.nextWake(); look <= 0 || silence > 0 && look > silence/2 {
			t.Errorf("silence %s: looked at after %s", silence, look)
		}
	}
}

// Abort ends the connection at once and waits for nobody, whatever Each is doing, take included.
func TestEachAborted(t *testing.T) {
	noLeaksAtEnd(t)
	refused := errors.New("refused")
	for _, tt := range []struct {
		name string
		take func(r *upstreamReply, gone <-chan error) error
		want error
	}{
		{"while it waits", func(r *upstreamReply, _ <-chan error) error { go r.Abort(); return nil }, errUpstreamAborted},
		{"within take", func(r *upstreamReply, _ <-chan error) error { r.Abort(); return nil }, errUpstreamAborted},
		{"while take is busy", func(r *upstreamReply, gone <-chan error) error {
			go r.Abort()
			return <-gone // the engine knows before take has returned
		}, errUpstreamAborted},
		{"take refuses", func(*upstreamReply, <-chan error) error { return refused }, refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gone, begun := make(chan error, 2), make(chan struct{})
			e := newScriptedEngine(t, func(c *engineSide) {
				c.request()
				say(c, chunkedHead)
				<-begun // so that the bytes come by a read of Each's own
				say(c, "5\r\nhello\r\n")
				err := c.ended()
				gone <- err
				gone <- err
			})
			u := newTestUpstream(t, upstreamConfig{})
			r := u.mustDo(t, callTo(e.addr, "x"))
			close(begun)
			if err := r.Each(func([]byte) error { return tt.take(r, gone) }); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			r.Close(true)
			if err := <-gone; err != nil {
				t.Errorf("the engine's end: %v", err)
			}
			if n := u.idle.count(); n != 0 {
				t.Errorf("%d connections kept", n)
			}
		})
	}
}

func TestEachOnTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "hello")
			_ = http.NewResponseController(w).Flush()
		}
	}))
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	u := newTestUpstream(t, upstreamConfig{TLS: &tls.Config{RootCAs: pool, ServerName: "example.com"}})
	call := callTo(s.Listener.Addr().String(), "x")
	call.Scheme = "https"
	r := u.mustDo(t, call)
	if got, err := eachOf(r); got != "hellohellohello" || err != io.EOF {
		t.Errorf("%q, %v", got, err)
	}
	r.Close(true)
	if n := u.idle.count(); n != 1 {
		t.Errorf("%d connections kept", n)
	}
}
