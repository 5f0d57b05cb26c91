package answer

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strconv"

	"github.com/headgate/headgate/gateway/protocol/sse"
)

// Join is the whole answer a finished stream says. ok is false if the stream has an error, did not end with [DONE], or
// has a choice without a finish reason.
func Join(stream []byte) (whole []byte, ok bool) {
	events := sse.NewReader(bytes.NewReader(stream))
	frame := object{}
	choices := map[int]object{}
	for {
		e, err := events.Next()
		if err == io.EOF {
			return nil, false // no [DONE]
		}
		if err != nil {
			return nil, false
		}
		if e.Data == "[DONE]" {
			break
		}
		chunk, ok := decode([]byte(e.Data))
		if !ok || chunk["error"] != nil || e.Name == "error" {
			return nil, false
		}
		for _, c := range objects(chunk["choices"]) {
			add(choices, c)
		}
		delete(chunk, "choices")
		for name, v := range chunk {
			if v != nil || frame[name] == nil {
				frame[name] = v
			}
		}
	}
	list := finished(choices)
	if list == nil {
		return nil, false
	}
	frame["choices"] = list
	frame["object"] = wholeName(text(frame["object"]))
	var b bytes.Buffer
	encode(&b, frame)
	return b.Bytes(), true
}

// add merges one choice of a chunk into what was said before.
func add(choices map[int]object, c object) {
	n := indexOf(c)
	whole := choices[n]
	if whole == nil {
		whole = object{"index": c["index"]}
		choices[n] = whole
	}
	for name, v := range c {
		switch name {
		case "index":
		case "delta":
			message, _ := whole["message"].(object)
			if message == nil {
				message = object{}
				whole["message"] = message
			}
			if delta, ok := v.(object); ok {
				merge(message, delta)
			}
		default:
			mergeMember(whole, name, v)
		}
	}
}

func merge(into, delta object) {
	for name, v := range delta {
		mergeMember(into, name, v)
	}
}

// said once: what an engine may repeat on every chunk without meaning more of it.
var saidOnce = []string{"role", "id", "type", "name", "finish_reason", "stop_reason", "object"}

// mergeMember joins texts and lists, merges objects, and takes everything else as it was said last; a null says nothing.
func mergeMember(into object, name string, v any) {
	old, had := into[name]
	if v == nil {
		if !had {
			into[name] = nil
		}
		return
	}
	switch v := v.(type) {
	case string:
		if before, ok := old.(string); ok && !slices.Contains(saidOnce, name) {
			into[name] = before + v
			return
		} else if ok && v == "" {
			return
		}
	case []any:
		before, _ := old.([]any)
		if name == "tool_calls" {
			into[name] = mergeCalls(before, v)
		} else {
			into[name] = append(before, v...)
		}
		return
	case object:
		if before, ok := old.(object); ok {
			merge(before, v)
			return
		}
	}
	into[name] = v
}

// mergeCalls merges pieces of tool calls by their index, which a whole answer does not have.
func mergeCalls(calls, pieces []any) []any {
	for _, p := range pieces {
		piece, ok := p.(object)
		if !ok {
			continue
		}
		n := indexOf(piece)
		delete(piece, "index")
		for len(calls) <= n && n < maxCalls {
			calls = append(calls, object{})
		}
		if n < len(calls) {
			if call, ok := calls[n].(object); ok {
				merge(call, piece)
			}
		}
	}
	return calls
}

// maxCalls bounds what a made-up index can ask for.
const maxCalls = 1024

func indexOf(o object) int {
	n, _ := o["index"].(json.Number)
	i, err := strconv.Atoi(n.String())
	if err != nil || i < 0 {
		return 0
	}
	return i
}

// finished is all choices by index, or nil if one has no finish reason.
func finished(choices map[int]object) []any {
	indexes := make([]int, 0, len(choices))
	for i, c := range choices {
		if text(c["finish_reason"]) == "" {
			return nil
		}
		indexes = append(indexes, i)
	}
	if len(indexes) == 0 {
		return nil
	}
	slices.Sort(indexes)
	list := make([]any, len(indexes))
	for at, i := range indexes {
		list[at] = choices[i]
	}
	return list
}
