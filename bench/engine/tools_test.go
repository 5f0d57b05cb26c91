package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const weather = `{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["C","F"]},"days":{"type":"integer"},"extra":{}},"required":["city","unit","days"]}`

const madeUp = `{"city":"some city","days":4,"unit":"C"}`

// TestToolCalls: every API, streamed and not, gives the same call in its own words, and counts its tokens. // I3
func TestToolCalls(t *testing.T) {
	s := start(t, Options{})
	chat := `{"model":"sim","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"other"}},{"type":"function","function":{"name":"weather","parameters":` + weather + `}}],"tool_choice":`
	tokens := float64((len(madeUp)+tokenBytes-1)/tokenBytes + 1)

	named := ask(t, s.URL+"/v1/chat/completions", chat+`{"type":"function","function":{"name":"weather"}}}`, 200)
	call := at(t, named, "choices", 0, "message", "tool_calls", 0)
	if at(t, call, "function", "name") != "weather" || at(t, call, "function", "arguments") != madeUp || at(t, call, "id") == "" ||
		at(t, named, "choices", 0, "finish_reason") != "stop" || at(t, named, "usage", "completion_tokens") != tokens {
		t.Errorf("%v", named)
	}
	first := ask(t, s.URL+"/v1/chat/completions", chat+`"required"}`, 200)
	if at(t, first, "choices", 0, "message", "tool_calls", 0, "function", "name") != "other" || at(t, first, "choices", 0, "finish_reason") != "tool_calls" {
		t.Errorf("%v", first)
	}
	free := ask(t, s.URL+"/v1/chat/completions", chat+`"auto"}`, 200)
	if len(at(t, free, "choices", 0, "message", "tool_calls").([]any)) != 0 || at(t, free, "choices", 0, "message", "content") == "" {
		t.Errorf("%v", free)
	}
	for _, choice := range []string{`{"type":"function","function":{"name":"none"}}`, `"required","tools":null`} {
		ask(t, s.URL+"/v1/chat/completions", chat+choice+`}`, 400)
	}

	message := `{"model":"sim","max_tokens":50,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"weather","input_schema":` + weather + `}],"tool_choice":{"type":"any"}`
	whole := ask(t, s.URL+"/v1/messages", message+`}`, 200)
	if at(t, whole, "content", 0, "type") != "tool_use" || fmt.Sprint(at(t, whole, "content", 0, "input")) != "map[city:some city days:4 unit:C]" ||
		at(t, whole, "stop_reason") != "tool_use" || at(t, whole, "usage", "output_tokens") != tokens {
		t.Errorf("%v", whole)
	}
	response := `{"model":"sim","input":"hi","tools":[{"type":"function","name":"weather","parameters":` + weather + `}],"tool_choice":{"type":"function","name":"weather"}`
	object := ask(t, s.URL+"/v1/responses", response+`}`, 200)
	if at(t, object, "output", 0, "type") != "function_call" || at(t, object, "output", 0, "arguments") != madeUp || at(t, object, "usage", "output_tokens") != tokens {
		t.Errorf("%v", object)
	}
	for _, c := range []struct {
		path, body, name string
		member           []any
	}{
		{"/v1/messages", message, "content_block_delta", []any{"delta", "partial_json"}},
		{"/v1/responses", response, "response.function_call_arguments.delta", []any{"delta"}},
	} {
		if got := joined(t, s, c.path, c.body+`,"stream":true}`, c.name, c.member...); got != madeUp {
			t.Errorf("%s: %q", c.path, got)
		}
	}
}

// TestToolCallStream: the first chunk names the call, the others add to its arguments, the last has the reason.
func TestToolCallStream(t *testing.T) {
	s := start(t, Options{})
	body := `{"model":"sim","stream":true,"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"weather","parameters":` + weather + `}}],"tool_choice":"required"}`
	_, text, err := post(t, s.URL+"/v1/chat/completions", body)
	if err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Fatalf("%v %s", err, text)
	}
	arguments, names, reasons := "", 0, ""
	for event := range strings.SplitSeq(strings.TrimSuffix(text, "data: [DONE]\n\n"), "\n\n") {
		if event == "" {
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Calls []struct {
						ID       string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				Reason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &chunk); err != nil {
			t.Fatalf("%v %s", err, event)
		}
		reasons += chunk.Choices[0].Reason
		for _, c := range chunk.Choices[0].Delta.Calls {
			arguments += c.Function.Arguments
			if c.ID != "" && c.Function.Name == "weather" {
				names++
			}
		}
	}
	if arguments != madeUp || names != 1 || reasons != "tool_calls" {
		t.Errorf("%q, named %d times, ended with %q", arguments, names, reasons)
	}
}

// joined puts a member of all events of that name together.
func joined(t *testing.T, s *Server, path, body, name string, member ...any) string {
	t.Helper()
	_, text, err := post(t, s.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	out := ""
	for _, event := range named(t, text) {
		if event["type"] == name {
			out += at(t, event, member...).(string)
		}
	}
	return out
}
