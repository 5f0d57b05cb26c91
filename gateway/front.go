package gateway

import (
	"context"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/gateway/protocol"
)

// Limits of the public port. A head that does not come in headTimeout ends its connection without an answer. A body
// that stands still for the body's timeout, or is slower than minBodyRate after it, is given up with a 408; a client
// that takes nothing for writeTimeout counts as gone.
const (
	headTimeout        = 10 * time.Second
	idleTimeout        = 120 * time.Second
	defaultBodyTimeout = 30 * time.Second
	writeTimeout       = 60 * time.Second
	minBodyRate        = 16 << 10 // bytes per second
	maxHeadBytes       = 64 << 10
	maxFields          = 256
	// drainTimeout is how long an answer waits for the rest of a body that nobody reads, so that the connection can be
	// used again; a client that sends no more gets its answer then, and the connection ends. More than 256 KiB are not
	// waited for.
	drainTimeout = time.Second
)

// Server returns the HTTP server of the public port. The caller serves a Listener with it and shuts it down.
func (g *Gateway) Server() *http.Server {
	return &http.Server{
		Handler:                      http.HandlerFunc(g.answer),
		ConnContext:                  withConn,
		BaseContext:                  func(net.Listener) context.Context { return g.cut },
		ReadHeaderTimeout:            headTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeadBytes,
		DisableGeneralOptionsHandler: true, // OPTIONS * is no route
		ErrorLog:                     log.New(g.deps.Log, "", 0),
	}
}

// answer serves the public routes. It matches the path as it was sent: nothing is cleaned, decoded or redirected.
func (g *Gateway) answer(w http.ResponseWriter, r *http.Request) {
	x := newExchange(w, r, g.cfg.BodyTimeout)
	x.leaving = &g.leaving
	x.always = g.cors.fields(x)
	defer func() {
		cause := recover()
		if cause != nil && cause != http.ErrAbortHandler {
			g.deps.Log.Error().Interface("panic", cause).Str("path", x.Path()).Stack().Msg("request failed")
			if !x.begun {
				refuse(x, protocol.UpstreamError(), nil)
				x.end()
				return
			}
		}
		if cause != nil || x.cut || !x.begun {
			panic(http.ErrAbortHandler) // the client must not take a cut answer, or none, for a whole one
		}
		x.end()
	}()
	switch {
	case overloaded(r.Header):
		refuse(x, protocol.TooManyFields(maxFields), nil)
	case !g.cors.preflight(x):
		g.serve(x)
	}
}

// httpExchange is net/http's side of an exchange.
type httpExchange struct {
	w       http.ResponseWriter
	r       *http.Request
	conn    *frontConn
	path    string
	query   string
	always  []headerField // of every answer
	leaving *atomic.Bool  // the answer ends the connection; nil: it does not

	bodyTimeout time.Duration
	bodyBegan   time.Time
	bodyRead    int64
	bodyOver    bool // it came to its end, or will never
	readUntil   time.Time

	begun  bool
	cut    bool  // what was sent is not the whole answer
	sized  bool  // the reply has a Content-Length: no flush is needed to end it
	status int   // of a small reply that net/http has not been told of yet; 0: it has
	length int64 // of that reply
}

func newExchange(w http.ResponseWriter, r *http.Request, bodyTimeout time.Duration) *httpExchange {
	path, query, _ := strings.Cut(r.RequestURI, "?")
	return &httpExchange{w: w, r: r, conn: connOf(r), path: path, query: query, bodyTimeout: bodyTimeout, bodyOver: r.ContentLength == 0}
}

func (x *httpExchange) Context() context.Context    { return x.r.Context() }
func (x *httpExchange) Method() string              { return x.r.Method }
func (x *httpExchange) Header(name string) []string { return x.r.Header[name] }
func (x *httpExchange) BodyLength() int64           { return x.r.ContentLength }

// Path is the target as sent, up to its query. An absolute target or an authority is no path and matches no route.
func (x *httpExchange) Path() string { return x.path }

func (x *httpExchange) Query() string { return x.query }

func (x *httpExchange) RemoteIP() string {
	host, _, err := net.SplitHostPort(x.r.RemoteAddr)
	if err != nil {
		return x.r.RemoteAddr
	}
	return host
}

// ReadBody gives the client the body's timeout for each read, and minBodyRate in the long run. At the end of the body
// net/http lifts the deadline: it reads on beside the handler, to see the client leave.
func (x *httpExchange) ReadBody(p []byte) (int, error) {
	x.extendRead(time.Now())
	n, err := x.r.Body.Read(p)
	x.bodyRead += int64(n)
	x.bodyOver = err != nil // after a timeout net/http must not wait for the rest either: the deadline stays
	return n, err
}

func (x *httpExchange) extendRead(now time.Time) {
	if x.bodyBegan.IsZero() {
		x.bodyBegan = now
	}
	if x.readUntil.Sub(now) >= x.bodyTimeout/2 {
		return
	}
	until := now.Add(x.bodyTimeout)
	slowest := x.bodyBegan.Add(x.bodyTimeout + time.Duration(x.bodyRead)*time.Second/minBodyRate)
	if slowest.Before(until) {
		until = slowest
	}
	if until.After(x.readUntil) {
		x.readUntil = until
		_ = x.conn.SetReadDeadline(until)
	}
}

func (x *httpExchange) Begin(status int, fields []headerField, length int64) {
	if !x.bodyOver { // net/http reads what is left of the body before it sends the head
		_ = x.conn.SetReadDeadline(time.Now().Add(drainTimeout))
	}
	x.conn.putHead(fields, x.always)
	x.begun, x.sized = true, length >= 0
	x.status, x.length = status, length
	leaving := x.leaving != nil && x.leaving.Load()
	if leaving || length < 0 || length > maxSmall || x.r.Method == "HEAD" || status == 204 || status == 304 {
		x.declare(leaving)
	}
}

// maxSmall is the size up to which net/http holds an answer until its handler is done.
const maxSmall = 2 << 10

// declare tells net/http of the reply, which then frames it. One that is small and there in one piece needs no such thing:
// it goes into net/http's empty answer of the same status on its way to the socket, which spares two copies of it and the
// map of fields.
func (x *httpExchange) declare(leaving bool) {
	h := x.w.Header()
	h["Content-Type"] = nil // it is among the fields: net/http must not look for one in the body
	if leaving {
		h["Connection"] = []string{"close"}
	}
	if x.sized {
		h["Content-Length"] = []string{strconv.FormatInt(x.length, 10)}
	} else {
		h["Transfer-Encoding"] = []string{"chunked"} // or net/http would tell the length of an answer that is there in one piece
	}
	x.w.WriteHeader(x.status)
	x.status = 0
}

// end leaves the answer to net/http.
func (x *httpExchange) end() {
	switch {
	case x.status == 0:
	case x.conn.body != nil:
		x.w.WriteHeader(x.status)
	default: // nothing was written
		x.declare(false)
	}
}

func (x *httpExchange) Cut() { x.cut = true }

func (x *httpExchange) Write(p []byte) error {
	if err := x.WriteLast(p); err != nil || x.sized {
		return err
	}
	return http.NewResponseController(x.w).Flush()
}

// WriteLast leaves it to net/http to send p when the handler returns, in one write with the head or the last chunk.
func (x *httpExchange) WriteLast(p []byte) error {
	x.conn.writeWithin(writeTimeout)
	if x.status != 0 && int64(len(p)) == x.length && x.conn.body == nil {
		x.conn.body = p
		return nil
	}
	if x.status != 0 {
		x.declare(false)
	}
	_, err := x.w.Write(p)
	return err
}
