package scripted

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Request is one request as it came.
type Request struct {
	Method, Target string
	Head           string // status line and header lines, with their line ends, without the empty line
	Body           []byte // without its chunked framing
	Told           int64  // Content-Length; -1 = chunked or none
	Conn           int    // number of the connection, from 1
	Arrived        time.Time

	written atomic.Int64
	gone    chan struct{}
	goneAt  time.Time // read only once gone is closed
}

// Header returns the values of a field; case does not matter.
func (q *Request) Header(name string) (values []string) {
	for line := range strings.SplitSeq(q.Head, "\r\n") {
		if n, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(n, name) {
			values = append(values, strings.TrimSpace(v))
		}
	}
	return values
}

// ID is X-Request-Id, Attempt the number at its end: the gateway's count of attempts, 0 without one.
func (q *Request) ID() string { return strings.Join(q.Header("X-Request-Id"), ",") }

// Attempt is which attempt of the client's request this is, from 1.
func (q *Request) Attempt() int {
	id := q.ID()
	n, _ := strconv.Atoi(id[strings.LastIndexByte(id, '-')+1:])
	return n
}

// Gone is closed when the peer left, or ended its half of the connection, while the request's script was being played.
func (q *Request) Gone() <-chan struct{} { return q.gone }

// GoneAt is when that was; zero if it did not happen.
func (q *Request) GoneAt() time.Time {
	select {
	case <-q.gone:
		return q.goneAt
	default:
		return time.Time{}
	}
}

// Written is how many bytes of the answer the kernel has taken so far.
func (q *Request) Written() int64 { return q.written.Load() }

// conn is one connection: read takes in everything at all times, serve plays one request after the other.
type conn struct {
	server *Server
	tcp    *net.TCPConn
	number int

	gone chan struct{} // closed when nothing more can be read
	late atomic.Bool   // the next request is not to be read

	mu      sync.Mutex
	more    sync.Cond
	log     []byte
	parsed  int // bytes of log that were handed to serve
	ended   bool
	playing *Request // nil between scripts, and once we have ended the connection ourselves
}

func newConn(s *Server, tcp *net.TCPConn) *conn {
	c := &conn{server: s, tcp: tcp, gone: make(chan struct{})}
	c.more.L = &c.mu
	s.mu.Lock()
	c.number = len(s.conns) + 1
	idle := s.idleClose
	s.mu.Unlock()
	c.wait(idle)
	return c
}

// wait starts the idle clock; a byte that is read stops it.
func (c *conn) wait(idle time.Duration) {
	if idle > 0 {
		c.tcp.SetReadDeadline(time.Now().Add(idle))
	}
}

func (c *conn) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.tcp.Read(buf)
		if c.late.Load() {
			c.closeUnread()
			n, err = 0, io.EOF
		}
		if n > 0 {
			c.tcp.SetReadDeadline(time.Time{})
		}
		c.mu.Lock()
		c.log = append(c.log, buf[:n]...)
		if err != nil {
			c.ended = true
			close(c.gone)
			c.leftLocked()
		}
		c.more.Broadcast()
		c.mu.Unlock()
		if err == nil {
			continue
		}
		if n, ok := err.(net.Error); ok && n.Timeout() {
			c.tcp.Close() // idle for too long
		}
		return
	}
}

// closeUnread waits for the next request and closes when its first byte is there. What is behind it stays unread.
func (c *conn) closeUnread() {
	c.tcp.SetReadDeadline(time.Time{})
	_, _ = c.tcp.Read(make([]byte, 1))
	c.tcp.Close()
}

func (c *conn) received() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.log)
}

// Read gives serve's parser what read has taken in.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.parsed == len(c.log) && !c.ended {
		c.more.Wait()
	}
	if c.parsed == len(c.log) {
		return 0, io.EOF
	}
	n := copy(p, c.log[c.parsed:])
	c.parsed += n
	return n, nil
}

func (c *conn) serve() {
	defer c.tcp.Close()
	in := bufio.NewReader(c)
	for {
		q, err := readRequest(in)
		if err != nil {
			return
		}
		q.Conn, q.Arrived, q.gone = c.number, time.Now(), make(chan struct{})
		script := c.server.script(q)
		if script == nil || !c.play(q, script) {
			return
		}
		c.server.mu.Lock()
		idle, late := c.server.idleClose, c.server.lateClose
		c.server.mu.Unlock()
		if c.wait(idle); late {
			c.late.Store(true)
			c.tcp.SetReadDeadline(time.Now()) // wakes read
		}
	}
}

// play reports whether the connection is good for another request.
func (c *conn) play(q *Request, script Script) bool {
	c.nowPlaying(q)
	defer c.nowPlaying(nil)
	for _, step := range script {
		if !step(c, q) {
			return false
		}
	}
	return true
}

// leftLocked files that the peer of the running script has left.
func (c *conn) leftLocked() {
	if c.playing != nil {
		c.playing.goneAt = time.Now()
		close(c.playing.gone)
		c.playing = nil
	}
}

// left is for a write that failed: the kernel tells of a reset once, to whoever asks first.
func (c *conn) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leftLocked()
}

// nowPlaying says whose peer it is that leaves from now on.
func (c *conn) nowPlaying(q *Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.playing = q
	if c.ended { // it left before the first step
		c.leftLocked()
	}
}

// hangUp ends the connection from our side.
func (c *conn) hangUp(reset bool) {
	c.nowPlaying(nil)
	if reset {
		c.tcp.SetLinger(0)
	}
	c.tcp.Close()
}

// readRequest reads one request, its body in either framing.
func readRequest(in *bufio.Reader) (*Request, error) {
	q := &Request{Told: -1}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if line == "\r\n" {
			break
		}
		q.Head += line
	}
	q.Method, q.Target, _ = strings.Cut(q.Head, " ")
	q.Target, _, _ = strings.Cut(q.Target, " ")
	if v := q.Header("Content-Length"); len(v) == 1 {
		n, err := strconv.ParseInt(v[0], 10, 64)
		if err != nil {
			return nil, err
		}
		q.Told, q.Body = n, make([]byte, n)
		_, err = io.ReadFull(in, q.Body)
		return q, err
	}
	if len(q.Header("Transfer-Encoding")) > 0 {
		return q, q.readChunks(in)
	}
	return q, nil
}

func (q *Request) readChunks(in *bufio.Reader) error {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(line), 16, 64)
		if err != nil {
			return err
		}
		chunk := make([]byte, n+2)
		if _, err := io.ReadFull(in, chunk); err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		q.Body = append(q.Body, chunk[:n]...)
	}
}
