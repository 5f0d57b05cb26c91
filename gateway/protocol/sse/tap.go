package sse

import (
	"bytes"

	"github.com/headgate/headgate/gateway/protocol"
)

// MaxHeld is the largest event that something is taken out of, in bytes. A usage chunk has a few hundred.
const MaxHeld = 16 << 10

// Options says what kind of stream it is and what is taken out of it. The zero value is a chat stream nothing is taken
// out of.
type Options struct {
	Shape   protocol.Shape
	Strip   bool // the client did not ask for usage; chat and completions only, the others always show it
	Whole   bool // an event is handed on when its end is there, unless it outgrows MaxHeld
	Choices int  // answers asked for; 0 = 1
}

// Tap watches one stream; it is not safe for concurrent use. The zero value is ready and takes nothing out; Reset
// makes it ready for another stream and keeps its memory.
type Tap struct {
	opt   Options
	seen  End
	tally protocol.Tally // of a message
	top   bool           // a usage at the top of a chunk was believed
	walk  walker
	shape shape
	line  line

	// The event being read.
	held    []byte // its bytes of earlier reads that were not handed on
	size    int    // its bytes so far
	weight  int    // the same with each line end counted as one, so that it does not depend on cuts
	gone    bool   // it outgrew MaxHeld and is handed on as it comes
	hasData bool
	isError bool                    // its field event says so
	data    [len("[DONE]") + 1]byte // the first bytes of its data
	dataLen int                     // at most len(data)

	dropped bool // the event before was taken out whole: so is the LF of its last CRLF
	afterCR bool // the last byte read was a CR that ended a line: an LF now belongs to it
}

// End is what a stream has shown so far.
type End struct {
	Usage     protocol.Usage // the engine's last word on it; Source is None if there was none
	Opening   protocol.Usage // what a message said of its prompt when it began; Source is None if nothing
	Shape     protocol.Shape // that of the Options
	Done      bool           // the API's own end was there: [DONE], message_stop, response.completed and its like
	Finishes  int            // finish reasons that are not null: one for each choice that came to its end
	Failed    bool           // an event carried an error that is not null, or said it is one
	ErrorBody []byte         // the first such error, a JSON value of at most MaxError bytes; nil if none or larger
	Fruitless bool           // Failed, and nothing of an answer came before

	ResponseID string // the first id of a Responses object of at most protocol.MaxID bytes; empty if none

	Events    int   // events with data; [DONE] and what was taken out count
	Waiting   int   // those of them that say that nothing was generated yet: response.created and its like, ping
	Texts     int   // events with generated text; an event is often more than one token
	TextBytes int64 // bytes of generated text, reasoning, tool names and arguments, as written in JSON

	Stripped   int // events taken out or shortened
	Oversized  int // events that kept their usage because they are larger than MaxHeld
	Unfinished int // bytes handed on of an event whose end has not come: see AppendBreak

	choices int
}

// Finished reports whether the answer came to its end, whatever the connection did then. A chat that shows a finish
// reason for every choice needs no [DONE]; a response has no other end than its own event.
func (e End) Finished() bool { return !e.Failed && (e.Done || e.Finishes >= max(e.choices, 1)) }

// AppendBreak appends an error event behind a stream that broke off, so that it stands alone also if the stream ended
// within an event.
func AppendBreak(dst []byte, end End, e protocol.Error) []byte {
	if end.Unfinished > 0 {
		dst = append(dst, "\n\n"...) // behind a CR the first one only completes a CRLF
	}
	return protocol.AppendEvent(dst, end.Shape, end.Events, e)
}

// NewTap returns a tap for one stream.
func NewTap(o Options) *Tap { return &Tap{opt: o} }

// Reset makes the tap new, but for its memory. Inlined it would cost its caller's stack a second Tap for as long as the
// stream lasts.
//
//go:noinline
func (t *Tap) Reset(o Options) {
	t.walk.forget()
	*t = Tap{opt: o, held: t.held[:0], walk: t.walk,
		shape: shape{prefix: t.shape.prefix[:0], suffix: t.shape.suffix[:0]}}
}

// Started reports whether an event with data was read: until then nothing of an answer has come.
func (t *Tap) Started() bool { return t.seen.Events > 0 }

// Generating reports whether an event was read that an engine does not send while the request still waits in it. An
// engine answers a Responses request with two events at once and may then be silent for as long as its queue is.
func (t *Tap) Generating() bool { return t.seen.Events > t.seen.Waiting }

// Seen is what was learned so far; it may be asked at any time.
func (t *Tap) Seen() End {
	e := t.seen
	e.Unfinished = t.size - len(t.held)
	e.Shape, e.choices = t.opt.Shape, t.opt.Choices
	return e
}

