package gateway

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
)

const (
	engineMaxFields  = 256
	engineMaxInterim = 8 // 1xx heads before the final one
)

// engineSpan is a piece of the head: buf[from:to].
type engineSpan struct{ from, to int32 }

func (s engineSpan) of(b []byte) []byte { return b[s.from:s.to:s.to] }

type engineField struct{ name, value engineSpan }

// engineHead is a response head, parsed as its bytes arrive. It holds offsets, not slices, so the buffer may move.
// The zero value is not ready: call reset.
type engineHead struct {
	status        int
	http10        bool
	contentLength int64 // -1 = not told
	chunked       bool
	sawClose      bool          // Connection: close
	sawKeep       bool          // Connection: keep-alive
	keepFor       time.Duration // Keep-Alive: timeout; 0 = not told
	contentType   engineSpan

	fields []engineField
	store  [20]engineField // what engines send fits; more is allocated

	next    int // start of the line that is not parsed yet; after the end: the size of the head
	scanned int // no line break in buf[next:scanned]
}

func (h *engineHead) reset() {
	*h = engineHead{contentLength: -1}
	h.fields = h.store[:0]
}

// parse continues with all bytes received so far; done when the empty line is there. Whoever reads leniently here and
// differently elsewhere opens a way for one answer to pass as two, so what the standard forbids is an error:
// bare line feeds, folded lines, space before the colon, control characters, framing told twice.
func (h *engineHead) parse(b []byte) (done bool, err error) {
	if h.next == 0 && !engineMayBeHTTP(b) {
		return false, fmt.Errorf("%w: does not start as HTTP/1.x does", errUpstreamBad)
	}
	for {
		i := bytes.IndexByte(b[h.scanned:], '\n')
		if i < 0 {
			h.scanned = len(b)
			return false, nil
		}
		end := h.scanned + i
		from := h.next
		h.next, h.scanned = end+1, end+1
		if end == from || b[end-1] != '\r' {
			return false, fmt.Errorf("%w: bare line feed in the head", errUpstreamBad)
		}
		line := b[from : end-1]
		switch {
		case from == 0:
			err = h.statusLine(line)
		case len(line) == 0:
			return true, h.framing()
		default:
			err = h.fieldLine(line, from)
		}
		if err != nil {
			return false, err
		}
	}
}

// engineMayBeHTTP lets a wrong protocol fail at once; it might never send a line break.
func engineMayBeHTTP(b []byte) bool {
	const prefix = "HTTP/1."
	n := min(len(b), len(prefix))
	return string(b[:n]) == prefix[:n]
}

// statusLine: HTTP/1.x SP 3 digits [SP reason].
func (h *engineHead) statusLine(line []byte) error {
	bad := len(line) < 12 || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > 12 && line[12] != ' '
	if !bad {
		for _, c := range line[9:12] {
			bad = bad || c < '0' || c > '9'
			h.status = h.status*10 + int(c-'0')
		}
		bad = bad || h.status < 100 || h.status > 599 || engineHasControl(line[12:])
	}
	if bad {
		return fmt.Errorf("%w: status line %.60q", errUpstreamBad, line)
	}
	h.http10 = line[7] == '0'
	return nil
}

// fieldLine: name ":" OWS value OWS. base is the offset of line in the buffer.
func (h *engineHead) fieldLine(line []byte, base int) error {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 || !engineIsToken(line[:colon]) { // also folded lines and space before the colon
		return fmt.Errorf("%w: header line %.60q", errUpstreamBad, line)
	}
	from, to := colon+1, len(line)
	for from < to && (line[from] == ' ' || line[from] == '\t') {
		from++
	}
	for to > from && (line[to-1] == ' ' || line[to-1] == '\t') {
		to--
	}
	if engineHasControl(line[from:to]) {
		return fmt.Errorf("%w: control character in header %.60q", errUpstreamBad, line[:colon])
	}
	if len(h.fields) == engineMaxFields {
		return fmt.Errorf("%w: more than %d header lines", errUpstreamBad, engineMaxFields)
	}
	f := engineField{
		name:  engineSpan{int32(base), int32(base + colon)},
		value: engineSpan{int32(base + from), int32(base + to)},
	}
	h.fields = append(h.fields, f)
	return h.note(line[:colon], line[from:to], f.value)
}

