package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// parseEngineHead parses a whole head given in one piece.
func parseEngineHead(b []byte) (h *engineHead, done bool, err error) {
	h = &engineHead{}
	h.reset()
	done, err = h.parse(b)
	return h, done, err
}

// parsePieces gives the head byte by byte.
func parsePieces(b []byte) (h *engineHead, done bool, err error) {
	h = &engineHead{}
	h.reset()
	for n := 1; n <= len(b) && !done && err == nil; n++ {
		done, err = h.parse(b[:n])
	}
	return h, done, err
}

func headWith(lines ...string) string {
	return "HTTP/1.1 200 OK\r\n" + strings.Join(append(lines, "", ""), "\r\n")
}

var badEngineHeads = map[string]string{
	"length and chunked":          headWith("Content-Length: 5", "Transfer-Encoding: chunked"),
	"chunked and length":          headWith("Transfer-Encoding: chunked", "Content-Length: 5"),
	"two lengths":                 headWith("Content-Length: 5", "Content-Length: 6"),
	"list of lengths":             headWith("Content-Length: 5, 5"),
	"signed length":               headWith("Content-Length: +5"),
	"negative length":             headWith("Content-Length: -5"),
	"hex length":                  headWith("Content-Length: 0x5"),
	"empty length":                headWith("Content-Length:"),
	"huge length":                 headWith("Content-Length: 9999999999999999999"),
	"chunked twice":               headWith("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
	"gzip, chunked":               headWith("Transfer-Encoding: gzip, chunked"),
	"identity":                    headWith("Transfer-Encoding: identity"),
	"chunked with a parameter":    headWith("Transfer-Encoding: chunked;q=1"),
	"vertical tab before chunked": headWith("Transfer-Encoding: \x0bchunked"),
	"chunked in 1.0":              "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
	"folded line":                 headWith("X-A: 1", " 2"),
	"folded by tab":               headWith("X-A: 1", "\t2"),
	"first line folded":           headWith(" X-A: 1"),
	"space before the colon":      headWith("Content-Length : 5"),
	"tab before the colon":        headWith("Content-Length\t: 5"),
	"no colon":                    headWith("Content-Length 5"),
	"no name":                     headWith(": 5"),
	"name with a control":         headWith("X\x01A: 5"),
	"name above ASCII":            headWith("X\xe9A: 5"),
	"NUL in a value":              headWith("X-A: 1\x002"),
	"bare CR in a value":          headWith("X-A: 1\r2"),
	"DEL in a value":              headWith("X-A: 1\x7f2"),
	"bare LF":                     "HTTP/1.1 200 OK\nX-A: 1\n\n",
	"bare LF after a value":       "HTTP/1.1 200 OK\r\nX-A: 1\nX-B: 2\r\n\r\n",
	"bare LF at the end":          "HTTP/1.1 200 OK\r\nX-A: 1\r\n\n",
	"HTTP/2":                      "HTTP/2.0 200 OK\r\n\r\n",
	"HTTP/1.2":                    "HTTP/1.2 200 OK\r\n\r\n",
	"lower case":                  "http/1.1 200 OK\r\n\r\n",
	"two digits":                  "HTTP/1.1 20 OK\r\n\r\n",
	"four digits":                 "HTTP/1.1 2000 OK\r\n\r\n",
	"status 99":                   "HTTP/1.1 099 OK\r\n\r\n",
	"status 600":                  "HTTP/1.1 600 OK\r\n\r\n",
	"letters":                     "HTTP/1.1 2x0 OK\r\n\r\n",
	"two spaces":                  "HTTP/1.1  200 OK\r\n\r\n",
	"control in the reason":       "HTTP/1.1 200 O\x00K\r\n\r\n",
	"empty line first":            "\r\nHTTP/1.1 200 OK\r\n\r\n",
	"space first":                 " HTTP/1.1 200 OK\r\n\r\n",
	"a TLS alert":                 "\x15\x03\x01",
	"HTML":                        "<html>",
	"too many lines":              headWith(strings.Split(strings.Repeat("X-A: 1\r\n", engineMaxFields+1), "\r\n")[:engineMaxFields+1]...),
}

func TestEngineHeadRefusesTheAmbiguous(t *testing.T) {
	for name, head := range badEngineHeads {
		for how, parse := range map[string]func([]byte) (*engineHead, bool, error){"whole": parseEngineHead, "by bytes": parsePieces} {
			if _, done, err := parse([]byte(head)); done || !errors.Is(err, errUpstreamBad) {
				// A lone framing field is judged at the end of the head.
				if !(done && errors.Is(err, errUpstreamBad)) {
					t.Errorf("%s, %s: done %v, %v", name, how, done, err)
				}
			}
		}
	}
}

// The same through the client: a fault, and the connection is gone.
func TestUpstreamBadHeadIsAFault(t *testing.T) {
	for _, name := range []string{"length and chunked", "bare LF", "folded line", "HTML"} {
		e := newScriptedEngine(t, answering(badEngineHeads[name]))
		u := newTestUpstream(t, upstreamConfig{})
		_, fault := u.Do(t.Context(), callTo(e.addr, "x"))
		if fault == nil || fault.Kind != upstreamFaultBad || !fault.Received || !fault.Reached || u.idle.count() != 0 {
			t.Errorf("%s: %v", name, fault)
		}
	}
}

func TestEngineHeadReadsWhatEnginesSend(t *testing.T) {
	raw := headWith("date: Mon, 30 Nov 2026 07:00:00 GMT", "Server:uvicorn", "Content-Type:  text/event-stream; charset=utf-8 \t",
		"X-Empty:", "x-request-id: \xe9t\xe9", "X-Twice: 1", "x-twice: 2", "Connection: close, X-Internal", "Transfer-Encoding: Chunked")
	for how, parse := range map[string]func([]byte) (*engineHead, bool, error){"whole": parseEngineHead, "by bytes": parsePieces} {
		h, done, err := parse([]byte(raw))
		if !done || err != nil {
			t.Fatalf("%s: done %v, %v", how, done, err)
		}
		if h.status != 200 || !h.chunked || h.contentLength != -1 || h.persistent() || h.next != len(raw) {
			t.Fatalf("%s: %+v", how, h)
		}
		r := &upstreamReply{head: *h, headBuf: []byte(raw)}
		for name, want := range map[string]string{
			"server": "uvicorn", "Server": "uvicorn", "x-empty": "", "X-Request-ID": "\xe9t\xe9", "X-Twice": "1",
		} {
			if got := r.Get(name); got == nil || string(got) != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if got := string(r.ContentType()); got != "text/event-stream; charset=utf-8" {
			t.Errorf("content type %q", got)
		}
		if r.Get("X-Absent") != nil {
			t.Error("a header out of nowhere")
		}
		var twice string
		for name, value := range r.Fields() {
			if engineEqualFold(name, "x-twice") {
				twice += string(value)
			}
		}
		if twice != "12" {
			t.Errorf("Fields gave %q", twice)
		}
	}
	for _, ok := range []string{
		"HTTP/1.1 200\r\n\r\n", "HTTP/1.1 200 \r\n\r\n", "HTTP/1.0 599 a b c\r\n\r\n",
		headWith("Content-Length: 5", "Content-Length: 5"), headWith("Content-Length: 000000000000000005"),
	} {
		if _, done, err := parseEngineHead([]byte(ok)); !done || err != nil {
			t.Errorf("%q: done %v, %v", ok, done, err)
		}
	}
	if r := (&upstreamReply{}); r.ContentType() != nil {
		t.Error("a content type out of nowhere")
	}
}

// Heads around and above the small buffer arrive whole, with the body behind them; above the limit they are a fault.
func TestUpstreamHeadSizes(t *testing.T) {
	head := func(size int) string {
		const begin, end = "HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n", "\r\n\r\n"
		line := "X-Pad: "
		return begin + line + strings.Repeat("p", size-len(begin)-len(line)-len(end)) + end
	}
	body := strings.Repeat("0123456789", 4000)
	for _, size := range []int{100, 2048, 3000, 3500, 4090, 4094, 4095, 4096, 4097, 5000, 8192, 40_000, 64<<10 - 1, 64 << 10} {
		raw := head(size)
		if len(raw) != size {
			t.Fatal("the test's head has the wrong size")
		}
		e := newScriptedEngine(t, answering(raw+body))
		u := newTestUpstream(t, upstreamConfig{})
		for range 2 {
			r := u.mustDo(t, callTo(e.addr, "x"))
			mustRead(t, r, body)
			if pad := r.Get("X-Pad"); len(raw)-len(pad) != len(head(100))-len("p")*(100-len("HTTP/1.1 200 OK\r\nContent-Length: 40000\r\nX-Pad: \r\n\r\n")) {
				t.Fatalf("size %d: header of %d bytes after the body", size, len(pad))
			}
			r.Close(true)
		}
		if e.conns.Load() != 1 {
			t.Fatalf("size %d: %d connections", size, e.conns.Load())
		}
	}
	for _, tt := range []struct{ size, limit int }{{64<<10 + 1, 0}, {2000, 1000}, {9000, 5000}} {
		e := newScriptedEngine(t, answering(head(tt.size)+body))
		u := newTestUpstream(t, upstreamConfig{MaxHeadBytes: tt.limit})
		if _, fault := u.Do(t.Context(), callTo(e.addr, "x")); fault == nil || fault.Kind != upstreamFaultBad {
			t.Fatalf("size %d: %v", tt.size, fault)
		}
	}
}

func TestUpstreamInterimHeadsAreBounded(t *testing.T) {
	interim := "HTTP/1.1 102 Processing\r\n\r\n"
	for n, ok := range map[int]bool{engineMaxInterim: true, engineMaxInterim + 1: false} {
		for how, script := range map[string]func(c *engineSide){
			"together": answering(strings.Repeat(interim, n) + okAnswer),
			"apart": func(c *engineSide) {
				c.request()
				for b := range strings.SplitAfterSeq(strings.Repeat(interim, n)+okAnswer, "\n") {
					say(c, b)
				}
				c.ended()
			},
		} {
			e := newScriptedEngine(t, script)
			u := newTestUpstream(t, upstreamConfig{})
			r, fault := u.Do(t.Context(), callTo(e.addr, "x"))
			if (fault == nil) != ok {
				t.Errorf("%d, %s: %v", n, how, fault)
			}
			if r != nil {
				mustRead(t, r, "ok")
				r.Close(true)
			}
		}
	}
	e := newScriptedEngine(t, answering("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"))
	u := newTestUpstream(t, upstreamConfig{})
	if _, fault := u.Do(t.Context(), callTo(e.addr, "x")); fault == nil || fault.Kind != upstreamFaultBad {
		t.Errorf("101: %v", fault)
	}
}

func TestEngineReadBy(t *testing.T) {
	now := time.Unix(1000, 0)
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	for _, tt := range []struct {
		name       string
		armed      time.Time
		silence    time.Duration
		last, want time.Time
	}{
		{"nothing", time.Time{}, 0, time.Time{}, time.Time{}},
		{"last only", at(5), 0, at(50), at(50)},
		{"first", time.Time{}, 800 * time.Millisecond, time.Time{}, at(900)},
		{"still good", at(850), 800 * time.Millisecond, time.Time{}, at(850)},
		{"just good", at(800), 800 * time.Millisecond, time.Time{}, at(800)},
		{"too early", at(799), 800 * time.Millisecond, time.Time{}, at(900)},
		{"too late", at(901), 800 * time.Millisecond, time.Time{}, at(900)},
		{"last comes first", at(850), 800 * time.Millisecond, at(840), at(840)},
		{"last is far", at(850), 800 * time.Millisecond, at(5000), at(850)},
		{"silence taken back", at(850), 0, time.Time{}, time.Time{}},
	} {
		if got := engineReadBy(now, tt.armed, tt.silence, tt.last); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got.Sub(now), tt.want.Sub(now))
		}
	}
}

