package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestUpstreamWake: a quiet engine wakes the reader again and again, what it says later is read, and its silence counts
// over all wakes.
func TestUpstreamWake(t *testing.T) {
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
	r.SetSilence(engineTestPatience)
	r.SetWake(5 * time.Millisecond)
	var text string
	wakes := 0
	for wakes < 3 {
		p, err := r.Next()
		text += string(p)
		switch {
		case errors.Is(err, errUpstreamQuiet):
			wakes++
		case err != nil:
			t.Fatal(err)
		}
	}
	close(speak)
	for text != "helloworld" {
		p, err := r.Next()
		text += string(p)
		if err != nil && !errors.Is(err, errUpstreamQuiet) {
			t.Fatal(err)
		}
	}
	r.SetSilence(40 * time.Millisecond)
	began := time.Now()
	for wakes = 0; ; wakes++ {
		_, err := r.Next()
		if errors.Is(err, errUpstreamSilent) {
			break
		}
		if !errors.Is(err, errUpstreamQuiet) || time.Since(began) > engineTestPatience {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < 40*time.Millisecond {
		t.Errorf("silent after %s", took)
	}
	if _, err := r.Next(); !errors.Is(err, errUpstreamSilent) {
		t.Errorf("the end does not stay: %v", err)
	}
	r.Close(true)
}

// A wake does not outlast the last instant.
func TestUpstreamWakeEnds(t *testing.T) {
	e := newScriptedEngine(t, func(c *engineSide) {
		c.request()
		say(c, chunkedHead)
		c.ended()
	})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	r.SetWake(5 * time.Millisecond)
	by := time.Now().Add(30 * time.Millisecond)
	r.SetReadBy(by)
	var err error
	for err = errUpstreamQuiet; errors.Is(err, errUpstreamQuiet); {
		_, err = r.Next()
	}
	if !errors.Is(err, errUpstreamSilent) || time.Now().Before(by) {
		t.Errorf("%v", err)
	}
	r.Close(true)
}

func TestEngineWait(t *testing.T) {
	for _, c := range []struct{ silence, passed, wake, want time.Duration }{
		{0, 0, 0, 0},
		{0, 100, 7, 7},
		{60 * time.Second, 0, 0, 60 * time.Second},
		{60 * time.Second, 0, 15 * time.Second, 15 * time.Second},
		{60 * time.Second, 50 * time.Second, 15 * time.Second, 10 * time.Second},
		{2 * time.Second, 0, 15 * time.Second, 2 * time.Second},
		{2 * time.Second, 3 * time.Second, 15 * time.Second, time.Millisecond},
	} {
		if got := engineWait(c.silence, c.passed, c.wake); got != c.want {
			t.Errorf("engineWait(%s, %s, %s) = %s, want %s", c.silence, c.passed, c.wake, got, c.want)
		}
	}
}

// A wake in the middle of a TLS record loses none of it.
func TestUpstreamWakeOnTLS(t *testing.T) {
	woken := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "hello")
			_ = http.NewResponseController(w).Flush()
			<-woken
		}
	}))
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	u := newTestUpstream(t, upstreamConfig{TLS: &tls.Config{RootCAs: pool, ServerName: "example.com"}})
	call := callTo(s.Listener.Addr().String(), "x")
	call.Scheme = "https"
	r := u.mustDo(t, call)
	r.SetWake(3 * time.Millisecond)
	var text string
	for {
		p, err := r.Next()
		text += string(p)
		if errors.Is(err, errUpstreamQuiet) {
			select {
			case woken <- struct{}{}:
			default:
			}
			continue
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if text != "hellohellohello" {
		t.Errorf("%q", text)
	}
	r.Close(true)
}
