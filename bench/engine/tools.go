package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// tool is an entry of tools, in the shape of any of the three APIs.
type tool struct {
	signature            // Responses, Messages
	Function  *signature `json:"function"` // chat
}

type signature struct {
	Name        string `json:"name"`
	Parameters  schema `json:"parameters"`
	InputSchema schema `json:"input_schema"` // Messages
}

// schema is as much of a JSON schema as it takes to make up a value.
type schema struct {
	Type       string            `json:"type"`
	Enum       []json.RawMessage `json:"enum"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
}

// toolCall is what a request that demands a call is answered with, in place of a text.
type toolCall struct {
	name   string
	named  bool     // by tool_choice: vLLM says "stop" in the end, not "tool_calls"
	pieces []string // of the arguments: what one token adds
}

// demandedCall is nil unless tool_choice leaves no choice: the model of this engine never calls a tool on its own account.
func (in *requestBody) demandedCall() (*toolCall, *apiError) {
	var word string
	var choice struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(in.ToolChoice, &word) != nil {
		_ = json.Unmarshal(in.ToolChoice, &choice) // what it cannot be read as demands nothing
	}
	name := choice.Function.Name + choice.Name
	if word != "required" && choice.Type != "any" && name == "" {
		return nil, nil
	}
	var tools []tool
	if len(in.Tools) == 0 || json.Unmarshal(in.Tools, &tools) != nil {
		return nil, badRequest("When using `tool_choice`, `tools` must be set.", "tool_choice")
	}
	for _, t := range tools {
		s := t.signature
		if t.Function != nil {
			s = *t.Function
		}
		if name == "" || s.Name == name {
			return s.call(name != ""), nil
		}
	}
	return nil, badRequest("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")
}

// call makes up arguments that fit the schema; the same every time.
func (s signature) call(named bool) *toolCall {
	parameters := s.Parameters
	if len(parameters.Properties) == 0 {
		parameters = s.InputSchema
	}
	arguments, _ := json.Marshal(parameters.object())
	c := &toolCall{name: s.Name, named: named}
	for part := range slices.Chunk([]rune(string(arguments)), tokenBytes) {
		c.pieces = append(c.pieces, string(part))
	}
	return c
}

// object has the required properties, or all where none is.
func (s schema) object() map[string]any {
	names := s.Required
	if len(names) == 0 {
		names = slices.Collect(maps.Keys(s.Properties))
	}
	out := map[string]any{}
	for _, name := range names {
		out[name] = s.Properties[name].value(name)
	}
	return out
}

func (s schema) value(name string) any {
	if len(s.Enum) > 0 {
		return s.Enum[0]
	}
	switch s.Type {
	case "object":
		return s.object()
	case "array":
		return []any{}
	case "boolean":
		return true
	case "integer", "number":
		return len(name)
	}
	return "some " + name
}

// piece is what token t of the sequence adds to the text, or to the arguments.
func (s *sequence) piece(t int) string {
	if s.call != nil {
		return s.call.pieces[t]
	}
	return string(tokenText(s.seed, t))
}

// callID is the call's name for its result; its beginning is that of the API.
func (s *sequence) callID(prefix string) []byte { return fmt.Appendf(nil, `"%s%016x"`, prefix, s.seed) }

// finishReason is the chat's and the completion's word.
func (s *sequence) finishReason() string {
	if s.call != nil && !s.call.named && s.reason == "stop" {
		return "tool_calls"
	}
	return s.reason
}

// chatCalls is the member tool_calls of a whole chat's message.
func (s *sequence) chatCalls() string {
	if s.call == nil {
		return "[]"
	}
	return fmt.Sprintf(`[{"id":%s,"type":"function","function":{"name":%s,"arguments":%s}}]`,
		s.callID("chatcmpl-tool-"), quote(s.call.name), quote(string(s.answer())))
}

// chatCallDelta is the delta of token t in a chat's stream: the first one names the call.
func (s *sequence) chatCallDelta(t int) string {
	if t == 0 {
		return fmt.Sprintf(`{"tool_calls":[{"id":%s,"type":"function","index":0,"function":{"name":%s,"arguments":%s}}]}`,
			s.callID("chatcmpl-tool-"), quote(s.call.name), quote(s.piece(t)))
	}
	return fmt.Sprintf(`{"tool_calls":[{"index":0,"function":{"arguments":%s}}]}`, quote(s.piece(t)))
}

// block is the content block of a message; an empty one opens a stream.
func (s *sequence) block(empty bool) string {
	text := ""
	if !empty {
		text = string(s.answer())
	}
	if s.call == nil {
		return fmt.Sprintf(`{"type":"text","text":"%s"}`, text)
	}
	if !json.Valid([]byte(text)) { // cut off, or not begun
		text = "{}"
	}
	return fmt.Sprintf(`{"type":"tool_use","id":%s,"name":%s,"input":%s}`, s.callID("chatcmpl-tool-"), quote(s.call.name), text)
}

// blockDelta is the delta of token t of a message's block.
func (s *sequence) blockDelta(t int) string {
	if s.call == nil {
		return fmt.Sprintf(`{"type":"text_delta","text":"%s"}`, s.piece(t))
	}
	return fmt.Sprintf(`{"type":"input_json_delta","partial_json":%s}`, quote(s.piece(t)))
}
