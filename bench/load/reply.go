package load

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// answer reads one HTTP answer as it comes. The zero value is before its first byte.
type answer struct {
	head    []byte // of a head that came in pieces
	inBody  bool
	status  int
	chunked bool
	left    int    // of the body, or of the chunk
	line    []byte // of a chunk size that came in pieces
	after   int    // bytes of line ends still to be skipped
	last    bool   // the last chunk was named
	bytes   int    // of the body so far
	stream  bool
	tail    [16]byte // the last bytes of the body
	error   []byte   // the beginning of a body that is no 200
}

// take reads on; done is true with the answer's last byte.
func (a *answer) take(b []byte) (done bool, err error) {
	if !a.inBody {
		if len(a.head) > 0 {
			a.head = append(a.head, b...)
			b = a.head
		}
		end := bytes.Index(b, []byte("\r\n\r\n"))
		if end < 0 {
			if len(a.head) == 0 {
				a.head = append([]byte(nil), b...)
			}
			return false, nil
		}
		if err := a.begin(b[:end+2]); err != nil {
			return false, err
		}
		b, a.head = b[end+4:], nil
	}
	if !a.chunked {
		if len(b) > a.left {
			return false, errors.New("bytes behind an answer")
		}
		a.body(b)
		a.left -= len(b)
		return a.left == 0, nil
	}
	return a.chunks(b)
}

func (a *answer) begin(head []byte) (err error) {
	a.inBody = true
	if len(head) < 12 {
		return fmt.Errorf("no HTTP: %q", head)
	}
	if a.status, err = strconv.Atoi(string(head[9:12])); err != nil {
		return fmt.Errorf("no HTTP: %q", head[:12])
	}
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			a.left, _ = strconv.Atoi(string(value))
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			a.chunked = true
		case bytes.EqualFold(name, []byte("content-type")):
			a.stream = bytes.HasPrefix(value, []byte("text/event-stream"))
		}
	}
	return nil
}

func (a *answer) chunks(b []byte) (done bool, err error) {
	for len(b) > 0 {
		switch {
		case a.after > 0:
			n := min(a.after, len(b))
			a.after -= n
			b = b[n:]
			if a.last && a.after == 0 {
				if len(b) > 0 {
					return false, errors.New("bytes behind an answer")
				}
				return true, nil
			}
		case a.left > 0:
			n := min(a.left, len(b))
			a.body(b[:n])
			b = b[n:]
			if a.left -= n; a.left == 0 {
				a.after = 2
			}
		default:
			end := bytes.IndexByte(b, '\n')
			if end < 0 {
				a.line = append(a.line, b...)
				return false, nil
			}
			line := b[:end]
			if len(a.line) > 0 {
				line = append(a.line, line...)
				a.line = a.line[:0]
			}
			size, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 31)
			if err != nil {
				return false, fmt.Errorf("a chunk's size is %q", line)
			}
			b = b[end+1:]
			if a.left = int(size); size == 0 {
				a.last, a.after = true, 2
			}
		}
	}
	return false, nil
}

func (a *answer) body(b []byte) {
	a.bytes += len(b)
	if a.status != 200 && len(a.error) < 200 {
		a.error = append(a.error, b[:min(len(b), 200)]...)
	}
	if !a.stream {
		return
	}
	if len(b) >= len(a.tail) {
		copy(a.tail[:], b[len(b)-len(a.tail):])
		return
	}
	copy(a.tail[:], a.tail[len(b):])
	copy(a.tail[len(a.tail)-len(b):], b)
}

// judge says why a complete answer is not what was asked for. // I1
func (a *answer) judge(least int) error {
	switch {
	case a.status != 200:
		return fmt.Errorf("status %d: %s", a.status, a.error)
	case a.bytes < least:
		return fmt.Errorf("%d bytes, at least %d are due", a.bytes, least)
	case a.stream && !bytes.HasSuffix(bytes.TrimRight(a.tail[:], "\n"), []byte("data: [DONE]")):
		return fmt.Errorf("a stream that ends in %q", a.tail[:])
	}
	return nil
}
