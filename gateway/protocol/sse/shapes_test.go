package sse_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

var (
	messages  = sse.Options{Shape: protocol.MessagesShape, Strip: true}
	responses = sse.Options{Shape: protocol.ResponsesShape, Strip: true}
)

// named writes an event with a name and the same type inside, as Messages and Responses do.
func named(name, rest string) string {
	return "event: " + name + "\ndata: {\"type\":\"" + name + `"` + rest + "}\n\n"
}

func start(usage string) string {
	return named("message_start", `,"message":{"id":"msg_1","content":[],"usage":{`+usage+`}}`)
}

func textDelta(x string) string {
	return named("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"`+x+`"}`)
}

func messageDelta(usage string) string {
	return named("message_delta", `,"delta":{"stop_reason":"end_turn"},"usage":{`+usage+`}`)
}

var stop = named("message_stop", "")

func TestMessages(t *testing.T) {
	type u = protocol.Usage
	for name, c := range map[string]struct {
		stream         string
		usage, opening string // prompt/cached/completion, or none
		finished       bool
	}{
		"Anthropic": {start(`"input_tokens":4,"cache_read_input_tokens":1165,"cache_creation_input_tokens":30,"output_tokens":1`) + textDelta("a") + messageDelta(`"output_tokens":221`) + stop,
			"1199/1165/221", "1199/1165/1", true},
		"repeated in the delta": {start(`"input_tokens":43,"cache_read_input_tokens":7,"output_tokens":1`) + messageDelta(`"input_tokens":61,"output_tokens":2`) + stop,
			"68/7/2", "50/7/1", true},
		"null in the delta": {start(`"input_tokens":43,"output_tokens":1`) + messageDelta(`"input_tokens":null,"output_tokens":2`) + stop,
			"43/0/2", "43/0/1", true},
		"vLLM, no cache known": {start(`"input_tokens":21,"output_tokens":0`) + messageDelta(`"input_tokens":21,"output_tokens":7`) + stop,
			"21/0/7", "21/0/0", true},
		"vLLM, cache known at the end": {start(`"input_tokens":21,"output_tokens":0`) + messageDelta(`"input_tokens":5,"cache_read_input_tokens":16,"cache_creation_input_tokens":0,"output_tokens":7`) + stop,
			"21/16/7", "21/0/0", true},
		"old vLLM, usage beside the message": {named("message_start", `,"message":{"id":"x"},"usage":{"input_tokens":21,"output_tokens":0}`) + messageDelta(`"input_tokens":21,"output_tokens":7`) + stop + done,
			"21/0/7", "21/0/0", true},
		"running": {start(`"input_tokens":9`) + named("message_delta", `,"delta":{"stop_reason":null},"usage":{"output_tokens":3}`) + messageDelta(`"output_tokens":5`) + stop,
			"9/0/5", "9/0/0", true},
		"usage of something else": {start(`"input_tokens":9`) + named("message_delta", `,"delta":{"usage":{"output_tokens":8}}`) + messageDelta(`"output_tokens":5`) + named("message_delta", `,"delta":{"usage":{"output_tokens":8}}`) + stop,
			"9/0/5", "9/0/0", true},
		"zero is a figure":     {start(`"input_tokens":9,"output_tokens":4`) + messageDelta(`"output_tokens":0`) + stop, "9/0/0", "9/0/4", true},
		"begun twice":          {start(`"input_tokens":9,"cache_read_input_tokens":5`) + start(`"input_tokens":9`) + messageDelta(`"output_tokens":5`) + stop, "9/0/5", "9/0/0", true},
		"cut":                  {start(`"input_tokens":9,"output_tokens":1`) + textDelta("a"), "none", "9/0/1", false},
		"cut before its usage": {start(`"input_tokens":9,"output_tokens":1`) + textDelta("a") + named("message_delta", `,"delta":{"stop_reason":null},"usage":{"input_tokens":9}`), "none", "9/0/1", false},
		"cut behind its end":   {start(`"input_tokens":9`) + messageDelta(`"output_tokens":5`), "9/0/5", "9/0/0", true},
		"an end mark of another API": {start(`"input_tokens":9`) + textDelta("a") + done,
			"none", "9/0/0", false},
		"error": {start(`"input_tokens":9`) + messageDelta(`"output_tokens":5`) + named("error", `,"error":{"type":"overloaded_error"}`) + done, "9/0/5", "9/0/0", false},
		"nonsense in the delta": {start(`"input_tokens":9`) + messageDelta(`"output_tokens":5`) + named("message_delta", `,"usage":{"output_tokens":-1}`) + stop,
			"9/0/5", "9/0/0", true},
		"a text that looks like usage": {start(`"input_tokens":9`) + textDelta(`{\"type\":\"message_delta\",\"usage\":{\"output_tokens\":99}}`) + messageDelta(`"output_tokens":5`) + stop,
			"9/0/5", "9/0/0", true},
	} {
		show := func(u u) string {
			if u.Source == protocol.None {
				return "none"
			}
			return fmt.Sprintf("%d/%d/%d", u.Prompt, u.Cached, u.Completion)
		}
		got, end := run(messages, []byte(c.stream))
		if string(got) != c.stream {
			t.Errorf("%s: the bytes changed: %s", name, got)
		}
		if show(end.Usage) != c.usage || show(end.Opening) != c.opening || end.Finished() != c.finished {
			t.Errorf("%s: %+v", name, end)
		}
	}
}

func TestTextOfMessages(t *testing.T) {
	stream := start(`"input_tokens":1`) + named("content_block_start", `,"content_block":{"type":"text","text":"ab"}`) +
		named("content_block_start", `,"content_block":{"type":"tool_use","id":"t","name":"get","input":{"text":"no"}}`) +
		named("content_block_start", `,"content_block":{"type":"web_search_tool_result","content":[{"type":"x","text":"what a server found"}]}`) +
		textDelta("cd") + named("content_block_delta", `,"delta":{"type":"input_json_delta","partial_json":"{}"}`) +
		named("content_block_delta", `,"delta":{"type":"thinking_delta","thinking":"efg"}`) + named("content_block_delta", `,"delta":{"type":"signature_delta","signature":"no"}`)
	if _, end := run(messages, []byte(stream)); end.Texts != 5 || end.TextBytes != 2+3+2+2+3 {
		t.Errorf("%+v", end)
	}
}

func response(name, id, usage string) string {
	return named(name, `,"sequence_number":0,"response":{"object":"response","id":"`+id+`","error":null,"usage":`+usage+`,"output":[{"id":"msg_1","type":"message"}]}`)
}

func TestResponses(t *testing.T) {
	const full = `{"input_tokens":30,"input_tokens_details":{"cached_tokens":16},"output_tokens":5,"total_tokens":35}`
	want := protocol.Usage{Prompt: 30, Cached: 16, Completion: 5, Source: protocol.Backend}
	begin := response("response.created", "resp_1", "null") + response("response.in_progress", "resp_1", "null") +
		named("response.output_text.delta", `,"delta":"Hi \"you\"","logprobs":[],"obfuscation":"xyz"`)
	for name, c := range map[string]struct {
		end          string
		usage        protocol.Usage
		done, failed bool
	}{
		"completed":        {response("response.completed", "resp_2", full), want, true, false},
		"incomplete":       {response("response.incomplete", "resp_1", full), want, true, false},
		"failed":           {response("response.failed", "resp_1", full), want, false, true},
		"failed, no usage": {response("response.failed", "resp_1", "null"), protocol.Usage{}, false, true},
		"type at the end":  {"data: {\"response\":{\"usage\":" + full + "},\"type\":\"response.completed\"}\n\n", want, true, false},
		"not at the end":   {response("response.in_progress", "resp_1", full), protocol.Usage{}, false, false},
		"in an output":     {named("response.completed", `,"response":{"output":[{"usage":`+full+`}]}`), protocol.Usage{}, true, false},
		"in a list":        {named("response.completed", `,"response":[{"usage":1},`+full+`]`), protocol.Usage{}, true, false},
		"error":            {named("error", `,"code":"x","message":"no"`), protocol.Usage{}, false, true},
		"error by name":    {"event: error\ndata: {\"message\":\"no\"}\n\n", protocol.Usage{}, false, true},
		"error of a stray": {"event:unknown\ndata: {\"error\":{\"message\":\"no\"}}\n\n", protocol.Usage{}, false, true},
		"[DONE] alone":     {done, protocol.Usage{}, false, false},
	} {
		for _, tail := range []string{"", done} {
			stream := begin + c.end + tail
			got, end := run(responses, []byte(stream))
			if string(got) != stream {
				t.Errorf("%s: the bytes changed: %s", name, got)
			}
			if end.Usage != c.usage || end.Done != c.done || end.Failed != c.failed || end.Finished() != c.done || end.ResponseID != "resp_1" {
				t.Errorf("%s: %+v", name, end)
			}
			if end.Texts != 1 || end.TextBytes != int64(len(`Hi \"you\"`)) {
				t.Errorf("%s: %d bytes of text in %d events", name, end.TextBytes, end.Texts)
			}
		}
	}
}

func TestResponseID(t *testing.T) {
	for id, want := range map[string]string{
		"resp_1":                               "resp_1",
		"":                                     "",
		`a\u0062`:                              "",
		strings.Repeat("x", protocol.MaxID):    strings.Repeat("x", protocol.MaxID),
		strings.Repeat("x", protocol.MaxID+1):  "",
		strings.Repeat("x", 10*protocol.MaxID): "",
		"../../x y":                            "../../x y",
		"resp_" + strings.Repeat("a", 32) + "/é": "resp_" + strings.Repeat("a", 32) + "/é",
	} {
		if _, end := run(responses, []byte(response("response.created", id, "null"))); end.ResponseID != want {
			t.Errorf("%.40s: %.40q", id, end.ResponseID)
		}
	}
	if _, end := run(sse.Options{}, []byte(response("response.created", "resp_1", "null"))); end.ResponseID != "" {
		t.Error("a chat has no response id")
	}
}

func TestUsageBesideTheUsualPlace(t *testing.T) {
	groq := func(p int) string {
		return fmt.Sprintf(`,"x_groq":{"id":"r","usage":{"prompt_tokens":%d,"completion_tokens":3}}`, p)
	}
	for name, c := range map[string]struct {
		stream string
		prompt int64
	}{
		"alone":             {abc + chunk(finish, groq(10)) + done, 10},
		"before the other":  {abc + chunk(finish, groq(9)+usage(10, 3)) + done, 10},
		"behind the other":  {abc + chunk(finish, usage(10, 3)+groq(9)) + done, 10},
		"in a later chunk":  {abc + chunk(finish, usage(10, 3)) + chunk("", groq(9)) + done, 10},
		"in an earlier one": {abc + chunk(finish, groq(9)) + chunk("", usage(10, 3)) + done, 10},
		"beside a null":     {abc + chunk(finish, groq(10)+`,"usage":null`) + done, 10},
		"elsewhere":         {abc + chunk(finish, `,"x":{"usage":{"prompt_tokens":9,"completion_tokens":3}}`) + done, 0},
		"of a response":     {abc + chunk(finish, `,"response":{"usage":{"prompt_tokens":9,"completion_tokens":3}}`) + done, 0},
	} {
		got, end := run(sse.Options{Strip: true}, []byte(c.stream))
		if end.Usage.Prompt != c.prompt {
			t.Errorf("%s: %+v", name, end.Usage)
		}
		want := strings.ReplaceAll(strings.ReplaceAll(c.stream, chunk("", usage(10, 3)), ""), usage(10, 3), "")
		if string(got) != want { // nothing but the usage every API knows is taken out
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestFinished(t *testing.T) {
	second := strings.Replace(finish, `"index":0`, `"index":1`, 1)
	for _, c := range []struct {
		stream  string
		choices int
		want    bool
	}{
		{abc, 0, false},
		{abc + chunk(finish, ""), 0, true},
		{abc + chunk(finish, ""), 2, false}, // the other choice was cut
		{abc + chunk(finish, "") + abc + chunk(second, ""), 2, true},
		{abc + chunk(finish, "") + done, 2, true}, // the engine's own word
		{abc + done, 1, true},
	} {
		if _, end := run(sse.Options{Choices: c.choices}, []byte(c.stream)); end.Finished() != c.want {
			t.Errorf("%d choices: %v: %s", c.choices, end.Finished(), c.stream)
		}
	}
}

func TestGenerating(t *testing.T) {
	for name, c := range map[string]struct {
		o     sse.Options
		idle  string
		first string
	}{
		"responses": {responses, ": x\n\n" + response("response.created", "a", "null") + response("response.queued", "a", "null") + response("response.in_progress", "a", "null"),
			named("response.output_item.added", "")},
		"messages": {messages, named("ping", ""), start(`"input_tokens":1`)},
		"chat":     {sse.Options{}, ": x\n\n", chunk(delta(""), "")},
	} {
		tap := sse.NewTap(c.o)
		tap.Feed([]byte(c.idle), func([]byte) {})
		if tap.Generating() || tap.Started() != (tap.Seen().Waiting > 0) {
			t.Errorf("%s: %+v", name, tap.Seen())
		}
		tap.Feed([]byte(c.first), func([]byte) {})
		if !tap.Generating() || !tap.Started() {
			t.Errorf("%s: %+v", name, tap.Seen())
		}
	}
}

func TestBreakHasTheShapeOfItsRoute(t *testing.T) {
	e := protocol.Timeout("The model server fell silent.")
	for _, c := range []struct {
		o             sse.Options
		begin         string
		name, typ     string
		read          func(data map[string]any) any // the message
		wantSequence  float64
		wantCode      string
		wantErrorType string
	}{
		{sse.Options{}, abc, "", "", inner, 0, "timeout", "timeout"},
		{messages, start(`"input_tokens":1`) + textDelta("a"), "error", "error", inner, 0, "", "timeout_error"},
		{responses, response("response.created", "a", "null"), "error", "error", func(d map[string]any) any { return d["message"] }, 1, "timeout", "timeout"},
	} {
		tap := sse.NewTap(c.o)
		var got []byte
		tap.Feed([]byte(c.begin+"data: {\"half\""), func(b []byte) { got = append(got, b...) })
		all := events(t, sse.AppendBreak(got, tap.End(), e))
		last := all[len(all)-1]
		var data map[string]any
		if err := json.Unmarshal([]byte(last.Data), &data); err != nil {
			t.Fatal(err)
		}
		if last.Name != c.name || c.read(data) != e.Message || inner(data) != e.Message || c.typ != "" && data["type"] != c.typ {
			t.Errorf("%+v", last)
		}
		body := data["error"].(map[string]any)
		if n, _ := data["sequence_number"].(float64); n != c.wantSequence || body["type"] != c.wantErrorType || c.wantCode != "" && body["code"] != c.wantCode {
			t.Errorf("%+v", last)
		}
	}
}

// inner is the message of the member error, where both kinds of clients look first.
func inner(data map[string]any) any { return data["error"].(map[string]any)["message"] }
