package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"time"
)

// Defaults of upstreamConfig.
const (
	// upstreamIdleTimeout is how long a connection may wait for its next use. uvicorn closes its end after 5 s;
	// staying below that keeps the race between its close and our reuse rare.
	upstreamIdleTimeout    = 4 * time.Second
	upstreamConnectTimeout = 2 * time.Second
	upstreamMaxIdle        = 256
	upstreamMaxHeadBytes   = 64 << 10
)

// upstreamStaleWindow bounds the safe repeat after a reset: a close that raced with our reuse shows within a round
// trip of the write; a reset that comes later may be an engine that died over the request.
const upstreamStaleWindow = time.Second

// upstreamConfig holds the limits of an upstream. The zero value takes every default.
type upstreamConfig struct {
	ConnectTimeout time.Duration // TCP and TLS handshake together; 0 = 2 s
	IdleTimeout    time.Duration // 0 = 4 s; an engine's own `Keep-Alive: timeout=` can only shorten it
	MaxIdle        int           // idle connections kept per address; 0 = 256; the oldest gives way
	MaxHeadBytes   int           // one response head; 0 = 64 KiB
	TLS            *tls.Config   // for https; cloned; nil = the system's roots. ServerName defaults to the call's Host
}

// headerField is one header line of a request.
type headerField struct{ Name, Value string }

// upstreamCall is one request to one engine.
type upstreamCall struct {
	Addr   string // what is dialled, host:port
	Scheme string // "http" or "https"; empty = http
	Host   string // Host header; for https also the name the certificate must carry; empty = Addr
	Method string
	Path   string // origin form, with the query, already escaped
	// Header holds the end-to-end fields. Host, the framing and the hop-by-hop fields are the client's own: if given
	// here they are left out, and so is Accept-Encoding.
	Header []headerField
	// Body is sent as it lies, in one writev together with the head (cleartext). It is only read, may be sent twice,
	// and must not change until Do returns.
	Body    [][]byte
	BodyLen int64 // must be the sum of Body
	// HeadBy is the latest instant for the whole response head; it covers writing as well, and it stays the last instant for
	// reads of the body until SetReadBy names another. Zero = no such limit.
	HeadBy time.Time
}

// upstream is the gateway's HTTP/1.1 client: one connection per running request, the idle ones kept per address and
// used last in, first out. There is no limit on open connections: slots are the limit. It is safe for concurrent use.
type upstream struct {
	cfg  upstreamConfig
	idle *engineIdle
}

// newUpstream starts nothing: goroutines and timers exist only while something is idle or running.
func newUpstream(cfg upstreamConfig) *upstream {
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = upstreamConnectTimeout
	}
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = upstreamIdleTimeout
	}
	if cfg.MaxIdle <= 0 {
		cfg.MaxIdle = upstreamMaxIdle
	}
	if cfg.MaxHeadBytes <= 0 {
		cfg.MaxHeadBytes = upstreamMaxHeadBytes
	}
	return &upstream{cfg: cfg, idle: newEngineIdle(cfg.IdleTimeout, cfg.MaxIdle)}
}

// Close closes the idle connections and keeps none from then on. Calls that run go on to their end.
func (u *upstream) Close() { u.idle.close() }

// Do sends the call and returns when the response head is there. Exactly one of the results is non-nil; a reply must
// be closed. When ctx ends, at any point until the reply is closed, the connection is closed at once.
//
// A connection from the pool that the engine had closed before it read the request is replaced by a new one, and the
// request sent once more (see engineStale); nothing else is ever repeated here.
func (u *upstream) Do(ctx context.Context, call upstreamCall) (*upstreamReply, *upstreamFault) {
	request, err := newEngineRequest(&call)
	if err != nil {
		return nil, &upstreamFault{Kind: upstreamFaultUnsendable, Err: err}
	}
	defer request.free()

	r := &upstreamReply{owner: u}
	r.stop = context.AfterFunc(ctx, r.Abort)
	fault := u.attempt(ctx, r, &call, request, u.idle.take(engineKeyOf(&call)))
	if fault != nil && fault.stale {
		r.Repeated = true
		fault = u.attempt(ctx, r, &call, request, nil)
	}
	if fault != nil {
		r.drop()
		return nil, fault
	}
	return r, nil
}

// attempt sends the request on conn, or on a new connection if that is nil, and reads the response head into r.
func (u *upstream) attempt(ctx context.Context, r *upstreamReply, call *upstreamCall, request *engineRequest, conn *engineConn) *upstreamFault {
	r.Reused = conn != nil
	if conn == nil {
		var fault *upstreamFault
		if conn, fault = u.dial(ctx, call); fault != nil {
			return fault
		}
	}
	if !r.attach(conn) {
		return &upstreamFault{Kind: upstreamFaultOfContext(ctx), Err: context.Cause(ctx)}
	}
	began := time.Now()
	sent, sendErr := conn.send(request, call)
	r.noteSent(sendErr == nil && sent == request.size)

	// An engine may answer before it has read everything (413, 429) and close: what it said counts for more than that
	// the rest could not be written.
	received, err := r.readHead(call.Method, u.cfg.MaxHeadBytes)
	if err == nil {
		r.readBy = call.HeadBy
		return nil
	}
	if sendErr != nil && !received && !errors.Is(err, errUpstreamBad) {
		err = sendErr
	}
	fault := &upstreamFault{Kind: upstreamFaultDied, Received: received, Err: err}
	acked, known := conn.acked()
	fault.Reached = received || sent > 0 && (!known || acked > 0)
	switch {
	case ctx.Err() != nil:
		fault.Kind = upstreamFaultOfContext(ctx)
	case engineIsDeadline(err):
		fault.Kind = upstreamFaultTimeout
	case errors.Is(err, errUpstreamBad):
		fault.Kind = upstreamFaultBad
	case r.Reused && !received:
		fault.stale = engineStale(err, fault.Reached, known, time.Since(began))
	}
	r.detach()
	return fault
}

// engineStale says whether a reused connection that ended without one response byte may be replaced and the request sent
// again, without any chance of two generations:
//
//	nothing of the request was acknowledged: the peer's kernel never took it in
//	reset soon after the write: a kernel resets when the application closes with unread bytes, so no whole request was read
//	an orderly end after it took the request: the engine may have read and run it: not safe
//
// Where the kernel does not tell what was acknowledged, the first two cannot be told from the third; then a dead
// connection within the window is taken for a stale one, as every HTTP client does.
func engineStale(err error, reached, known bool, after time.Duration) bool {
	if !engineIsGone(err) {
		return false
	}
	if !reached {
		return true
	}
	return after < upstreamStaleWindow && (engineIsReset(err) || !known)
}

// dial opens a connection within the connect timeout. Nothing was sent if it fails.
func (u *upstream) dial(ctx context.Context, call *upstreamCall) (*engineConn, *upstreamFault) {
	by := time.Now().Add(u.cfg.ConnectTimeout)
	if !call.HeadBy.IsZero() && call.HeadBy.Before(by) {
		by = call.HeadBy
	}
	limit, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	conn, err := dialEngine(limit, engineKeyOf(call), u.cfg.TLS)
	if err == nil {
		return conn, nil
	}
	fault := &upstreamFault{Kind: upstreamFaultConnect, Err: err}
	switch {
	case ctx.Err() != nil:
		fault.Kind = upstreamFaultOfContext(ctx)
	case shortOfSockets(err):
		fault.Kind = upstreamFaultShort
	case limit.Err() != nil || engineIsTimeout(err):
		fault.Kind = upstreamFaultConnectTimeout
	}
	return nil, fault
}
