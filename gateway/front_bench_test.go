package gateway

import (
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// BenchmarkFront is what net/http and the front take for a small request and its answer in one piece, without system calls.
func BenchmarkFront(b *testing.B) {
	b.ReportAllocs()
	body := make([]byte, 413)
	fields := []headerField{{"X-Request-Id", "01234567890123456789012345678901"}, {"X-Ratelimit-Limit-Requests", "100000"},
		{"X-Ratelimit-Remaining-Requests", "99999"}, {"X-Ratelimit-Reset-Requests", "60s"}, {"X-Headgate-Cache", "off"},
		{"Content-Type", "application/json"}, {"X-Headgate-Backend", "a"}, {"X-Headgate-Queue-Ms", "0"}}
	server := &http.Server{ConnContext: withConn, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := newExchange(w, r, time.Minute)
		x.Begin(200, fields, int64(len(body)))
		_ = x.WriteLast(body)
		x.end()
	})}
	c := &askingConn{left: b.N, called: make(chan struct{}, 1), ended: make(chan struct{})}
	served := make(chan error)
	b.ResetTimer()
	go func() { served <- server.Serve(Listener(&oneConn{c}, 1, zerolog.Nop())) }()
	<-c.ended
	<-served
}

// askingConn brings the same request left times, whole, and takes every answer. A read of one byte is net/http's, which looks
// out for the client's leaving: it ends when it is called off.
type askingConn struct {
	net.Conn
	left   int
	called chan struct{}
	ended  chan struct{}
}

func (c *askingConn) Read(p []byte) (int, error) {
	switch {
	case len(p) == 1:
		<-c.called
		return 0, os.ErrDeadlineExceeded
	case c.left == 0:
		close(c.ended)
		return 0, io.EOF
	}
	c.left--
	return copy(p, "GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: a\r\nAccept: */*\r\n\r\n"), nil
}

func (c *askingConn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && t.Before(time.Now()) {
		c.called <- struct{}{}
	}
	return nil
}

func (c *askingConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *askingConn) SetWriteDeadline(time.Time) error { return nil }
func (c *askingConn) Close() error                     { return nil }
func (c *askingConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *askingConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// oneConn is a listener of one connection.
type oneConn struct{ c net.Conn }

func (l *oneConn) Accept() (c net.Conn, err error) {
	if l.c == nil {
		return nil, io.EOF
	}
	c, l.c = l.c, nil
	return c, nil
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