// note keeps what the client itself acts on.
func (h *engineHead) note(name, value []byte, span engineSpan) error {
	switch len(name) {
	case len("connection"):
		if engineEqualFold(name, "connection") {
			h.sawClose = h.sawClose || engineHasListed(value, "close")
			h.sawKeep = h.sawKeep || engineHasListed(value, "keep-alive")
		} else if engineEqualFold(name, "keep-alive") {
			h.keepFor = engineKeepAliveTimeout(value)
		}
	case len("content-type"):
		if engineEqualFold(name, "content-type") && h.contentType == (engineSpan{}) {
			h.contentType = span
		}
	case len("content-length"):
		if engineEqualFold(name, "content-length") {
			n, ok := engineLength(value)
			if !ok || h.contentLength >= 0 && h.contentLength != n {
				return fmt.Errorf("%w: Content-Length %.60q", errUpstreamBad, value)
			}
			h.contentLength = n
		}
	case len("transfer-encoding"):
		if engineEqualFold(name, "transfer-encoding") {
			if h.chunked || !engineEqualFold(value, "chunked") {
				return fmt.Errorf("%w: Transfer-Encoding %.60q", errUpstreamBad, value)
			}
			h.chunked = true
		}
	}
	return nil
}

// framing judges the fields together, once all are read.
func (h *engineHead) framing() error {
	if h.chunked && h.contentLength >= 0 {
		return fmt.Errorf("%w: both Content-Length and Transfer-Encoding", errUpstreamBad)
	}
	if h.chunked && h.http10 {
		return fmt.Errorf("%w: Transfer-Encoding in HTTP/1.0", errUpstreamBad)
	}
	return nil
}

// persistent: the engine agreed to another request on this connection.
func (h *engineHead) persistent() bool {
	return !h.sawClose && (!h.http10 || h.sawKeep)
}

// engineLength reads a Content-Length: digits only, at most 18 of them.
func engineLength(v []byte) (n int64, ok bool) {
	if len(v) == 0 || len(v) > 18 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// engineKeepAliveTimeout reads `timeout=5, max=100`; 0 = not told.
func engineKeepAliveTimeout(v []byte) time.Duration {
	for part := range bytes.SplitSeq(v, []byte{','}) {
		name, seconds, ok := bytes.Cut(bytes.TrimSpace(part), []byte{'='})
		if ok && engineEqualFold(name, "timeout") {
			if n, err := strconv.ParseUint(string(seconds), 10, 16); err == nil {
				return max(time.Duration(n)*time.Second, time.Millisecond)
			}
		}
	}
	return 0
}

// engineHasListed looks for a token in a comma-separated list.
func engineHasListed(list []byte, token string) bool {
	for part := range bytes.SplitSeq(list, []byte{','}) {
		if engineEqualFold(bytes.TrimSpace(part), token) {
			return true
		}
	}
	return false
}

// engineEqualFold compares without regard to ASCII case.
func engineEqualFold[T []byte | string](b T, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i := range len(s) {
		if engineLower(b[i]) != engineLower(s[i]) {
			return false
		}
	}
	return true
}

func engineLower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// engineTokenBytes marks the bytes of a header name (RFC 9110, tchar).
var engineTokenBytes = func() (t [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()

func engineIsToken[T []byte | string](s T) bool {
	for i := range len(s) {
		if !engineTokenBytes[s[i]] {
			return false
		}
	}
	return len(s) > 0
}

// engineHasControl: any byte that must not stand in a header value (tab may).
func engineHasControl[T []byte | string](s T) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return true
		}
	}
	return false
}
