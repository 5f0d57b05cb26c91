package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	chunkedHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunkedRaw  = "5\r\nhello\r\n00A;x=\"y\"\r\n, chunked \r\n1;a\r\nw\r\n4\r\norld\r\n0;last\r\nX-Sum: 1\r\nY: \r\n\r\n"
	chunkedText = "hello, chunked world"
)

// decodePieces runs pieces through a decoder as Next would; left is what lay behind the end.
func decodePieces(d *engineBody, pieces ...[]byte) (text string, left int, err error) {
	for i, p := range pieces {
		payload, used, err := d.decode(append([]byte(nil), p...))
		text += string(payload)
		if err != nil {
			return text, 0, err
		}
		if used < len(p) && !d.done {
			return text, 0, errors.New("bytes not used before the end")
		}
		if d.done {
			for _, rest := range pieces[i+1:] {
				left += len(rest)
			}
			return text, left + len(p) - used, nil
		}
	}
	return text, left, nil
}

// Any split of the engine's bytes gives the same body: every two cuts of a response with all there is in chunked framing.
func TestEngineChunksInAnySplit(t *testing.T) {
	raw := []byte(chunkedRaw)
	for i := range len(raw) + 1 {
		for j := i; j <= len(raw); j++ {
			d := engineBody{framing: engineByChunks}
			text, left, err := decodePieces(&d, raw[:i], raw[i:j], raw[j:])
			if text != chunkedText || left != 0 || err != nil || !d.done {
				t.Fatalf("cut at %d and %d: %q, %d left, %v, done %v", i, j, text, left, err, d.done)
			}
		}
	}
}

// The same for random bodies, chunk sizes and pieces, against an encoder that is not ours.
func TestEngineBodyProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chunks := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 3000), 0, 8).Draw(t, "chunks")
		surplus := rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "surplus")
		var raw, want bytes.Buffer
		w := httputil.NewChunkedWriter(&raw)
		for _, c := range chunks {
			w.Write(c)
			want.Write(c)
		}
		w.Close()
		raw.WriteString("\r\n")
		raw.Write(surplus)
		d := engineBody{framing: engineByChunks}
		if rapid.Bool().Draw(t, "by length") {
			d = engineBody{framing: engineByLength, left: int64(want.Len()), done: want.Len() == 0}
			raw.Reset()
			raw.Write(want.Bytes())
			raw.Write(surplus)
		}
		var pieces [][]byte
		for raw.Len() > 0 {
			pieces = append(pieces, raw.Next(rapid.IntRange(1, 5000).Draw(t, "piece")))
		}
		if d.done {
			return
		}
		text, left, err := decodePieces(&d, pieces...)
		if err != nil || !d.done || text != want.String() || left != len(surplus) {
			t.Fatalf("%d bytes of %d, %d left of %d, %v", len(text), want.Len(), left, len(surplus), err)
		}
	})
}

func TestEngineChunkExtensionOfTheLargestSize(t *testing.T) {
	d := engineBody{framing: engineByChunks}
	extension := strings.Repeat("a", engineMaxChunkExtension-1) // and the line's CR
	text, _, err := decodePieces(&d, []byte("000000000000005;"+extension+"\r\nhello\r\n0\r\n\r\n"))
	if text != "hello" || err != nil || !d.done {
		t.Fatalf("%q, %v", text, err)
	}
}

func TestEngineChunksRefuseTheAmbiguous(t *testing.T) {
	for name, raw := range map[string]string{
		"no size":                "\r\nhello\r\n",
		"sign":                   "+5\r\nhello\r\n",
		"negative":               "-5\r\nhello\r\n",
		"0x":                     "0x5\r\nhello\r\n",
		"space first":            " 5\r\nhello\r\n",
		"space behind":           "5 \r\nhello\r\n",
		"space before extension": "5 ;a\r\nhello\r\n",
		"letters":                "5g\r\nhello\r\n",
		"sixteen digits":         "0000000000000005\r\nhello\r\n",
		"overflow":               "fffffffffffffffff\r\nhello\r\n",
		"bare LF after the size": "5\nhello\r\n",
		"CR without LF":          "5\rxhello\r\n",
		"bare LF in extension":   "5;a\nhello\r\n",
		"NUL in extension":       "5;\x00\r\nhello\r\n",
		"long extension":         "5;" + strings.Repeat("a", engineMaxChunkExtension) + "\r\nhello\r\n",
		"payload too long":       "5\r\nhello!\r\n",
		"bare LF after payload":  "5\r\nhello\n",
		"payload too short":      "5\r\nhell\r\n0\r\n\r\n",
		"bare LF at the end":     "0\r\n\n",
		"folded trailer":         "0\r\nX: 1\r\n 2\r\n\r\n",
		"trailer without name":   "0\r\n: 1\r\n\r\n",
		"bare LF in trailer":     "0\r\nX: 1\n\r\n",
		"NUL in trailer":         "0\r\nX: \x00\r\n\r\n",
		"long trailer":           "0\r\nX: " + strings.Repeat("a", engineMaxTrailer) + "\r\n\r\n",
		"final CR without LF":    "0\r\n\rx",
	} {
		for how, pieces := range map[string][][]byte{"whole": {[]byte(raw)}, "by bytes": bytes.SplitAfter([]byte(raw), nil)} {
			d := engineBody{framing: engineByChunks}
			if _, _, err := decodePieces(&d, pieces...); !errors.Is(err, errUpstreamBad) || d.done {
				t.Errorf("%s, %s: %v, done %v", name, how, err, d.done)
			}
		}
	}
}

