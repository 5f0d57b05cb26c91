package lab

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// RelayServer forwards TCP connections to a target and decides when their bytes arrive.
type RelayServer struct {
	Addr string // host:port clients connect to

	target   string
	listener net.Listener

	mu       sync.Mutex
	delay    time.Duration
	thawed   chan struct{} // closed = not frozen
	closed   bool
	conns    map[net.Conn]struct{} // both sides of every connection
	accepted int
	up, down int64
	segments []Segment
	loss     loss
	running  sync.WaitGroup
}

// Segment is one piece of bytes as the relay read it from a socket: what one write of the sender usually amounts to.
type Segment struct {
	Conn  int       // number of the connection, from 1
	Up    bool      // from the client to the target
	Read  time.Time // when the relay had it
	Sent  time.Time // when the relay wrote it on; zero = not yet
	Bytes int
	Head  string // its first 64 bytes
}

const (
	segmentLimit = 1 << 16 // the log keeps the first ones; Bytes counts all
	headBytes    = 64
	inFlight     = 4096 // segments under way per direction before the relay stops reading
)

// Relay starts a relay in front of target (host:port), optionally with a delay per direction (a round trip takes two).
func Relay(t testing.TB, target string, delay ...time.Duration) *RelayServer {
	t.Helper()
	r, err := newRelay(loopback(freePort(t)), target)
	if err != nil {
		t.Fatal(err)
	}
	if len(delay) > 0 {
		r.delay = delay[0]
	}
	t.Cleanup(r.close)
	return r
}

func newRelay(listen, target string) (*RelayServer, error) {
	l, err := net.Listen("tcp4", listen)
	if err != nil {
		return nil, err
	}
	r := &RelayServer{
		Addr:     l.Addr().String(),
		target:   target,
		listener: l,
		thawed:   make(chan struct{}),
		conns:    make(map[net.Conn]struct{}),
	}
	close(r.thawed)
	r.running.Add(1)
	go r.accept()
	return r, nil
}

// SetDelay sets by how much each direction is delayed, for segments read from now on. Order is kept: a segment never
// overtakes one that was read earlier under a longer delay.
func (r *RelayServer) SetDelay(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = d
}

// Cut resets every connection at once, with what is under way; new ones are accepted.
func (r *RelayServer) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		c.Close()
	}
}

// Freeze holds all bytes, of new connections too, which are still accepted; Thaw lets them go in order.
func (r *RelayServer) Freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.frozenLocked() {
		r.thawed = make(chan struct{})
	}
}

// Thaw ends Freeze.
func (r *RelayServer) Thaw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozenLocked() {
		close(r.thawed)
	}
}

// Bytes returns how many bytes were read from clients (up) and from the target (down).
func (r *RelayServer) Bytes() (up, down int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.up, r.down
}

// Conns returns how many connections were ever accepted.
func (r *RelayServer) Conns() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted
}

// Segments returns the log so far, in the order in which segments were read; at most the first 65,536.
func (r *RelayServer) Segments() []Segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Segment(nil), r.segments...)
}

// Reset empties the log and the byte counts.
func (r *RelayServer) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segments, r.up, r.down = nil, 0, 0
}

func (r *RelayServer) accept() {
	defer r.running.Done()
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.DialTimeout("tcp", r.target, 2*time.Second)
		if err != nil {
			client.(*net.TCPConn).SetLinger(0) // to the client it looks like a reset, as close to refused as a relay gets
			client.Close()
			continue
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			client.Close()
			server.Close()
			return
		}
		r.accepted++
		conn := r.accepted
		r.conns[client], r.conns[server] = struct{}{}, struct{}{}
		r.running.Add(1)
		r.mu.Unlock()
		go r.serve(conn, client, server)
	}
}

func (r *RelayServer) serve(conn int, client, server net.Conn) {
	defer r.running.Done()
	var both sync.WaitGroup
	both.Go(func() { r.direction(conn, true, client, server) })
	both.Go(func() { r.direction(conn, false, server, client) })
	both.Wait()
	client.Close()
	server.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, client)
	delete(r.conns, server)
}

type parcel struct {
	data  []byte // nil = the sender closed its side
	due   time.Time
	entry int // index in the log; -1 = not logged
}

// direction reads from one side and writes to the other when each segment is due. Reading goes on while segments are under
// way, so a delay costs time and not throughput. I3
func (r *RelayServer) direction(conn int, up bool, from, to net.Conn) {
	queue := make(chan parcel, inFlight)
	broken := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(queue)
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 && r.loses(conn, up, buf[:n], from, to) {
				return
			}
			if n > 0 {
				select {
				case queue <- r.note(conn, up, buf[:n]):
				case <-broken:
					return
				}
			}
			if err != nil {
				if errors.Is(err, io.EOF) {
					select {
					case queue <- parcel{due: time.Now().Add(r.currentDelay()), entry: -1}:
					case <-broken:
					}
				} else {
					to.Close() // a reset passes at once, without what was under way
				}
				return
			}
		}
	})
	for p := range queue {
		r.waitUntil(p.due)
		if p.data == nil {
			if tcp, ok := to.(*net.TCPConn); ok {
				tcp.CloseWrite()
			}
			continue
		}
		if _, err := to.Write(p.data); err != nil {
			close(broken)
			from.Close()
			break
		}
		r.sent(p.entry)
	}
	reader.Wait()
}

func (r *RelayServer) note(conn int, up bool, data []byte) parcel {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if up {
		r.up += int64(len(data))
	} else {
		r.down += int64(len(data))
	}
	p := parcel{data: append([]byte(nil), data...), due: now.Add(r.delay), entry: -1}
	if len(r.segments) < segmentLimit {
		p.entry = len(r.segments)
		head := string(data[:min(len(data), headBytes)])
		r.segments = append(r.segments, Segment{Conn: conn, Up: up, Read: now, Bytes: len(data), Head: head})
	}
	return p
}

func (r *RelayServer) sent(entry int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if entry >= 0 && entry < len(r.segments) {
		r.segments[entry].Sent = time.Now()
	}
}

func (r *RelayServer) currentDelay() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.delay
}

func (r *RelayServer) waitUntil(due time.Time) {
	if d := time.Until(due); d > 0 {
		time.Sleep(d)
	}
	r.mu.Lock()
	thawed := r.thawed
	r.mu.Unlock()
	<-thawed
}

func (r *RelayServer) frozenLocked() bool {
	select {
	case <-r.thawed:
		return false
	default:
		return true
	}
}

func (r *RelayServer) close() {
	r.mu.Lock()
	r.closed = true
	r.delay = 0
	r.mu.Unlock()
	r.listener.Close()
	r.Thaw()
	r.Cut()
	r.running.Wait()
}
