package protocol

import "github.com/headgate/headgate/gateway/protocol/lex"

// TotalOf reads usage.total_tokens of an answer that was not streamed: where an answer has no tokens of its own, it is
// the prompt's. It is false if there is none or it cannot be believed.
func TotalOf(body []byte) (tokens int64, ok bool) {
	c := lex.Cursor{B: body}
	c.Start()
	if c.Peek() != '{' {
		return 0, false
	}
	for c.Enter(); c.Member(); {
		if string(c.Key) != "usage" || c.Peek() != '{' {
			c.Skip()
			continue
		}
		ok = false
		for c.Enter(); c.Member(); {
			if string(c.Key) == "total_tokens" && c.Peek() != 'n' {
				tokens, ok = c.Int()
			} else {
				c.Skip()
			}
		}
	}
	if !c.End() || !ok || tokens < 0 || tokens > MaxUsage {
		return 0, false
	}
	return tokens, true
}
