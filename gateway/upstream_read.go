package gateway

import (
	"bytes"
	"io"
	"time"
)

// fill does one read of the connection into raw, or sets err; within Each it goes on reading. Nothing may be left of raw.
func (r *upstreamReply) fill() {
	r.arm()
	if err := r.conn.receive(r); err != nil {
		r.took(0, err)
	}
}

// took keeps what one read brought, or hands it on within Each.
func (r *upstreamReply) took(n int, err error) (more bool) {
	r.full, r.short = n > 0 && n == len(r.lent), n <= engineSmall/2
	if r.waiting = n == 0 && engineIsDeadline(err) && r.early(time.Now()); r.waiting {
		return false
	}
	switch {
	case n > 0:
		r.raw = r.lent[:n] // an error that came with it comes again
	case err == nil:
		r.err = io.ErrNoProgress
	case r.aborted.Load():
		r.err = errUpstreamAborted
	default:
		r.err = engineBodyError(err, r.body.framing == engineUntilClose)
		r.body.done = r.err == io.EOF
	}
	if r.take == nil || !r.passOn() {
		return false
	}
	r.arm()
	return true
}

// lend chooses where the next read goes: behind the head while tokens trickle, into a big buffer while the body comes in
// bulk, and back again.
func (r *upstreamReply) lend() []byte {
	bulk := r.full || r.body.framing == engineByLength && r.body.left > engineSmall
	switch {
	case r.big != nil && r.short && !bulk && engineSmall-r.headIn >= engineSmall/4:
		engineBigBuffers.Put(r.big)
		r.big = nil
	case r.big == nil && (bulk || engineSmall-r.headIn < engineSmall/4):
		r.big = engineBigBuffers.Get().(*[engineBig]byte)
	}
	if r.big != nil {
		r.lent = r.big[:]
		return r.lent
	}
	if r.small == nil {
		r.small = engineSmallBuffers.Get().(*[engineSmall]byte)
	}
	r.lent = r.small[r.headIn:]
	return r.lent
}

// takeBack leaves nothing but the head in memory while the engine is waited for: a stream waits nearly all of its time.
func (r *upstreamReply) takeBack() {
	if r.headIn > 0 {
		r.headBuf, r.headIn = bytes.Clone(r.headBuf), 0
	}
	r.putBuffers()
}

// forgetHead ends what the head's slices are good for: a stream has no use for them once it has begun.
func (r *upstreamReply) forgetHead() {
	r.headBuf, r.headIn = nil, 0
	r.head.fields, r.head.contentType = nil, engineSpan{}
}

// arm sets the read deadline for the next read.
func (r *upstreamReply) arm() {
	var now time.Time
	wait := r.silence
	if wake := r.nextWake(); r.silence > 0 || wake > 0 {
		now = time.Now()
		if !r.waiting {
			r.since, r.woken = now, now
		}
		wait = engineWait(r.silence, now.Sub(r.since), wake)
	}
	r.conn.setReadBy(engineReadBy(now, r.conn.readBy, wait, r.readBy))
}

// nextWake is how long a read may wait without a look; 0 = for ever.
func (r *upstreamReply) nextWake() time.Duration {
	look := engineLook
	if r.silence > 0 {
		look = min(look, r.silence/2) // who is gone is not told to have been silent
	}
	if r.take != nil && (r.wake <= 0 || r.wake > look) {
		return look
	}
	return r.wake
}

// early reports whether a deadline that has passed was no more than a wake.
func (r *upstreamReply) early(now time.Time) bool {
	return r.nextWake() > 0 && (r.silence <= 0 || now.Sub(r.since) < r.silence) && (r.readBy.IsZero() || now.Before(r.readBy))
}

// engineWait is how long the next read may wait: until the next wake or for what is left of the silence allowed, whichever
// is shorter. 0 = for ever.
func engineWait(silence, passed, wake time.Duration) time.Duration {
	if silence <= 0 {
		return wake
	}
	left := max(silence-passed, time.Millisecond)
	if wake > 0 && wake < left {
		return wake
	}
	return left
}

// engineReadBy chooses a read deadline from the one now armed, the silence allowed from now on (0 = any) and the last
// instant (zero = none). A silence timer is set an eighth late, and left alone while it is good for the full silence:
// so it moves a few times per silence, not once per token.
func engineReadBy(now, armed time.Time, silence time.Duration, last time.Time) time.Time {
	if silence <= 0 {
		return last
	}
	least := now.Add(silence)
	most := least.Add(silence / 8)
	if !last.IsZero() && last.Before(most) {
		return last
	}
	if armed.Before(least) || armed.After(most) {
		return most
	}
	return armed
}

// noteEnd makes the clean end known as soon as the last byte of the framing is there.
func (r *upstreamReply) noteEnd() {
	if r.body.done && r.err == nil {
		r.err = io.EOF
	}
}

func (r *upstreamReply) freeBuffers() {
	r.putBuffers()
	r.forgetHead()
	r.raw, r.out = nil, nil
	if r.err == nil {
		r.err = errUpstreamAborted
	}
}

func (r *upstreamReply) putBuffers() {
	if r.small != nil {
		engineSmallBuffers.Put(r.small)
		r.small = nil
	}
	if r.big != nil {
		engineBigBuffers.Put(r.big)
		r.big = nil
	}
	r.lent = nil
}
