package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/gateway/protocol"
)

// Limits of the public port. A head that does not come in headTimeout, or a body that stands still for bodyTimeout, is
// given up; a client that takes nothing for writeTimeout counts as gone.
const (
	headTimeout  = 10 * time.Second
	idleTimeout  = 120 * time.Second
	bodyTimeout  = 30 * time.Second
	writeTimeout = 60 * time.Second
	maxHeadBytes = 64 << 10
)

// Server returns the HTTP server of the public port; the caller listens and shuts it down.
func (g *Gateway) Server() *http.Server {
	return &http.Server{
		Handler:           g.Handler(),
		ReadHeaderTimeout: headTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeadBytes,
	}
}

// Handler serves the public routes. It matches the path as it was sent: nothing is cleaned, decoded or redirected.
func (g *Gateway) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &httpExchange{w: w, r: r, control: http.NewResponseController(w)}
		defer func() {
			if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
				g.deps.Log.Error().Interface("panic", cause).Str("path", x.Path()).Stack().Msg("request failed")
				if !x.begun {
					refuse(x, protocol.UpstreamError(), nil)
					return
				}
				panic(http.ErrAbortHandler) // the client must not take a cut answer for a whole one
			}
		}()
		g.serve(x)
	})
}

// httpExchange is net/http's side of an exchange.
type httpExchange struct {
	w          http.ResponseWriter
	r          *http.Request
	control    *http.ResponseController
	begun      bool
	sized      bool // the reply has a Content-Length: no flush is needed to end it
	writeUntil time.Time
	readUntil  time.Time
}

func (x *httpExchange) Context() context.Context    { return x.r.Context() }
func (x *httpExchange) Method() string              { return x.r.Method }
func (x *httpExchange) Header(name string) []string { return x.r.Header[name] }
func (x *httpExchange) BodyLength() int64           { return x.r.ContentLength }

// Path is the target as sent, up to its query. An absolute target or an authority is no path and matches no route.
func (x *httpExchange) Path() string {
	path, _, _ := strings.Cut(x.r.RequestURI, "?")
	return path
}

func (x *httpExchange) RemoteIP() string {
	host, _, err := net.SplitHostPort(x.r.RemoteAddr)
	if err != nil {
		return x.r.RemoteAddr
	}
	return host
}

// ReadBody gives the client bodyTimeout for each read. The deadline is lifted with the end of the body: what net/http
// reads beside the handler, to see the client leave, must not time out.
func (x *httpExchange) ReadBody(p []byte) (int, error) {
	if now := time.Now(); x.readUntil.Sub(now) < bodyTimeout/2 {
		x.readUntil = now.Add(bodyTimeout)
		_ = x.control.SetReadDeadline(x.readUntil)
	}
	n, err := x.r.Body.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		_ = x.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (x *httpExchange) Begin(status int, fields []headerField, length int64) {
	h := x.w.Header()
	for _, f := range fields {
		h[f.Name] = append(h[f.Name], f.Value)
	}
	if length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
		x.sized = true
	}
	x.begun = true
	x.w.WriteHeader(status)
}

func (x *httpExchange) Write(p []byte) error {
	if now := time.Now(); x.writeUntil.Sub(now) < writeTimeout/2 {
		x.writeUntil = now.Add(writeTimeout)
		_ = x.control.SetWriteDeadline(x.writeUntil)
	}
	if _, err := x.w.Write(p); err != nil {
		return err
	}
	if x.sized {
		return nil // net/http sends it when the handler returns, in one write with the head
	}
	return x.control.Flush()
}
