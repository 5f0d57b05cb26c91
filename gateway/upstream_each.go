package gateway

import "time"

// engineLook is how often a quiet connection is read although nothing was announced, and once at least before its silence
// is too long: a reset that reaches the kernel together with bytes is announced with them, and found only so.
const engineLook = 2 * time.Second

// Each calls take with the next bytes of the body again and again. It returns take's error, the wake of SetWake
// (errUpstreamQuiet, late by a look at most: it may be called again), or what Next would have returned at the end.
//
// On cleartext, where the kernel tells what is left behind it, a chunk costs one read: the readiness of a Go connection is
// reset by each call of Read and never within one, so take is called within, and no read is made only to find nothing.
func (r *upstreamReply) Each(take func([]byte) error) error {
	r.relaying(take)
	defer r.relaying(nil)
	for r.err == nil {
		if len(r.raw) > 0 {
			r.passOn()
		} else if r.fill(); r.waiting && r.quietFor(time.Now()) {
			return errUpstreamQuiet
		}
		if r.takeErr != nil {
			return r.takeErr
		}
	}
	return r.err
}

// relaying says whom bytes are handed to; nil: nobody. While it is somebody, Abort must not wait for the connection,
// which is in use.
func (r *upstreamReply) relaying(take func([]byte) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.take, r.takeErr = take, nil
}

// passOn decodes what was received and hands it on. It reports whether more is wanted.
func (r *upstreamReply) passOn() (more bool) {
	for r.err == nil && len(r.raw) > 0 {
		data, used, err := r.body.decode(r.raw)
		r.raw = r.raw[used:]
		r.err = err
		r.noteEnd()
		if len(data) == 0 {
			continue
		}
		if r.takeErr = r.take(data); r.takeErr != nil {
			return false
		}
	}
	return r.err == nil
}

// quietFor reports whether the wait that goes on has come to the next multiple of the wake.
func (r *upstreamReply) quietFor(now time.Time) bool {
	if r.wake <= 0 || now.Sub(r.woken) < r.wake {
		return false
	}
	r.woken = now
	return true
}
