package gateway

import (
	"compress/gzip"
	"fmt"
	"io"
)

// plainAnswer reads an engine's answer without its Content-Encoding. No engine is asked for one, and what the client would
// take was not passed on; so one that comes anyway is taken out, or usage could not be read and the client might not
// understand it. The zero value is ready for open.
type plainAnswer struct {
	encoding string // what is left in: the client is told
	reply    *upstreamReply
	unpack   *gzip.Reader
	buf      []byte
}

// open looks at the encoding. One that cannot be taken out is an error, but an engine's own refusal passes as it is.
func (a *plainAnswer) open(reply *upstreamReply) error {
	a.reply = reply
	switch encoding := reply.Get("content-encoding"); {
	case len(encoding) == 0, engineEqualFold(encoding, "identity"):
	case engineEqualFold(encoding, "gzip"), engineEqualFold(encoding, "x-gzip"):
		a.buf = make([]byte, engineBig)
	case reply.Status >= 400:
		a.encoding = string(encoding)
	default:
		return fmt.Errorf("%w: Content-Encoding %.60q", errUpstreamBad, encoding)
	}
	return nil
}

// packed reports whether the answer is being unpacked. Its reads must not be woken.
func (a *plainAnswer) packed() bool { return a.buf != nil }

// length is that of the plain answer, -1 if it is not known.
func (a *plainAnswer) length() int64 {
	if a.packed() {
		return -1
	}
	return a.reply.ContentLength()
}

// Next is like upstreamReply.Next; the bytes are good until the next call.
func (a *plainAnswer) Next() ([]byte, error) {
	if !a.packed() {
		return a.reply.Next()
	}
	if a.unpack == nil {
		z, err := gzip.NewReader(a.reply)
		if err != nil {
			return nil, unpackError(err)
		}
		a.unpack = z
	}
	n, err := a.unpack.Read(a.buf)
	for n == 0 && err == nil {
		n, err = a.unpack.Read(a.buf)
	}
	if n > 0 {
		return a.buf[:n], nil // an error that came with it comes again
	}
	return nil, unpackError(err)
}

// unpackError keeps the errors of the reply, and io.EOF where the packed bytes ended in order.
func unpackError(err error) error {
	if err == io.ErrUnexpectedEOF || err == gzip.ErrHeader || err == gzip.ErrChecksum {
		return fmt.Errorf("%w: gzip: %w", errUpstreamCut, err)
	}
	return err
}

// readAtMost reads to the end (io.EOF), or at least most bytes (nil).
func (a *plainAnswer) readAtMost(most int) (answer []byte, err error) {
	if n := a.length(); n > 0 {
		answer = make([]byte, 0, min(n, int64(most)))
	}
	for len(answer) < most {
		chunk, err := a.Next()
		if err != nil {
			return answer, err
		}
		if len(answer)+len(chunk) > cap(answer) { // append would grow a large one by a quarter and leave more behind
			answer = append(make([]byte, 0, max(2*cap(answer), len(answer)+len(chunk), engineSmall)), answer...)
		}
		answer = append(answer, chunk...)
	}
	return answer, nil
}
