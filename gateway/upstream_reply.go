package gateway

import (
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

const (
	engineSmall = 4 << 10  // holds the head and, behind it, the pieces of a token stream
	engineBig   = 32 << 10 // for a body that comes in bulk
)

var (
	engineSmallBuffers = sync.Pool{New: func() any { return new([engineSmall]byte) }}
	engineBigBuffers   = sync.Pool{New: func() any { return new([engineBig]byte) }}
)

// upstreamReply is an engine's answer. One goroutine reads and closes it; only Abort may be called from others.
// Header slices are good until Close, body slices until the next Next, Read or Close.
type upstreamReply struct {
	Status   int
	Reused   bool // the connection came from the pool
	Repeated bool // a reused connection turned out stale and the request was sent again

	owner   *upstream
	stop    func() bool
	head    engineHead
	body    engineBody
	small   *[engineSmall]byte // nil while nothing is in it
	big     *[engineBig]byte   // nil unless the body comes in bulk
	lent    []byte             // the part of small or big that the last read went to
	headBuf []byte             // the head; at the front of small, or an allocation
	headIn  int                // bytes of small that it takes
	raw     []byte             // received, not decoded
	out     []byte             // decoded, not yet given to Read
	full    bool               // the last read filled its buffer
	short   bool               // the last read would have fitted in a small buffer twice
	err     error              // how the body ended
	closed  bool

	silence time.Duration // 0 = none
	wake    time.Duration // 0 = none
	readBy  time.Time     // zero = none
	since   time.Time     // from when silence counts: the start of the wait that goes on
	waiting bool          // the last read was woken: the wait goes on
	woken   time.Time     // when Each told of the wait last, or since

	takeErr error // of take

	mu       sync.Mutex
	take     func([]byte) error // Each's; nil outside it
	conn     *engineConn
	sent     bool        // the whole request is with the kernel
	aborted  atomic.Bool // set under mu; asked without it within a read, for which kill waits
	released bool
}

// Get returns the first value of a header, nil if there is none. Case does not matter.
func (r *upstreamReply) Get(name string) []byte {
	for i := range r.head.fields {
		if f := &r.head.fields[i]; engineEqualFold(f.name.of(r.headBuf), name) {
			return f.value.of(r.headBuf)
		}
	}
	return nil
}

// Fields gives every header line in order, names as they were sent, hop-by-hop ones included.
func (r *upstreamReply) Fields() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for i := range r.head.fields {
			f := &r.head.fields[i]
			if !yield(f.name.of(r.headBuf), f.value.of(r.headBuf)) {
				return
			}
		}
	}
}

// ContentType returns the first Content-Type, nil if there is none.
func (r *upstreamReply) ContentType() []byte {
	if r.head.contentType == (engineSpan{}) {
		return nil
	}
	return r.head.contentType.of(r.headBuf)
}

// ContentLength is the length the engine told, -1 if none. The body of a HEAD, 204 or 304 is empty whatever it says.
func (r *upstreamReply) ContentLength() int64 { return r.head.contentLength }

// SetSilence starts the silence clock: a read that gets no byte for d fails with errUpstreamSilent, up to d/8 late so
// that the socket's timer is not moved for every token. 0 stops it. It holds from the next read on.
func (r *upstreamReply) SetSilence(d time.Duration) { r.silence = d }

// SetWake interrupts a wait for bytes every d with errUpstreamQuiet, which does not stay: the next read waits on, and the
// silence clock and the last instant count through. A wake is up to d/8 late. 0 stops it; it holds from the next read on.
func (r *upstreamReply) SetWake(d time.Duration) { r.wake = d }

// SetReadBy sets a last instant for reads, beside the silence clock. Zero = none. It holds from the next read on.
func (r *upstreamReply) SetReadBy(t time.Time) { r.readBy = t }

// Next returns the next bytes of the body, never none without an error: what one read of the connection brought, the
// framing taken out. io.EOF is the clean end; see errUpstreamCut, errUpstreamReset, errUpstreamBad, errUpstreamSilent,
// errUpstreamAborted. What came before a failure is returned before it. Errors stay.
func (r *upstreamReply) Next() ([]byte, error) {
	if len(r.out) > 0 {
		data := r.out
		r.out = nil
		return data, nil
	}
	for r.err == nil {
		if len(r.raw) == 0 {
			if r.fill(); r.waiting {
				return nil, errUpstreamQuiet
			}
			continue
		}
		data, used, err := r.body.decode(r.raw)
		r.raw = r.raw[used:]
		r.err = err
		r.noteEnd()
		if len(data) > 0 {
			return data, nil
		}
	}
	return nil, r.err
}

