package answer

import (
	"bytes"
	"maps"
)

// Split is a whole answer as an event stream: for each choice a chunk with the role, one with what was said, one with
// the finish reason; then the usage if it was asked for, and [DONE]. ok is false if whole is no such answer.
func Split(whole []byte, includeUsage bool) (stream []byte, ok bool) {
	o, ok := decode(whole)
	choices := objects(o["choices"])
	if !ok || len(choices) == 0 {
		return nil, false
	}
	usage := o["usage"]
	frame := maps.Clone(o)
	delete(frame, "usage")
	delete(frame, "choices")
	frame["object"] = chunkName(text(o["object"]))
	var b bytes.Buffer
	event := func(choices []any, usage any) {
		chunk := maps.Clone(frame)
		chunk["choices"] = choices
		if usage != nil {
			chunk["usage"] = usage
		}
		b.WriteString("data: ")
		encode(&b, chunk)
		b.WriteString("\n\n")
	}
	for _, c := range choices {
		for _, part := range partsOf(c) {
			event([]any{part}, nil)
		}
	}
	if includeUsage && usage != nil {
		event([]any{}, usage)
	}
	b.WriteString("data: [DONE]\n\n")
	return b.Bytes(), true
}

// partsOf is one choice as the chunks of a stream.
func partsOf(choice object) []object {
	last := maps.Clone(choice)
	delete(last, "message")
	delete(last, "text")
	delete(last, "logprobs")
	if message, ok := choice["message"].(object); ok {
		said := maps.Clone(message)
		delete(said, "role")
		if calls := objects(message["tool_calls"]); len(calls) > 0 {
			numbered := make([]any, len(calls))
			for i, call := range calls {
				call = maps.Clone(call)
				call["index"] = i
				numbered[i] = call
			}
			said["tool_calls"] = numbered
		}
		last["delta"] = object{}
		return []object{
			{"index": choice["index"], "delta": object{"role": message["role"], "content": ""}, "finish_reason": nil},
			{"index": choice["index"], "delta": said, "logprobs": choice["logprobs"], "finish_reason": nil},
			last,
		}
	}
	last["text"] = ""
	return []object{{"index": choice["index"], "text": choice["text"], "logprobs": choice["logprobs"], "finish_reason": nil}, last}
}
