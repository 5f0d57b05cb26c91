package sse

import "bytes"

// MaxCapture is how much of a usage or an error is kept, in bytes. A usage has about two hundred.
const MaxCapture = 4 << 10

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
	name    word // the last name below it
	comma   int  // offset of the last comma at depth 1, 0 = none
	nameAt  int  // offset of the last name at depth 1

	// The string being read.
	inString, escaped bool
	isName, isText    bool
	spelled           [20]byte // its first bytes, of a name or a short value of interest
	spelledLen        int      // len(spelled)+1 = longer

	// What is being kept.
	capture word // wordUsage, wordError or none
	keepAt  int  // where it begins in the bytes being read

	// What was found.
	hasChoices           bool
	choices              int // items of the list at depth 1
	finishes             int
	texts                int // strings of generated text
	textBytes            int64
	textFrom, textTo     int // the last of them, without quotes
	hasUsage             bool
	usage                []byte
	usageWhole           bool
	cutFrom, cutTo       int  // the usage member with one comma
	cutComma             bool // the comma is the one behind it
	failed, failureWhole bool
	failure              []byte
}

type state uint8

const (
	wantValue state = iota
	wantName        // in an object, where a name may come
	wantRest        // behind a value or name, or inside a number or literal
)

type word uint8

const (
	wordNone word = iota
	wordChoices
	wordUsage
	wordError
	wordObject
	wordType
	wordDelta
	wordFinishReason
	wordStopReason
	wordText // any name of generated text
)

func wordOf(name []byte) word {
	switch string(name) {
	case "choices":
		return wordChoices
	case "usage":
		return wordUsage
	case "error":
		return wordError
	case "object":
		return wordObject
	case "type":
		return wordType
	case "delta":
		return wordDelta
	case "finish_reason":
		return wordFinishReason
	case "stop_reason":
		return wordStopReason
	case "content", "text", "reasoning", "reasoning_content", "arguments", "name", "refusal", "thinking", "partial_json":
		return wordText
	}
	return wordNone
}

// whole reports whether the root value was read to its end.
func (w *walker) whole() bool { return w.over && !w.broken }

func (w *walker) reset() { *w = walker{usage: w.usage[:0], failure: w.failure[:0]} }

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
	if w.depth == 2 && w.top == wordChoices {
		w.choices++
	}
	if w.depth != 1 {
		return
	}
	switch w.top {
	case wordChoices:
		w.hasChoices = c == '['
		w.choices = 0
	case wordUsage:
		if c == '{' {
			w.hasUsage, w.usageWhole = true, true
			w.usage = w.usage[:0]
			w.capture, w.keepAt = wordUsage, i
			w.cutFrom, w.cutComma = w.comma, w.comma == 0
			if w.cutComma {
				w.cutFrom = w.nameAt
			}
		}
	case wordError:
		if c != 'n' {
			w.failed = true
			if c == '{' || c == '"' {
				w.failureWhole = true
				w.failure = w.failure[:0]
				w.capture, w.keepAt = wordError, i
			}
		}
	}
}

// endValue notes that a string or container ends with b[i].
func (w *walker) endValue(b []byte, i, off int) {
	if w.capture == wordNone || w.depth != 1 {
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
	into, whole := &w.usage, &w.usageWhole
	if w.capture == wordError {
		into, whole = &w.failure, &w.failureWhole
	}
	if part := b[w.keepAt:]; *whole && len(*into)+len(part) <= MaxCapture {
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
	case w.top == wordChoices && w.depth > 2, w.top == wordDelta && w.depth > 1:
		w.isText = w.name == wordText
	case w.top == wordDelta && w.depth == 1:
		w.isText = true
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
		if w.name = wordOf(spelled); w.depth == 1 {
			w.top = w.name
		}
		return
	}
	switch {
	case w.isText:
		w.textTo = off + i
	case w.name == wordFinishReason && w.top == wordChoices, w.name == wordStopReason && w.top == wordDelta:
		w.finishes++
	case w.depth == 1 && (w.top == wordObject || w.top == wordType) && string(spelled) == "error":
		w.failed = true
	}
	w.endValue(b, i, off)
}