// Read is Next by copy.
func (r *upstreamReply) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	data, err := r.Next()
	n := copy(p, data)
	r.out = data[n:]
	return n, err
}

// Ended is true when Next has given everything up to the clean end. It may become true together with the last bytes.
func (r *upstreamReply) Ended() bool { return r.body.done && r.err != nil && len(r.out) == 0 }

// Abort closes the connection at once, also under a blocked Do, Next or Read, which then fail. It may be called at
// any time, from anywhere, also after Close, when it does nothing.
func (r *upstreamReply) Abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.aborted.Load() || r.released {
		return
	}
	r.aborted.Store(true)
	switch {
	case r.take != nil:
		r.conn.hangUp()
	case r.conn != nil:
		r.conn.kill(!r.sent)
	}
}

// Close gives back buffers and connection. The connection is kept for another request only if reuse is true, the
// body was read to its clean end, both sides agreed, and nothing unasked for lies behind the answer. A second Close does nothing.
func (r *upstreamReply) Close(reuse bool) {
	if r.closed {
		return
	}
	r.closed = true
	conn, good := r.release()
	reuse = reuse && good && r.sent && r.Ended() && r.body.framing != engineUntilClose && len(r.raw) == 0 && r.head.persistent()
	switch {
	case reuse:
		r.owner.idle.put(conn, r.head.keepFor)
	case good:
		conn.close()
	default: // it may only have been hung up
		conn.tcp.Close()
	}
	r.freeBuffers()
}

// drop is Close for a call that never became a reply; its connections are closed already.
func (r *upstreamReply) drop() {
	r.release()
	r.freeBuffers()
}

// release ends the reach of Abort. good is false if it was aborted before.
func (r *upstreamReply) release() (conn *engineConn, good bool) {
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released = true
	return r.conn, !r.aborted.Load()
}

// attach puts the call on a connection; false, and the connection closed, if it was aborted meanwhile.
func (r *upstreamReply) attach(c *engineConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.aborted.Load() {
		c.kill(false)
		return false
	}
	r.conn = c
	return true
}

// detach closes the connection of a failed attempt; the next may attach another.
func (r *upstreamReply) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.aborted.Load() {
		r.conn.kill(!r.sent)
	}
	r.conn, r.sent = nil, false
}

func (r *upstreamReply) noteSent(all bool) {
	r.mu.Lock()
	r.sent = all
	r.mu.Unlock()
}

// readHead reads up to the final head and prepares the body. received says whether any byte came.
func (r *upstreamReply) readHead(method string, most int) (received bool, err error) {
	if r.small == nil {
		r.small = engineSmallBuffers.Get().(*[engineSmall]byte)
	}
	buf, w := r.small[:min(engineSmall, most)], 0
	r.head.reset()
	for interim := 0; ; {
		n, readErr := r.conn.read(buf[w:])
		w += n
		received = received || n > 0
		done, err := r.head.parse(buf[:w])
		for done && err == nil && r.head.status < 200 { // several heads may have come together
			if interim++; interim > engineMaxInterim || r.head.status == 101 {
				return received, fmt.Errorf("%w: interim status %d", errUpstreamBad, r.head.status)
			}
			w = copy(buf, buf[r.head.next:w])
			r.head.reset()
			done, err = r.head.parse(buf[:w])
		}
		switch {
		case err != nil:
			return received, err
		case done:
			r.begin(method, buf, w)
			return received, nil
		case n == 0 && readErr != nil:
			return received, readErr
		case w == len(buf) && w >= most:
			return received, fmt.Errorf("%w: head larger than %d bytes", errUpstreamBad, most)
		case w == len(buf):
			buf = append(make([]byte, 0, min(2*w, most)), buf...)
			buf = buf[:cap(buf)]
		}
	}
}

// begin starts the body with what came together with the head.
func (r *upstreamReply) begin(method string, buf []byte, w int) {
	r.Status = r.head.status
	r.headBuf = buf[:r.head.next]
	if r.head.next <= engineSmall && &buf[0] == &r.small[0] {
		r.headIn = r.head.next
	}
	r.raw = buf[r.head.next:w]
	r.body = newEngineBody(&r.head, method)
	r.noteEnd()
}
