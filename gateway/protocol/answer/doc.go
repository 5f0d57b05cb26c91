// Package answer turns a whole answer of chat or completions into the event stream an engine would have sent, and a
// finished stream into the whole answer, so that one stored answer serves both kinds of request.
//
// A stream is put together member by member: texts are joined in order, lists of tool calls are merged by their index,
// lists of log probabilities are joined, everything else is what was said last. Members nobody knows here are kept.
//
// Invariants:
//
//	I1. Join(Split(whole)) says what whole says, for every choice and every member (TestThereAndBack).
//	I2. Every line of Split is valid JSON in valid UTF-8, all chunks share one id, [DONE] ends them (TestSplit).
//	I3. Join gives nothing for a stream with an error, without an end, or without a choice (TestJoinRefuses).
package answer

import (
	"bytes"
	"encoding/json"
	"strings"
)

// object is one JSON object; numbers keep their text.
type object = map[string]any

func decode(text []byte) (object, bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var o object
	return o, d.Decode(&o) == nil && o != nil
}

// encode writes o as an engine would: without escapes for HTML.
func encode(dst *bytes.Buffer, o object) {
	e := json.NewEncoder(dst)
	e.SetEscapeHTML(false)
	_ = e.Encode(o) // decoded from JSON: it encodes again
	dst.Truncate(dst.Len() - 1)
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func objects(v any) []object {
	list, _ := v.([]any)
	out := make([]object, 0, len(list))
	for _, item := range list {
		if o, ok := item.(object); ok {
			out = append(out, o)
		}
	}
	return out
}

// chunkName is the object name of a chunk for that of a whole answer, and back.
func chunkName(name string) string {
	if name == "chat.completion" {
		return "chat.completion.chunk"
	}
	return name
}

func wholeName(name string) string { return strings.TrimSuffix(name, ".chunk") }