// A chunked answer cut at every offset, in order or by reset, is never taken for whole, and never loses what came.
func TestUpstreamCutAtEveryOffset(t *testing.T) {
	whole := chunkedHead + chunkedRaw
	e := newScriptedEngine(t, func(c *engineSide) {
		var at int
		var reset bool
		_, told := c.request()
		fmt.Sscan(string(told), &at, &reset)
		say(c, whole[:at])
		if reset {
			c.reset()
		}
	})
	u := newTestUpstream(t, upstreamConfig{})
	for at := range len(whole) {
		for _, reset := range []bool{false, true} {
			r, fault := u.Do(t.Context(), callTo(e.addr, fmt.Sprint(at, reset)))
			if fault != nil {
				// A reset may overtake what was sent before it.
				if at >= len(chunkedHead) && !reset {
					t.Fatalf("cut at %d: %v", at, fault)
				}
				if fault.Kind != upstreamFaultDied || !fault.Reached || !reset && fault.Received != (at > 0) {
					t.Fatalf("cut at %d, reset %v: %v, received %v, reached %v", at, reset, fault, fault.Received, fault.Reached)
				}
				continue
			}
			text, err := allOf(r)
			want := errUpstreamCut
			if reset {
				want = errUpstreamReset
			}
			if !errors.Is(err, want) || !errors.Is(err, errUpstreamCut) || errors.Is(err, errUpstreamReset) != reset || r.Ended() {
				t.Fatalf("cut at %d, reset %v: %v, ended %v", at, reset, err, r.Ended())
			}
			d := engineBody{framing: engineByChunks}
			if full, _, _ := decodePieces(&d, []byte(whole[len(chunkedHead):at])); text != full && (!reset || !strings.HasPrefix(full, text)) {
				t.Fatalf("cut at %d, reset %v: %q, want %q", at, reset, text, full)
			}
			if _, again := r.Next(); again != err {
				t.Fatalf("the error did not stay: %v", again)
			}
			r.Close(true)
		}
	}
	if n := u.idle.count(); n != 0 {
		t.Fatalf("%d kept", n)
	}
}

