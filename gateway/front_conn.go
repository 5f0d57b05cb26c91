package gateway

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// frontConn is one connection of the public port. It does for net/http what that does at a price for each request: deadlines
// reach the socket only when something waits for them, and an answer's fields are written as they are, without the map,
// its copy and its order.
type frontConn struct {
	net.Conn
	open   *atomic.Int64
	closed atomic.Bool

	head *[]byte // see putHead; of the goroutine that answers, like body
	body []byte  // a whole answer, which goes out with the next head; nil: net/http frames it

	mu      sync.Mutex
	readBy  deadline
	writeBy deadline
}

// deadline is one of a socket's two.
type deadline struct {
	want time.Time // as asked for last
	set  time.Time // as the socket has it
	used int       // reads or writes under way: a change must reach them at once
}

type frontConnKey struct{}

// withConn is a server's ConnContext: a request's context knows its connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, frontConnKey{}, c)
}

// connOf is the connection of a request that came through a Listener.
func connOf(r *http.Request) *frontConn { return r.Context().Value(frontConnKey{}).(*frontConn) }

func (c *frontConn) Read(p []byte) (int, error) {
	c.begin(&c.readBy, c.Conn.SetReadDeadline)
	defer c.end(&c.readBy)
	return c.Conn.Read(p)
}

func (c *frontConn) Write(p []byte) (int, error) {
	c.begin(&c.writeBy, c.Conn.SetWriteDeadline)
	defer c.end(&c.writeBy)
	if c.head != nil {
		return c.writeHead(p)
	}
	e, foreign := refusedByHTTP(p)
	if !foreign {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(appendRefusal(nil, e)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// begin gives the socket the deadline that was asked for.
func (c *frontConn) begin(d *deadline, set func(time.Time) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.used++
	d.apply(set)
}

func (c *frontConn) end(d *deadline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.used--
}

func (d *deadline) apply(set func(time.Time) error) {
	if d.want != d.set {
		d.set = d.want
		_ = set(d.want) // fails only on a closed connection; the read or write then says so
	}
}

// SetReadDeadline takes hold at once where something reads, else with the next read: net/http sets eight for each request
// and reads under three.
func (c *frontConn) SetReadDeadline(t time.Time) error {
	c.ask(&c.readBy, t, c.Conn.SetReadDeadline)
	return nil
}

// SetWriteDeadline is SetReadDeadline for writes.
func (c *frontConn) SetWriteDeadline(t time.Time) error {
	c.ask(&c.writeBy, t, c.Conn.SetWriteDeadline)
	return nil
}

// SetDeadline is both.
func (c *frontConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *frontConn) ask(d *deadline, t time.Time, set func(time.Time) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.want = t
	if d.used > 0 {
		d.apply(set)
	}
}

// writeWithin gives writes from now on at most that long, and half of it at least: what the socket has from an answer before
// is left if it is good enough.
func (c *frontConn) writeWithin(most time.Duration) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if left := c.writeBy.set.Sub(now); left >= most/2 && left <= most {
		c.writeBy.want = c.writeBy.set
	} else {
		c.writeBy.want = now.Add(most)
	}
}

func (c *frontConn) Close() error {
	if !c.closed.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

// CloseWrite lets net/http end an answer before it closes the connection.
func (c *frontConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// answerHeads holds buffers for the head of an answer and what of its body goes out with it.
var answerHeads = sync.Pool{New: func() any { return new([]byte) }}

// putHead has the next write, which begins with a status line, carry these fields behind it. net/http still writes what is
// about the connection: length or chunks, date, whether it goes on.
func (c *frontConn) putHead(lists ...[]headerField) {
	head := answerHeads.Get().(*[]byte)
	b := (*head)[:0]
	for _, fields := range lists {
		for _, f := range fields {
			b = append(b, f.Name...)
			b = append(b, ": "...)
			b = appendValue(b, f.Value)
			b = append(b, "\r\n"...)
		}
	}
	*head = b
	c.head = head
}

// appendValue writes a field's value so that it can end neither its line nor the head.
func appendValue(b []byte, v string) []byte {
	from := len(b)
	b = append(b, strings.Trim(v, " \t\r\n")...)
	for i, c := range b[from:] {
		if c == '\r' || c == '\n' {
			b[from+i] = ' '
		}
	}
	return b
}

// noBody is what net/http says of an answer without a body.
var noBody = []byte("Content-Length: 0\r\n")

// writeHead sends p, the beginning of an answer, with the fields of putHead in it, and the body if the connection has it.
func (c *frontConn) writeHead(p []byte) (int, error) {
	head, body := c.head, c.body
	c.head, c.body = nil, nil
	defer answerHeads.Put(head)
	line := bytes.IndexByte(p, '\n') + 1
	b := slices.Insert(*head, 0, p[:line]...)
	if body == nil {
		b = append(b, p[line:]...)
	} else {
		before, after, empty := bytes.Cut(p[line:], noBody)
		if !empty {
			return 0, errNotEmpty
		}
		b = append(append(b, before...), "Content-Length: "...)
		b = append(strconv.AppendInt(b, int64(len(body)), 10), "\r\n"...)
		b = append(append(b, after...), body...)
	}
	*head = b
	if _, err := c.Conn.Write(b); err != nil {
		return 0, err
	}
	return len(p), nil
}

// errNotEmpty: net/http made more of an empty answer than is known here. Nothing goes out.
var errNotEmpty = errors.New("an answer that should be empty is not")
