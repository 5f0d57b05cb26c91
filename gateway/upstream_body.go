package gateway

import "fmt"

const (
	engineMaxChunkExtension = 256     // bytes per chunk
	engineMaxTrailer        = 8 << 10 // bytes in all
	engineMaxChunkDigits    = 15      // 60 bits, leading zeros included
)

// engineFraming says what ends a body. The zero value: there is none.
type engineFraming uint8

const (
	engineNoBody engineFraming = iota
	engineByLength
	engineByChunks
	engineUntilClose
)

// engineBody takes a body out of its framing, from whatever pieces it arrives in. It keeps no bytes.
type engineBody struct {
	framing engineFraming
	done    bool
	left    int64 // payload bytes to come: of the body (by length), of the chunk (by chunks)
	state   engineChunkState
	count   int // digits, extension bytes or trailer bytes so far
}

// newEngineBody chooses the framing of a final response (RFC 9112, 6.3).
func newEngineBody(h *engineHead, method string) engineBody {
	switch {
	case method == "HEAD" || h.status == 204 || h.status == 304:
		return engineBody{done: true}
	case h.chunked:
		return engineBody{framing: engineByChunks}
	case h.contentLength >= 0:
		return engineBody{framing: engineByLength, left: h.contentLength, done: h.contentLength == 0}
	default:
		return engineBody{framing: engineUntilClose}
	}
}

// decode returns the payload in b, moved together in place, and how much of b was used: all of it unless the body
// ended before (done) or err is set. Payload before an error is returned with it.
func (d *engineBody) decode(b []byte) (payload []byte, used int, err error) {
	switch d.framing {
	case engineByChunks:
		return d.decodeChunks(b)
	case engineByLength:
		n := int(min(d.left, int64(len(b))))
		d.left -= int64(n)
		d.done = d.left == 0
		return b[:n], n, nil
	case engineUntilClose:
		return b, len(b), nil
	default:
		return nil, 0, nil
	}
}

func (d *engineBody) decodeChunks(b []byte) (payload []byte, used int, err error) {
	from, to, i := 0, 0, 0 // payload is b[from:to], i the next byte to look at
	for i < len(b) && !d.done {
		if d.state != engineChunkData {
			if err := d.step(b[i]); err != nil {
				return b[from:to], i, err
			}
			i++
			continue
		}
		n := int(min(d.left, int64(len(b)-i)))
		if from == to {
			from, to = i, i+n // the first payload stays where it is
		} else {
			to += copy(b[to:], b[i:i+n])
		}
		i += n
		if d.left -= int64(n); d.left == 0 {
			d.state = engineChunkDataCR
		}
	}
	return b[from:to], i, nil
}

// engineChunkState is what the next byte of chunked framing belongs to.
type engineChunkState uint8

const (
	engineChunkSize       engineChunkState = iota
	engineChunkExtension                   // ignored up to its bound
	engineChunkSizeLF                      // after the carriage return of the size line
	engineChunkData                        // payload
	engineChunkDataCR                      // the line break after the payload
	engineChunkDataLF                      //
	engineChunkTrailer                     // start of a trailer line, or of the last empty line
	engineChunkTrailerRow                  // inside a trailer line, dropped
	engineChunkTrailerLF                   //
	engineChunkFinalLF                     // the very last byte
)

// step takes one byte of framing.
func (d *engineBody) step(c byte) error {
	switch d.state {
	case engineChunkSize:
		return d.stepSize(c)
	case engineChunkExtension:
		return d.stepExtension(c)
	case engineChunkTrailer, engineChunkTrailerRow:
		return d.stepTrailer(c)
	case engineChunkSizeLF:
		if d.left == 0 {
			d.count = 0
			return d.expect(c, '\n', engineChunkTrailer)
		}
		return d.expect(c, '\n', engineChunkData)
	case engineChunkDataCR:
		return d.expect(c, '\r', engineChunkDataLF)
	case engineChunkDataLF:
		d.count = 0
		return d.expect(c, '\n', engineChunkSize)
	case engineChunkTrailerLF:
		return d.expect(c, '\n', engineChunkTrailer)
	default: // engineChunkFinalLF
		d.done = c == '\n'
		return d.expect(c, '\n', engineChunkFinalLF)
	}
}

func (d *engineBody) expect(c, want byte, next engineChunkState) error {
	if c != want {
		return d.bad("line break expected", c)
	}
	d.state = next
	return nil
}

func (d *engineBody) stepSize(c byte) error {
	digit := int64(-1)
	switch {
	case '0' <= c && c <= '9':
		digit = int64(c - '0')
	case 'a' <= c && c <= 'f':
		digit = int64(c-'a') + 10
	case 'A' <= c && c <= 'F':
		digit = int64(c-'A') + 10
	}
	switch {
	case digit >= 0 && d.count < engineMaxChunkDigits:
		d.left = d.left<<4 | digit
		d.count++
		return nil
	case digit >= 0 || d.count == 0:
		return d.bad("chunk size", c)
	case c == '\r':
		d.state = engineChunkSizeLF
		return nil
	case c == ';':
		d.count, d.state = 0, engineChunkExtension
		return nil
	default:
		return d.bad("chunk size", c)
	}
}

func (d *engineBody) stepExtension(c byte) error {
	d.count++
	switch {
	case d.count > engineMaxChunkExtension:
		return d.bad("chunk extension too long", c)
	case c == '\r':
		d.state = engineChunkSizeLF
	case c < ' ' && c != '\t' || c == 0x7f:
		return d.bad("chunk extension", c)
	}
	return nil
}

func (d *engineBody) stepTrailer(c byte) error {
	d.count++
	switch {
	case d.count > engineMaxTrailer:
		return d.bad("trailer too long", c)
	case c == '\r' && d.state == engineChunkTrailer:
		d.state = engineChunkFinalLF
	case c == '\r':
		d.state = engineChunkTrailerLF
	case d.state == engineChunkTrailer && !engineTokenBytes[c]: // also a folded line
		return d.bad("trailer", c)
	case c < ' ' && c != '\t' || c == 0x7f:
		return d.bad("trailer", c)
	default:
		d.state = engineChunkTrailerRow
	}
	return nil
}

func (d *engineBody) bad(where string, c byte) error {
	return fmt.Errorf("%w: chunked framing: %s, at byte %q", errUpstreamBad, where, c)
}