// Feed reads the next bytes and calls out for what is to be handed on, in order. The slices are parts of chunk or the
// tap's own memory, good until out returns; none is empty.
func (t *Tap) Feed(chunk []byte, out func([]byte)) {
	w := window{chunk: chunk, out: out}
	cr, lf := -1, -1
	for i := 0; i < len(chunk); {
		if t.afterCR {
			t.afterCR = false
			if chunk[i] == '\n' {
				i++
				t.lateLF(&w, i)
				continue
			}
		}
		if t.size == 0 {
			if n := t.ordinary(chunk[i:]); n > 0 {
				i += n
				w.from = i
				continue
			}
		}
		cr, lf = next(chunk, cr, i, '\r'), next(chunk, lf, i, '\n')
		end := min(cr, lf)
		t.read(chunk[i:end])
		if end == len(chunk) {
			break
		}
		i = end + 1
		if chunk[end] == '\r' {
			if i == len(chunk) {
				t.afterCR = true
			} else if chunk[i] == '\n' {
				i++
			}
		}
		t.endLine(&w, end, i)
	}
	t.keep(&w)
}

// End ends a stream that broke off: what is held back stays back, but is learned from if it is whole.
func (t *Tap) End() End {
	t.learnRest()
	return t.Seen()
}

// Close ends a stream that ended cleanly: what is held back is handed on, treated as if its blank line had come.
func (t *Tap) Close(out func([]byte)) End {
	strip := t.learnRest()
	if len(t.held) > 0 {
		t.decide(&window{out: out}, 0, strip)
	}
	return t.Seen()
}

// window is the chunk being read: chunk[:pass] is dealt with, chunk[pass:from] is to be handed on, chunk[from:] is
// the current event.
type window struct {
	chunk      []byte
	pass, from int
	out        func([]byte)
}

// hand hands on everything before to.
func (w *window) hand(to int) {
	if to > w.pass {
		w.out(w.chunk[w.pass:to])
	}
	w.pass = to
}

// lateLF takes the LF of a CRLF that was cut in two; it stands before i and shares the fate of its line.
func (t *Tap) lateLF(w *window, i int) {
	switch {
	case t.size > 0:
		t.size++
		return
	case t.dropped:
		w.pass = i
	}
	w.from = i
}

// endLine ends the line whose content ends at end and whose line end ends at i.
func (t *Tap) endLine(w *window, end, i int) {
	blank := t.line.blank()
	comment := t.line.kind == lineComment && t.weight == t.line.length
	if t.line.endsAsData() {
		t.startData()
	}
	t.isError = t.isError || t.line.isError()
	t.line.reset()
	t.size += i - end
	t.weight++
	switch {
	case blank:
		strip := t.learn()
		if len(t.held) == 0 && t.size == i-w.from {
			t.remember(w.chunk[w.from:i])
		}
		t.decide(w, i, strip)
	case comment: // nothing of an event yet: it need not wait
		t.handHeld(w)
		w.from = i
		t.reset()
	}
}

// decide ends the event that ends at i of the window.
func (t *Tap) decide(w *window, i int, s strip) {
	t.dropped = false
	switch {
	case s == stripNothing || t.weight > MaxHeld:
		if s != stripNothing {
			t.seen.Oversized++
		}
		t.handHeld(w)
	case s == stripEvent:
		t.seen.Stripped++
		t.dropped = true
		w.hand(w.from)
		w.pass = i
		t.held = t.held[:0]
	case len(t.held) == 0:
		t.seen.Stripped++
		w.hand(w.from + t.walk.cutFrom)
		w.pass = w.from + t.walk.cutTo
	default:
		t.seen.Stripped++
		t.held = append(t.held, w.chunk[:i]...)
		w.out(t.held[:t.walk.cutFrom])
		w.out(t.held[t.walk.cutTo:])
		t.held = t.held[:0]
		w.pass = i
	}
	w.from = i
	t.reset()
}

func (t *Tap) strips() bool { return t.opt.Strip && t.opt.Shape == protocol.ChatShape }

func (t *Tap) handHeld(w *window) {
	if len(t.held) > 0 {
		w.out(t.held)
		t.held = t.held[:0]
	}
}

// reset makes ready for the next event.
func (t *Tap) reset() {
	t.walk.reset()
	t.size, t.weight, t.dataLen = 0, 0, 0
	t.gone, t.hasData, t.isError = false, false, false
}

// keep ends the chunk: what is undecided is held, everything else handed on.
func (t *Tap) keep(w *window) {
	n := len(w.chunk)
	if !t.strips() && !t.opt.Whole || t.gone || w.from == n {
		w.hand(n)
		return
	}
	if t.weight > MaxHeld {
		t.gone = true
		t.handHeld(w)
		w.hand(n)
		return
	}
	w.hand(w.from)
	t.held = append(t.held, w.chunk[w.from:]...)
}

// next returns the offset of the first c at or after i, len(b) if there is none; last is what it returned before.
func next(b []byte, last, i int, c byte) int {
	if last >= i {
		return last
	}
	if n := bytes.IndexByte(b[i:], c); n >= 0 {
		return i + n
	}
	return len(b)
}
