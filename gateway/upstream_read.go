package gateway

import (
	"io"
	"time"
)

// fill does one read of the connection into raw, or sets err.
func (r *upstreamReply) fill() {
	r.arm()
	buf := r.buffer()
	n, err := r.conn.read(buf)
	r.full, r.short = n == len(buf), n <= engineSmall/2
	switch {
	case n > 0:
		r.raw = buf[:n] // an error that came with it comes again
	case err == nil:
		r.err = io.ErrNoProgress
	case r.wasAborted():
		r.err = errUpstreamAborted
	default:
		r.err = engineBodyError(err, r.body.framing == engineUntilClose)
		r.body.done = r.err == io.EOF
	}
}

// buffer chooses where the next read goes: behind the head while tokens trickle, into a big one while the body comes
// in bulk, and back again.
func (r *upstreamReply) buffer() []byte {
	bulk := r.full || r.body.framing == engineByLength && r.body.left > engineSmall
	switch {
	case r.big != nil && r.short && !bulk && r.smallRoom() >= engineSmall/4:
		engineBigBuffers.Put(r.big)
		r.big = nil
	case r.big == nil && (bulk || r.smallRoom() < engineSmall/4):
		r.big = engineBigBuffers.Get().(*[engineBig]byte)
	}
	if r.big != nil {
		return r.big[:]
	}
	return r.small[engineSmall-r.smallRoom():]
}

// smallRoom is what the head left of the small buffer. A head that outgrew it has left it free.
func (r *upstreamReply) smallRoom() int {
	if len(r.headBuf) > engineSmall {
		return engineSmall
	}
	return engineSmall - len(r.headBuf)
}

// arm sets the read deadline. The silence clock leaves a timer alone that is good for at least the full silence.
func (r *upstreamReply) arm() {
	by := r.readBy
	if r.silence > 0 {
		least := time.Now().Add(r.silence)
		most := least.Add(r.silence / 8)
		if armed := r.conn.readBy; !armed.Before(least) && !armed.After(most) && (by.IsZero() || !armed.After(by)) {
			return
		}
		if by.IsZero() || most.Before(by) {
			by = most
		}
	}
	r.conn.setReadBy(by)
}

// noteEnd makes the clean end known as soon as the last byte of the framing is there.
func (r *upstreamReply) noteEnd() {
	if r.body.done && r.err == nil {
		r.err = io.EOF
	}
}

func (r *upstreamReply) freeBuffers() {
	if r.small != nil {
		engineSmallBuffers.Put(r.small)
		r.small = nil
	}
	if r.big != nil {
		engineBigBuffers.Put(r.big)
		r.big = nil
	}
	r.headBuf, r.raw, r.out = nil, nil, nil
	r.head.fields = nil
	if r.err == nil {
		r.err = errUpstreamAborted
	}
}
