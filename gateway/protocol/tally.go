package protocol

import "github.com/headgate/headgate/gateway/protocol/lex"

// Tally is what the usage objects of one answer say together. Each API counts the prompt in its own way:
//
//   - Chat and completions: prompt_tokens is the whole prompt; prompt_tokens_details.cached_tokens is a part of it.
//   - Responses: input_tokens is the whole prompt; input_tokens_details.cached_tokens is a part of it.
//   - Messages: input_tokens is only what no cache served. The prompt is input_tokens + cache_read_input_tokens +
//     cache_creation_input_tokens, of which cache_read_input_tokens are cached. An engine that knows of no cache leaves
//     both fields out (older vLLM), and input_tokens is the whole prompt: the sum says so too.
//   - Messages with compaction: the top-level figures leave out what the compaction cost; the entries of iterations
//     whose type is compaction are added to them.
//
// A Messages stream spreads one usage over message_start and message_delta, and a figure that is repeated there is the
// new total. So Add replaces, figure by figure; it never sums. The zero value has heard of no usage.
type Tally struct {
	prompt, input, cached, cacheRead, cacheWrite, completion figure
	compaction                                               Usage
}

// figure is one count; a null is as good as absent.
type figure struct {
	n     int64
	known bool
}

// Add takes what the object says over what was known before. It is false, and nothing is taken, if the object is not a
// JSON object or a figure in it is negative, not written as a whole number, or above MaxUsage.
func (t *Tally) Add(object []byte) bool {
	c := lex.Cursor{B: object}
	c.Start()
	if c.Peek() != '{' {
		return false
	}
	next := *t
	if !next.read(&c) || !c.End() {
		return false
	}
	*t = next
	return true
}

// Usage is false as long as neither a prompt nor a completion is known; the one that is not known is 0. More cached
// than prompt tokens are cut to the prompt's.
func (t *Tally) Usage() (Usage, bool) {
	u := Usage{Prompt: t.prompt.n, Cached: t.cached.n, Completion: t.completion.n, Source: Backend}
	if !t.prompt.known {
		u.Prompt = t.input.n
		if !t.cached.known {
			u.Prompt += t.cacheRead.n + t.cacheWrite.n
			u.Cached = t.cacheRead.n
		}
	}
	u.Prompt += t.compaction.Prompt
	u.Cached += t.compaction.Cached
	u.Completion += t.compaction.Completion
	if !t.prompt.known && !t.input.known && !t.completion.known || u.Prompt > MaxUsage || u.Completion > MaxUsage {
		return Usage{}, false
	}
	u.Cached = min(u.Cached, u.Prompt)
	return u, true
}

// Completed reports whether the answer's own length is known, not the prompt's alone.
func (t *Tally) Completed() bool { return t.completion.known }

// read takes the members of the object the cursor stands at.
func (t *Tally) read(c *lex.Cursor) (believed bool) {
	believed = true
	for c.Enter(); c.Member(); {
		var f *figure
		switch string(c.Key) {
		case "prompt_tokens":
			f = &t.prompt
		case "input_tokens":
			f = &t.input
		case "completion_tokens", "output_tokens":
			f = &t.completion
		case "cache_read_input_tokens":
			f = &t.cacheRead
		case "cache_creation_input_tokens":
			f = &t.cacheWrite
		case "prompt_tokens_details", "input_tokens_details":
			believed = t.details(c) && believed
			continue
		case "iterations":
			believed = t.iterations(c) && believed
			continue
		default:
			c.Skip()
			continue
		}
		believed = f.read(c) && believed
	}
	return believed
}

func (t *Tally) details(c *lex.Cursor) (believed bool) {
	if c.Peek() != '{' {
		c.Skip()
		return true
	}
	believed = true
	for c.Enter(); c.Member(); {
		if string(c.Key) == "cached_tokens" {
			believed = t.cached.read(c) && believed
		} else {
			c.Skip()
		}
	}
	return believed
}

// iterations adds up the entries that are compactions; what is no object says nothing.
func (t *Tally) iterations(c *lex.Cursor) (believed bool) {
	if c.Peek() != '[' {
		c.Skip()
		return true
	}
	t.compaction = Usage{}
	believed = true
	for c.Enter(); c.Item(); {
		isObject := c.Peek() == '{'
		from := c.Skip()
		if c.Why != "" || !isObject {
			continue
		}
		entry := c.B[from:c.I]
		if memberText(entry, "type") != "compaction" {
			continue
		}
		u, ok := ParseUsage(entry)
		t.compaction.Prompt += u.Prompt
		t.compaction.Cached += u.Cached
		t.compaction.Completion += u.Completion
		believed = ok && believed
	}
	return believed
}

// memberText is the string member of that name as written; empty if there is none.
func memberText(object []byte, name string) (text string) {
	c := lex.Cursor{B: object}
	for c.Enter(); c.Member(); {
		wanted := string(c.Key) == name && c.Peek() == '"'
		from := c.Skip()
		if wanted && c.Why == "" {
			text = string(object[from+1 : c.I-1])
		}
	}
	return text
}

// read takes one count. A null leaves what was known.
func (f *figure) read(c *lex.Cursor) (believed bool) {
	if c.Peek() == 'n' {
		c.Skip()
		return true
	}
	n, ok := c.Int()
	if !ok || n < 0 || n > MaxUsage {
		return false
	}
	*f = figure{n, true}
	return true
}
