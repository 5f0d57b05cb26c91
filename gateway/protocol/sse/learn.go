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
	if t.isDone() { // to a message or response it means nothing: old engines send it behind an error too
		t.seen.Done = t.seen.Done || t.opt.Shape == protocol.ChatShape
		return stripNothing
	}
	w := &t.walk
	t.countText(w.textBytes)
	t.seen.Finishes += w.finishes
	if w.failed || w.kind == kindFailed || t.isError {
		if !t.seen.Failed && w.failureWhole {
			t.seen.ErrorBody = append([]byte(nil), w.failure...)
		}
		t.seen.Fruitless = t.seen.Fruitless || t.seen.Events == t.seen.Waiting+1
		t.seen.Failed = true
	}
	if w.kind == kindWaiting {
		t.seen.Waiting++
	}
	if !w.whole() {
		return stripNothing
	}
	switch t.opt.Shape {
	case protocol.ResponsesShape:
		t.learnResponse()
	case protocol.MessagesShape:
		t.learnMessage()
	default:
		return t.learnChat()
	}
	return stripNothing
}

// learnChat takes the usage of a chunk. Groq has it once more, at times only, in a member of its own: that one counts
// where no other does, and stays where it is.
func (t *Tap) learnChat() strip {
	w := &t.walk
	switch w.usageIn {
	case wordXGroq:
		if !t.top {
			t.takeUsage()
		}
		return stripNothing
	case wordUsage:
		t.top = t.takeUsage() || t.top
	default:
		return stripNothing
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

// learnResponse takes the usage of a response that has ended, and its id.
func (t *Tap) learnResponse() {
	w := &t.walk
	if n := len(w.id); t.seen.ResponseID == "" && w.idWhole && n > 0 && bytes.IndexByte(w.id, '\\') < 0 {
		t.seen.ResponseID = string(w.id[1 : n-1])
	}
	if w.kind != kindEnd && w.kind != kindFailed {
		return
	}
	t.seen.Done = t.seen.Done || w.kind == kindEnd
	if w.usageIn != wordNone {
		t.takeUsage()
	}
}

// learnMessage merges what message_start and message_delta say of the usage. Only a message_delta knows how long the
// answer was.
func (t *Tap) learnMessage() {
	w := &t.walk
	switch w.kind {
	case kindStart:
		t.tally = protocol.Tally{}
		if t.addUsage() {
			t.seen.Opening, _ = t.tally.Usage()
		}
	case kindDelta:
		var own protocol.Tally
		if !t.addUsage() || !own.Add(w.usage) || !own.Completed() {
			return
		}
		if u, ok := t.tally.Usage(); ok {
			t.seen.Usage = u
		}
	case kindEnd:
		t.seen.Done = true
	}
}

// addUsage merges the usage of the event, which stands in the message or, in older engines' message_start, beside it.
func (t *Tap) addUsage() bool {
	w := &t.walk
	return w.usageIn != wordNone && w.usageWhole && t.tally.Add(w.usage)
}

// takeUsage takes the event's usage as the last word if it can be believed. // I4
func (t *Tap) takeUsage() bool {
	u, ok := protocol.ParseUsage(t.walk.usage)
	if ok = ok && t.walk.usageWhole; ok {
		t.seen.Usage = u
	}
	return ok
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
	if !w.whole() || w.texts != 1 || w.finishes > 0 || w.failed || w.usageIn != wordNone || w.kind != kindOther || t.isDone() {
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
