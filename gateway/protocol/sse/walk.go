package sse

import (
	"bytes"

	"github.com/headgate/headgate/gateway/protocol"
)

// MaxUsage and MaxError are how much of a usage or an error is kept, in bytes; a longer one is not read. A usage has
// about two hundred, one with many iterations a few thousand.
const (
	MaxUsage = 64 << 10
	MaxError = 4 << 10
)

// keptCapture is the largest buffer for them that outlives its stream.
const keptCapture = 4 << 10

// walker reads one event's JSON piece by piece and keeps of it what matters. It is lenient: what is not JSON makes it
// learn less. The zero value is ready. Offsets count from the event's first byte.
type walker struct {
	// Where it is.
	depth   int    // containers open
	objects uint64 // bit d: the container at depth d is an object; deeper ones count as arrays
	state   state
	over    bool // the root value has ended
	broken  bool
	top     word // the name at depth 1
	part    word // the name at depth 3: a part of a choice
	name    word // the last name read
	comma   int  // offset of the last comma at depth 1, 0 = none
	nameAt  int  // offset of the last name at depth 1

	// The string being read.
	inString, escaped bool
	isName, isText    bool
	spelled           [maxSpelled]byte // its first bytes, of a name or a short value of interest
	spelledLen        int              // len(spelled)+1 = longer

	// What is being kept.
	capture      word // wordUsage, wordError, wordID or none
	captureDepth int
	keepAt       int // where it begins in the bytes being read

	// What was found.
	kind                 kind
	hasChoices           bool
	choices              int // items of the list at depth 1
	finishes             int
	texts                int // strings of generated text
	textBytes            int64
	textFrom, textTo     int  // the last of them, without quotes
	usageIn              word // wordUsage: at the top; the name of what it stands in; none
	usage                []byte
	usageWhole           bool
	cutFrom, cutTo       int  // the usage member at the top with one comma
	cutComma             bool // the comma is the one behind it
	failed, failureWhole bool
	failure              []byte
	id                   []byte // of the response, with its quotes
	idWhole              bool
}

type state uint8

const (
	wantValue state = iota
	wantName        // in an object, where a name may come
	wantRest        // behind a value or name, or inside a number or literal
)

// whole reports whether the root value was read to its end.
func (w *walker) whole() bool { return w.over && !w.broken }

func (w *walker) reset() { *w = walker{usage: w.usage[:0], failure: w.failure[:0], id: w.id[:0]} }

// forget gives back what one stream made grow.
func (w *walker) forget() {
	w.reset()
	if cap(w.usage) > keptCapture {
		w.usage = nil
	}
	if cap(w.failure) > keptCapture {
		w.failure = nil
	}
}

// feed reads the next bytes; off is the offset of the first of them.
func (w *walker) feed(b []byte, off int) {
	w.keepAt = 0
	for i := 0; i < len(b); i++ {
		if w.over {
			w.broken = w.broken || b[i] > ' '
			continue
		}
		if w.inString {
			if i = w.readString(b, i); i == len(b) {
				break
			}
			w.endString(b, i, off)
			continue
		}
		switch c := b[i]; c {
		case ' ', '\t', '\r', '\n':
		case '"':
			w.startString(i, off)
		case '{', '[':
			w.startValue(c, i, off)
			w.push(c == '{')
		case '}', ']':
			w.pop(b, i, off)
		case ':':
			w.state = wantValue
		case ',':
			w.readComma(off + i)
		default:
			if w.state == wantValue {
				w.startValue(c, i, off)
			}
		}
	}
	if w.capture != wordNone {
		w.keep(b)
	}
}

func (w *walker) isObject() bool { return w.depth < 64 && w.objects>>w.depth&1 == 1 }

func (w *walker) push(object bool) {
	w.depth++
	w.state = wantValue
	if w.depth >= 64 {
		return
	}
	w.objects &^= 1 << w.depth
	if object {
		w.objects |= 1 << w.depth
		w.state = wantName
	}
}

func (w *walker) pop(b []byte, i, off int) {
	if w.depth == 0 || w.depth < 64 && w.isObject() != (b[i] == '}') {
		w.over, w.broken = true, true
		return
	}
	w.depth--
	w.state = wantRest
	w.endValue(b, i, off)
	w.over = w.depth == 0
}

func (w *walker) readComma(at int) {
	w.state = wantValue
	if w.isObject() {
		w.state = wantName
	}
	if w.depth == 1 {
		if w.cutComma {
			w.cutTo, w.cutComma = at+1, false
		}
		w.comma = at
	}
}

// startValue notes that a value begins with c.
func (w *walker) startValue(c byte, i, off int) {
	w.state = wantRest
	switch {
	case w.depth == 1:
		w.startMember(c, i)
	case w.depth == 2 && w.top == wordChoices:
		w.choices++
	case w.depth == 2 && w.isObject():
		w.startNested(c, i)
	}
}

