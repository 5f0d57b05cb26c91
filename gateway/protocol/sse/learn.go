package sse

import (
	"bytes"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/lex"
)

// strip says what has to be taken out of an event.
type strip uint8

const (
	stripNothing strip = iota
	stripUsage         // the usage member
	stripEvent
)

// read takes bytes of the current line, without line ends.
func (t *Tap) read(b []byte) {
	at := t.size
	t.size += len(b)
	t.weight += len(b)
	skip := t.line.read(b)
	if t.line.kind < lineSpace || t.line.kind > lineData {
		return
	}
	if !t.line.begun {
		t.line.begun = true
		t.startData()
	}
	if rest := b[skip:]; len(rest) > 0 {
		t.dataLen += copy(t.data[t.dataLen:], rest)
		t.walk.feed(rest, at+skip)
	}
}

// startData begins a data line. The LF between two of them is white space to JSON.
func (t *Tap) startData() {
	if t.hasData {
		t.dataLen += copy(t.data[t.dataLen:], "\n")
	}
	t.hasData = true
}

// learn takes what the event shows, now that it is whole, and says what has to be taken out.
func (t *Tap) learn() strip {
	if !t.hasData {
		return stripNothing
	}
	t.seen.Events++
	if t.isDone() {
		t.seen.Done = true
		return stripNothing
	}
	w := &t.walk
	t.countText(w.textBytes)
	t.seen.Finishes += w.finishes
	if w.failed {
		if !t.seen.Failed && w.failureWhole {
			t.seen.ErrorBody = append([]byte(nil), w.failure...)
		}
		t.seen.Failed = true
	}
	if !w.whole() || !w.hasUsage {
		return stripNothing
	}
	if u, ok := protocol.ParseUsage(w.usage); ok && w.usageWhole { // I4
		t.seen.Usage = u
	}
	switch {
	case !t.opt.Strip || !w.hasChoices:
		return stripNothing
	case w.choices == 0 && !w.failed:
		return stripEvent
	case w.cutTo > 0:
		return stripUsage
	}
	return stripNothing
}

// learnRest learns from an event whose blank line never came. Half an event counts its text and is no event.
func (t *Tap) learnRest() strip {
	defer func() { t.hasData = false }()
	if t.hasData && !t.walk.whole() && !t.isDone() {
		t.countText(t.walk.textBytes)
		return stripNothing
	}
	return t.learn()
}

func (t *Tap) isDone() bool { return string(t.data[:t.dataLen]) == "[DONE]" }

func (t *Tap) countText(n int64) {
	if n > 0 {
		t.seen.Texts++
		t.seen.TextBytes += n
	}
}

// maxShape bounds the bytes remembered before and behind a chunk's text.
const maxShape = 2 << 10

// shape is an ordinary chunk without its one text: the next chunk of the same choice has the same bytes around another
// text. The suffix begins with the text's closing quote and ends with the event's blank line.
type shape struct {
	prefix, suffix []byte
}

// remember keeps the shape of the event that was just walked, if it shows nothing but one text.
func (t *Tap) remember(event []byte) {
	w := &t.walk
	if !w.whole() || w.texts != 1 || w.finishes > 0 || w.failed || w.hasUsage || t.isDone() {
		return
	}
	if event[0] == byteOrder[0] { // only there at the start of a stream
		return
	}
	if w.textFrom > maxShape || len(event)-w.textTo > maxShape || event[len(event)-1] != '\n' {
		return
	}
	t.shape.prefix = append(t.shape.prefix[:0], event[:w.textFrom]...)
	t.shape.suffix = append(t.shape.suffix[:0], event[w.textTo:]...)
}

// ordinary reads the event at the start of b if all of it is there and it differs from the remembered one only inside
// the text. It returns the event's length, or 0.
func (t *Tap) ordinary(b []byte) int {
	s := &t.shape
	if len(s.prefix) == 0 || !bytes.HasPrefix(b, s.prefix) {
		return 0
	}
	from := len(s.prefix)
	end := lex.String(b, from-1)
	if end < 0 || !bytes.HasPrefix(b[end-1:], s.suffix) {
		return 0
	}
	text := b[from : end-1]
	if bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0 {
		return 0
	}
	t.dropped = false
	t.seen.Events++ // I6
	t.countText(int64(len(text)))
	return end - 1 + len(s.suffix)
}
