package protocol

import (
	"bytes"

	"github.com/headgate/headgate/gateway/protocol/lex"
)

// Source says where a usage comes from.
type Source uint8

const (
	None      Source = iota // nothing was served, or nothing is known
	Backend                 // the engine said so
	Estimated               // counted from what passed
)

// String is the word of the usage record.
func (s Source) String() string {
	switch s {
	case Backend:
		return "backend"
	case Estimated:
		return "estimated"
	}
	return "none"
}

// Usage is what a request used, in tokens. Prompt includes Cached. The zero value is no usage.
type Usage struct {
	Prompt, Cached, Completion int64
	Source                     Source
}

// MaxUsage is the largest figure that is believed, in tokens. It leaves room to multiply by any price.
const MaxUsage = 1 << 40

// MaxID is the longest id of a Responses object that is remembered, in bytes. Engines' own have 37 to 60.
const MaxID = 256

// UsageOf reads the usage of an answer that was not streamed: the last top-level usage that is not null. It is false
// if there is none, if it cannot be believed, or if the body is not a JSON object. It works in one pass without a tree.
func UsageOf(body []byte) (Usage, bool) {
	c := lex.Cursor{B: body}
	c.Start()
	if c.Peek() != '{' {
		return Usage{}, false
	}
	var u Usage
	var found bool
	for c.Enter(); c.Member(); {
		isUsage := string(c.Key) == "usage"
		from := c.Skip()
		if isUsage && c.Why == "" && body[from] != 'n' {
			u, found = ParseUsage(body[from:c.I])
		}
	}
	if !c.End() {
		return Usage{}, false
	}
	return u, found
}

// ParseUsage reads one usage object, of any of the APIs: see Tally.
func ParseUsage(object []byte) (Usage, bool) {
	var t Tally
	if !t.Add(object) {
		return Usage{}, false
	}
	return t.Usage()
}

// ResponseIDOf reads the id of a Responses object that was not streamed: the top-level id. It is empty if there is none,
// if it is written with escapes, or if it is longer than MaxID.
func ResponseIDOf(body []byte) string {
	c := lex.Cursor{B: body}
	c.Start()
	if c.Peek() != '{' {
		return ""
	}
	var id []byte
	for c.Enter(); c.Member(); {
		isID := string(c.Key) == "id" && c.Peek() == '"'
		from := c.Skip()
		if isID && c.Why == "" {
			id = body[from+1 : c.I-1]
		}
	}
	if !c.End() || len(id) > MaxID || bytes.IndexByte(id, '\\') >= 0 {
		return ""
	}
	return string(id)
}