func FuzzResponseHead(f *testing.F) {
	for _, head := range badEngineHeads {
		if len(head) < 2000 {
			f.Add([]byte(head))
		}
	}
	f.Add([]byte(headWith("Content-Length: 5", "Content-Type: application/json") + "hello"))
	f.Add([]byte(headWith("Transfer-Encoding: chunked", "Keep-Alive: timeout=5, max=100")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		whole, done, err := parseEngineHead(b)
		pieces, doneToo, errToo := parsePieces(b)
		if done != doneToo || (err == nil) != (errToo == nil) {
			t.Fatalf("whole: %v %v; by bytes: %v %v", done, err, doneToo, errToo)
		}
		if !done || err != nil {
			return
		}
		if fmt.Sprint(whole.fields) != fmt.Sprint(pieces.fields) || whole.next != pieces.next || whole.contentLength != pieces.contentLength {
			t.Fatalf("whole %+v; by bytes %+v", whole, pieces)
		}
		// Whatever is accepted is made of CRLF lines without controls, and its framing is one.
		if head := b[:whole.next]; bytes.Count(head, []byte("\n")) != bytes.Count(head, []byte("\r")) || bytes.IndexByte(head, 0) >= 0 {
			t.Fatalf("accepted %q", head)
		}
		if whole.chunked && whole.contentLength >= 0 || whole.status < 100 || whole.status > 599 {
			t.Fatalf("accepted %+v", whole)
		}
		for _, field := range whole.fields {
			if name := field.name.of(b); !engineIsToken(name) {
				t.Fatalf("accepted name %q", name)
			}
			_ = field.value.of(b)
		}
	})
}