func TestUpstreamLengthCut(t *testing.T) {
	e := newScriptedEngine(t, func(c *engineSide) {
		c.request()
		say(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello")
	})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	defer r.Close(true)
	if text, err := allOf(r); text != "hello" || !errors.Is(err, errUpstreamCut) || errors.Is(err, errUpstreamReset) {
		t.Fatalf("%q, %v", text, err)
	}
}

// A body whose end is the end of the connection is not whole after a reset.
func TestUpstreamResetIsNoCleanEnd(t *testing.T) {
	read := make(chan struct{})
	e := newScriptedEngine(t, func(c *engineSide) {
		c.request()
		say(c, "HTTP/1.1 200 OK\r\n\r\nhello")
		<-read
		c.reset()
	})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	defer r.Close(true)
	for text := ""; text != "hello"; {
		data, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		text += string(data)
	}
	close(read)
	if _, err := r.Next(); !errors.Is(err, errUpstreamReset) || r.Ended() {
		t.Fatalf("%v", err)
	}
}

func TestUpstreamBadChunkGivesWhatCameBefore(t *testing.T) {
	e := newScriptedEngine(t, answering(chunkedHead+"5\r\nhello\r\n3\r\nyouX\r\n0\r\n\r\n"))
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	if text, err := allOf(r); text != "helloyou" || !errors.Is(err, errUpstreamBad) {
		t.Fatalf("%q, %v", text, err)
	}
	r.Close(true)
	if u.idle.count() != 0 {
		t.Fatal("kept")
	}
}

// Chunks that arrive together come as one piece, the end known with it.
func TestUpstreamChunksTogether(t *testing.T) {
	e := newScriptedEngine(t, answering(chunkedHead+chunkedRaw))
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	defer r.Close(true)
	data, err := r.Next()
	if string(data) != chunkedText || err != nil || !r.Ended() {
		t.Fatalf("%q, %v, ended %v", data, err, r.Ended())
	}
}

// Bytes arrive one at a time, and by Read into small pieces: the same body.
func TestUpstreamByteByByte(t *testing.T) {
	e := newScriptedEngine(t, func(c *engineSide) {
		for {
			if r, _ := c.request(); r == nil {
				return
			}
			for i := range chunkedHead + chunkedRaw {
				say(c, (chunkedHead + chunkedRaw)[i:i+1])
			}
		}
	})
	u := newTestUpstream(t, upstreamConfig{})
	for _, size := range []int{1, 3, 4096} {
		r := u.mustDo(t, callTo(e.addr, "x"))
		r.SetSilence(engineTestPatience)
		got, err := io.ReadAll(bufio.NewReaderSize(readerOf(r.Read), max(16, size)))
		if string(got) != chunkedText || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
		r.Close(true)
	}
	r := u.mustDo(t, callTo(e.addr, "x"))
	defer r.Close(true)
	var one [1]byte
	var got string
	for {
		n, err := r.Read(one[:])
		got += string(one[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got != chunkedText || !r.Reused || e.conns.Load() != 1 {
		t.Fatalf("%q, reused %v", got, r.Reused)
	}
}

type readerOf func([]byte) (int, error)

func (f readerOf) Read(p []byte) (int, error) { return f(p) }

// A body in bulk, then tokens, then bulk again: buffers change, bytes do not.
func TestUpstreamBuffersChange(t *testing.T) {
	var parts []string
	for i := range 12 {
		parts = append(parts, fmt.Sprintf("token %d ", i))
		if i%4 < 2 {
			parts[i] = strings.Repeat(parts[i], 9000)
		}
	}
	next := make(chan string, len(parts))
	end := sync.OnceFunc(func() { close(next) })
	e := newScriptedEngine(t, func(c *engineSide) {
		c.request()
		say(c, chunkedHead)
		for part := range next {
			fmt.Fprintf(c, "%x\r\n%s\r\n", len(part), part)
		}
		say(c, "0\r\n\r\n")
	})
	u := newTestUpstream(t, upstreamConfig{})
	r := u.mustDo(t, callTo(e.addr, "x"))
	defer r.Close(true)
	defer end()
	for i, part := range parts {
		next <- part
		for got := ""; got != part; {
			data, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			got += string(data)
			if !strings.HasPrefix(part, got) {
				t.Fatalf("part %d differs within %d bytes", i, len(got))
			}
		}
		switch {
		case i%4 == 1 && r.big == nil:
			t.Fatalf("part %d in bulk came by small reads", i)
		case i%4 == 3 && r.big != nil:
			t.Fatalf("a big buffer was held for token %d", i)
		}
	}
	end()
	mustRead(t, r, "")
	if string(r.ContentType()) != "text/event-stream" {
		t.Fatalf("the body ran over the head: %q", r.ContentType())
	}
}

func TestUpstreamSilence(t *testing.T) {
	for name, set := range map[string]func(r *upstreamReply){
		"silence": func(r *upstreamReply) { r.SetSilence(40 * time.Millisecond) },
		"instant": func(r *upstreamReply) { r.SetReadBy(time.Now().Add(40 * time.Millisecond)) },
	} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan error, 1)
			e := newScriptedEngine(t, func(c *engineSide) {
				c.request()
				say(c, chunkedHead+"5\r\nhello\r\n")
				closed <- c.ended()
			})
			u := newTestUpstream(t, upstreamConfig{})
			r := u.mustDo(t, callTo(e.addr, "x"))
			set(r)
			if text, err := allOf(r); text != "hello" || !errors.Is(err, errUpstreamSilent) || errors.Is(err, errUpstreamCut) {
				t.Fatalf("%q, %v", text, err)
			}
			r.Close(true)
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A deadline of one call is not left on the connection for the next.
func TestUpstreamDeadlinesEndWithTheCall(t *testing.T) {
	e := newScriptedEngine(t, answering(okAnswer))
	u := newTestUpstream(t, upstreamConfig{})
	call := callTo(e.addr, strings.Repeat("x", 100<<10))
	r := u.mustDo(t, call)
	r.SetSilence(time.Hour)
	r.SetReadBy(time.Now().Add(time.Hour))
	mustRead(t, r, "ok")
	conn := r.conn
	r.Close(true)
	if !conn.readBy.IsZero() || !conn.writeBy.IsZero() {
		t.Fatalf("left: %v, %v", conn.readBy, conn.writeBy)
	}
}

func FuzzChunked(f *testing.F) {
	f.Add([]byte(chunkedRaw), uint16(7), uint16(20))
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"), uint16(1), uint16(4))
	f.Add([]byte("0\r\nX: 1\r\n\r\nsurplus"), uint16(3), uint16(9))
	f.Add([]byte("ffffffffffffffff\r\n"), uint16(3), uint16(9))
	f.Fuzz(func(t *testing.T, raw []byte, i, j uint16) {
		a := min(int(i), len(raw))
		b := min(max(int(j), a), len(raw))
		whole := engineBody{framing: engineByChunks}
		text, left, err := decodePieces(&whole, raw)
		split := engineBody{framing: engineByChunks}
		textToo, leftToo, errToo := decodePieces(&split, raw[:a], raw[a:b], raw[b:])
		if text != textToo || left != leftToo || (err == nil) != (errToo == nil) || whole != split {
			t.Fatalf("whole: %q %d %v %+v; split: %q %d %v %+v", text, left, err, whole, textToo, leftToo, errToo, split)
		}
		if len(raw) > 4096 { // net/http also bounds the share of framing
			return
		}
		// What we take for whole, the standard library takes for whole and reads the same.
		if whole.done {
			std, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(raw)))
			if string(std) != text || err != nil {
				t.Fatalf("we read %q, net/http %q, %v", text, std, err)
			}
		}
	})
}