// startMember notes that the value of a member of the event begins.
func (w *walker) startMember(c byte, i int) {
	switch w.top {
	case wordChoices:
		w.hasChoices = c == '['
		w.choices = 0
	case wordUsage:
		if c == '{' {
			w.usageIn = wordUsage
			w.keepFrom(wordUsage, i)
			w.cutFrom, w.cutComma = w.comma, w.comma == 0
			if w.cutComma {
				w.cutFrom = w.nameAt
			}
		}
	case wordError:
		if c != 'n' {
			w.failed = true
			w.startError(c, i)
		}
	}
}

// startNested notes that a value begins one level below: what a response or message says of itself.
func (w *walker) startNested(c byte, i int) {
	switch {
	case w.name == wordUsage && c == '{' && (w.top == wordResponse || w.top == wordMessage || w.top == wordXGroq):
		if w.usageIn != wordUsage { // the one at the top goes first
			w.usageIn = w.top
			w.keepFrom(wordUsage, i)
		}
	case w.name == wordError && w.top == wordResponse:
		w.startError(c, i)
	case w.name == wordID && w.top == wordResponse && c == '"':
		w.keepFrom(wordID, i)
	}
}

func (w *walker) startError(c byte, i int) {
	if c == '{' || c == '"' {
		w.keepFrom(wordError, i)
	}
}

// keepFrom begins to keep the value whose first byte stands at i.
func (w *walker) keepFrom(what word, i int) {
	w.capture, w.captureDepth, w.keepAt = what, w.depth, i
	into, whole, _ := w.kept()
	*into, *whole = (*into)[:0], true
}

// kept is where the value being kept goes, whether all of it is there, and how long it may be.
func (w *walker) kept() (into *[]byte, whole *bool, most int) {
	switch w.capture {
	case wordError:
		return &w.failure, &w.failureWhole, MaxError
	case wordID:
		return &w.id, &w.idWhole, protocol.MaxID + len(`""`)
	}
	return &w.usage, &w.usageWhole, MaxUsage
}

// endValue notes that a string or container ends with b[i].
func (w *walker) endValue(b []byte, i, off int) {
	if w.capture == wordNone || w.depth != w.captureDepth {
		return
	}
	w.keep(b[:i+1])
	if w.capture == wordUsage {
		w.cutTo = off + i + 1
	}
	w.capture = wordNone
}

// keep adds b from where the value began.
func (w *walker) keep(b []byte) {
	into, whole, most := w.kept()
	if part := b[w.keepAt:]; *whole && len(*into)+len(part) <= most {
		*into = append(*into, part...)
	} else {
		*whole = false
		*into = (*into)[:0]
	}
}

func (w *walker) startString(i, off int) {
	w.inString, w.spelledLen = true, 0
	w.isText = false
	if w.isName = w.state == wantName; w.isName {
		if w.depth == 1 {
			w.nameAt = off + i
		}
		return
	}
	w.startValue('"', i, off)
	switch {
	case w.top == wordChoices: // some repeat the delta as a message
		w.isText = w.name == wordText && (w.depth == 3 || w.depth > 3 && w.part == wordDelta)
	case w.top == wordContentBlock:
		w.isText = w.name == wordText && w.depth == 2
	case w.top == wordDelta:
		w.isText = w.name == wordText || w.depth == 1
	}
	if w.isText {
		w.texts++
		w.textFrom = off + i + 1
	}
}

// readString returns the offset of the closing quote, or len(b).
func (w *walker) readString(b []byte, i int) int {
	from := i
	for i < len(b) {
		if w.escaped {
			w.escaped = false
			i++
			continue
		}
		end := len(b)
		n := bytes.IndexByte(b[i:], '"')
		if n >= 0 {
			end = i + n
		}
		k := end
		for k > i && b[k-1] == '\\' {
			k--
		}
		odd := (end-k)&1 == 1
		if i = end; n < 0 {
			w.escaped = odd
			break
		}
		if !odd {
			break
		}
		i++
	}
	if w.isText {
		w.textBytes += int64(i - from)
	} else if room := len(w.spelled) - w.spelledLen; i-from > room {
		w.spelledLen = len(w.spelled) + 1
	} else if room > 0 {
		w.spelledLen += copy(w.spelled[w.spelledLen:], b[from:i])
	}
	return i
}

// endString ends the string whose closing quote is b[i].
func (w *walker) endString(b []byte, i, off int) {
	w.inString = false
	spelled := w.spelled[:0]
	if w.spelledLen <= len(w.spelled) {
		spelled = w.spelled[:w.spelledLen]
	}
	if w.isName {
		w.state = wantRest
		switch w.name = wordOf(spelled); w.depth {
		case 1:
			w.top = w.name
		case 3:
			w.part = w.name
		}
		return
	}
	switch {
	case w.isText:
		w.textTo = off + i
	case w.name == wordFinishReason && w.top == wordChoices && w.depth == 3, w.name == wordStopReason && w.top == wordDelta && w.depth == 2:
		w.finishes++
	case w.depth == 1 && w.top == wordType:
		w.kind = kindOf(spelled)
	case w.depth == 1 && w.top == wordObject && string(spelled) == "error":
		w.failed = true
	}
	w.endValue(b, i, off)
}
