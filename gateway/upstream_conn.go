package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

const (
	// engineStallBody is the body size from which a write may block because the engine does not read. Below it the
	// kernel's buffers take everything.
	engineStallBody = 16 << 10
	// engineStallCheck is how long a blocked write waits before it looks whether the engine has already answered.
	engineStallCheck = 100 * time.Millisecond
	// engineVanished is how long an engine's machine may acknowledge nothing, neither what was sent nor the probes of a
	// quiet connection: then it is gone, and the connection dead. Its kernel answers also for a busy or hung engine.
	engineVanished = 4 * time.Second
	// engineVanishedBody is the same after a large body, as the kernel counts alike the time in which a busy engine does not read.
	engineVanishedBody = 10 * time.Second
	engineProbeAfter   = 2 * time.Second // of quiet
	engineProbeEvery   = time.Second
)

// engineKey tells which connections are interchangeable.
type engineKey struct {
	addr string
	tls  bool
	name string // the name in the certificate; empty on cleartext
}

func engineKeyOf(call *upstreamCall) engineKey {
	k := engineKey{addr: call.Addr}
	if call.Scheme == "https" {
		k.tls, k.name = true, call.Host
		if k.name == "" {
			k.name = call.Addr
		}
		if host, _, err := net.SplitHostPort(k.name); err == nil {
			k.name = host
		}
	}
	return k
}

// engineConn is one connection to an engine. One goroutine uses it at a time; only kill may come from another.
type engineConn struct {
	key  engineKey
	tcp  *net.TCPConn
	tls  *tls.Conn // nil on cleartext
	sock engineSocket

	written   int64     // bytes handed to the kernel since the start
	mark      int64     // written when the present request began
	readBy    time.Time // the socket's read deadline now
	writeBy   time.Time // and its write deadline
	idleUntil time.Time
}

// dialEngine connects within ctx, TLS included.
func dialEngine(ctx context.Context, key engineKey, cfg *tls.Config) (*engineConn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: engineProbeAfter, Interval: engineProbeEvery, Count: 3}}
	nc, err := d.DialContext(ctx, "tcp", key.addr)
	if err != nil {
		return nil, err
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		nc.Close()
		return nil, fmt.Errorf("dial %s: not TCP", key.addr)
	}
	c := &engineConn{key: key, tcp: tcp}
	if err := c.sock.open(tcp); err != nil {
		tcp.Close()
		return nil, fmt.Errorf("dial %s: %w", key.addr, err)
	}
	if !key.tls {
		return c, nil
	}
	if cfg == nil {
		cfg = &tls.Config{}
	}
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = key.name
	}
	cfg.NextProtos = []string{"http/1.1"}
	c.tls = tls.Client(&engineWire{TCPConn: tcp, conn: c}, cfg)
	if err := c.tls.HandshakeContext(ctx); err != nil {
		tcp.Close()
		return nil, fmt.Errorf("tls to %s: %w", key.addr, err)
	}
	return c, nil
}

// engineWire counts what TLS writes, so that acked can be asked on TLS too.
type engineWire struct {
	*net.TCPConn
	conn *engineConn
}

func (w *engineWire) Write(b []byte) (int, error) {
	n, err := w.TCPConn.Write(b)
	w.conn.written += int64(n)
	return n, err
}

// patienceFor sets how long the other side may acknowledge nothing.
func (c *engineConn) patienceFor(call *upstreamCall) {
	if call.BodyLen > engineStallBody {
		c.sock.giveUpAfter(engineVanishedBody)
	} else {
		c.sock.giveUpAfter(engineVanished)
	}
}

// send writes the request and returns how many of its bytes the kernel took. A short count without an error means
// that the engine said something before it had everything.
func (c *engineConn) send(q *engineRequest, call *upstreamCall) (sent int64, err error) {
	c.mark = c.written
	c.patienceFor(call)
	parts := q.buffers(call)
	mayStall := call.BodyLen > engineStallBody && c.tls == nil // a timed-out write would ruin the TLS state
	if mayStall {
		c.setReadBy(call.HeadBy)
	} else {
		c.setBy(call.HeadBy)
	}
	if c.tls != nil {
		return parts.WriteTo(c.tls)
	}
	for {
		if mayStall {
			by := time.Now().Add(engineStallCheck)
			if !call.HeadBy.IsZero() && call.HeadBy.Before(by) {
				by = call.HeadBy
			}
			c.setWriteBy(by)
		}
		n, err := parts.WriteTo(c.tcp)
		sent += n
		c.written += n
		if err == nil || !engineIsDeadline(err) || c.writeBy.Equal(call.HeadBy) {
			return sent, err
		}
		if c.sock.look() != engineQuiet {
			return sent, nil
		}
	}
}

// read is one read of the connection.
func (c *engineConn) read(b []byte) (int, error) {
	if c.tls != nil {
		return c.tls.Read(b)
	}
	return c.tcp.Read(b)
}

// engineReader is whom a connection hands its bytes to.
type engineReader interface {
	// lend gives the memory for one read.
	lend() []byte
	// takeBack ends the last lend: for now there is nothing to read.
	takeBack()
	// took says what came into the memory lent last, or the error. More are read if it returns true.
	took(n int, err error) (more bool)
}

// receive reads until r wants no more. It returns early, with an error, at the deadline and when the connection is closed
// here. On cleartext, where the system allows it, no memory is lent while it waits.
func (c *engineConn) receive(r engineReader) error {
	if c.tls == nil {
		return c.sock.receive(c.tcp, r)
	}
	for {
		if n, err := c.tls.Read(r.lend()); !r.took(n, err) {
			return nil
		}
	}
}

// acked returns how many bytes of the present request the engine's kernel has acknowledged. known is false where
// the operating system does not tell.
func (c *engineConn) acked() (n int64, known bool) {
	total, known := c.sock.acked()
	return max(0, total-c.mark), known
}

// usable is false when the engine has ended an idle connection or said something unasked: bytes that lie there now
// would be taken for the answer to somebody else's request. On TLS waiting bytes may be a session ticket.
func (c *engineConn) usable() bool {
	switch c.sock.look() {
	case engineQuiet:
		return true
	case engineSpoke:
		return c.tls != nil
	default:
		return false
	}
}

// setBy sets both deadlines, which costs no more than one.
func (c *engineConn) setBy(t time.Time) {
	if !t.Equal(c.readBy) || !t.Equal(c.writeBy) {
		c.readBy, c.writeBy = t, t
		c.tcp.SetDeadline(t)
	}
}

func (c *engineConn) setReadBy(t time.Time) {
	if !t.Equal(c.readBy) {
		c.readBy = t
		c.tcp.SetReadDeadline(t) // fails only on a closed connection; the read then says so
	}
}

func (c *engineConn) setWriteBy(t time.Time) {
	if !t.Equal(c.writeBy) {
		c.writeBy = t
		c.tcp.SetWriteDeadline(t)
	}
}

// close ends the connection in order.
func (c *engineConn) close() {
	if c.tls != nil {
		c.tcp.SetWriteDeadline(time.Now().Add(time.Second)) // bounds the closing alert
		c.tls.Close()
		return
	}
	c.tcp.Close()
}

// hangUp ends the connection at once without waiting for its user, who still has to close it.
func (c *engineConn) hangUp() {
	c.tcp.CloseWrite()
	c.tcp.CloseRead()
}

// kill ends the connection at once, also under a blocked read or write of another goroutine. Without reset what the
// kernel still holds of the request goes out first.
func (c *engineConn) kill(reset bool) {
	if reset {
		c.tcp.SetLinger(0)
	}
	c.tcp.Close()
}
