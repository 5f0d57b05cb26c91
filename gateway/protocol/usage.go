package protocol

import "github.com/headgate/headgate/gateway/protocol/lex"

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

// ParseUsage reads a usage object, with the names of chat and completions or those of responses and messages. Figures
// that are absent or null are 0, but one of prompt and completion must be there. It is false if a figure is negative,
// not written as a whole number, or above MaxUsage. More cached than prompt tokens are cut to the prompt's.
func ParseUsage(object []byte) (Usage, bool) {
	c := lex.Cursor{B: object}
	c.Start()
	if c.Peek() != '{' {
		return Usage{}, false
	}
	u := Usage{Source: Backend}
	known, believed := false, true
	for c.Enter(); c.Member(); {
		switch string(c.Key) {
		case "prompt_tokens", "input_tokens":
			known = figure(&c, &u.Prompt, &believed) || known
		case "completion_tokens", "output_tokens":
			known = figure(&c, &u.Completion, &believed) || known
		case "prompt_tokens_details", "input_tokens_details":
			if c.Peek() != '{' {
				c.Skip()
				continue
			}
			for c.Enter(); c.Member(); {
				if string(c.Key) == "cached_tokens" {
					figure(&c, &u.Cached, &believed)
				} else {
					c.Skip()
				}
			}
		default:
			c.Skip()
		}
	}
	if !c.End() || !known || !believed {
		return Usage{}, false
	}
	u.Cached = min(u.Cached, u.Prompt)
	return u, true
}

// figure reads one count into n. A null leaves n alone and is not known.
func figure(c *lex.Cursor, n *int64, believed *bool) (known bool) {
	if c.Peek() == 'n' {
		c.Skip()
		return false
	}
	v, ok := c.Int()
	if !ok || v < 0 || v > MaxUsage {
		*believed = false
		return false
	}
	*n = v
	return true
}
