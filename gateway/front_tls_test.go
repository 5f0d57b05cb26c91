package gateway

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestCleartextOnTheTLSPort: an HTTP request is told what the port speaks, also one with a long body; what is neither is not.
func TestCleartextOnTheTLSPort(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("not asked for") }}
	server, done := f.Server(), make(chan struct{})
	go func() { defer close(done); _ = server.Serve(Listener(TLS(l, cfg), 10, zerolog.Nop())) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	say := func(text string) *bufio.Reader {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		return bufio.NewReader(c)
	}
	for _, text := range []string{"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", f.post(f.key, strings.Repeat("x", 100_000))} {
		in := say(text)
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != 400 || !strings.Contains(string(body), `"message":"This port speaks HTTPS: write https:// in the URL."`) {
			t.Errorf("%d %v %s", answer.StatusCode, err, body)
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("the connection goes on: %v", err)
		}
	}
	if rest, _ := io.ReadAll(say("\x80\x2e\x01\x03\x01")); strings.Contains(string(rest), "HTTP") { // an old client's hello
		t.Errorf("told %q", rest)
	}
}
