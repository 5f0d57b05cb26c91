package sse_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

func TestUsage(t *testing.T) { // I4
	cases := map[string]string{
		"last chunk":      abc + chunk(finish, "") + chunk("", usage(10, 3)) + done,
		"on the finish":   abc + chunk(finish, usage(10, 3)) + done,
		"running":         chunk(delta("a"), usage(10, 1)) + chunk(delta("b"), usage(10, 2)) + chunk(delta("c"), usage(10, 3)) + chunk(finish, usage(10, 3)) + done,
		"twice":           abc + chunk(finish, usage(10, 3)) + chunk("", usage(10, 3)) + done,
		"null afterwards": abc + chunk(finish, "") + chunk("", usage(10, 3)) + chunk("", `,"usage":null`) + done,
		"nonsense after":  abc + chunk(finish, usage(10, 3)) + chunk("", `,"usage":{"prompt_tokens":-1}`) + done,
		"in a text":       chunk(delta(`x\"usage\":{\"prompt_tokens\":9}`), "") + abc + chunk(finish, "") + chunk("", usage(10, 3)) + done,
		"two in an event": abc + chunk(finish, usage(9, 9)+usage(10, 3)) + done,
		"below the top":   abc + chunk(finish, usage(10, 3)+`,"x":{"usage":{"prompt_tokens":7}}`) + done,
	}
	want := protocol.Usage{Prompt: 10, Completion: 3, Source: protocol.Backend}
	for name, stream := range cases {
		for _, o := range []sse.Options{{}, {Strip: true}} {
			_, end := run(o, []byte(stream))
			if end.Usage != want || !end.Done || !end.Finished() || end.Finishes != 1 || end.Failed {
				t.Errorf("%s, strip %v: %+v", name, o.Strip, end)
			}
		}
	}
	if _, end := run(sse.Options{}, []byte(abc+chunk(finish, "")+done)); end.Usage.Source != protocol.None {
		t.Errorf("no usage: %+v", end)
	}
}

func TestRecordedStreams(t *testing.T) {
	want := map[string]string{ // prompt/cached/completion done finishes failed
		"vllm-0.24-chat-usage":                 "46/0/14 true 1 false",
		"vllm-0.6-chat-a":                      "0/0/0 true 1 false",
		"vllm-0.6-completions-a":               "0/0/0 true 1 false",
		"syn-vllm-chat-continuous-usage":       "21/16/3 true 1 false",
		"syn-vllm-chat-crlf-and-comments":      "5/0/1 true 1 false",
		"syn-vllm-chat-error-first-event":      "0/0/0 true 0 true",
		"syn-vllm-chat-error-midstream":        "0/0/0 true 0 true",
		"syn-vllm-chat-multibyte-split":        "12/0/8 true 1 false",
		"syn-vllm-chat-n2":                     "9/0/4 true 2 false",
		"syn-vllm-chat-no-usage-cut":           "0/0/0 false 0 false",
		"syn-vllm-chat-reasoning-tools":        "310/0/27 true 1 false",
		"syn-vllm-completions-usage":           "4/0/3 true 1 false",
		"groq-chat-error-event-midstream":      "0/0/0 false 0 true",
		"azure-chat-first-chunk-empty-choices": "0/0/0 true 1 false",
		"openrouter-chat-cache":                "254/0/5 true 1 false",
		"openrouter-chat-comments-reasoning":   "43/0/36 true 1 false",
		"openrouter-chat-error-in-chunk":       "43/0/10 true 2 true",
		"openai-chat-n2-usage":                 "26/0/104 true 2 false",
		"mistral-chat":                         "11/0/43 true 1 false",
	}
	for name, stream := range streams(t) {
		_, end := run(sse.Options{}, stream)
		u := end.Usage
		got := fmt.Sprintf("%d/%d/%d %v %d %v", u.Prompt, u.Cached, u.Completion, end.Done, end.Finishes, end.Failed)
		if got != want[name] {
			t.Errorf("%s: %s, want %s", name, got, want[name])
		}
		if n := len(events(t, stream)); n != end.Events && name != "syn-vllm-chat-no-usage-cut" {
			t.Errorf("%s: %d events, the reader sees %d", name, end.Events, n)
		}
		if bytes, texts := textOf(t, stream); bytes != end.TextBytes || texts != end.Texts {
			t.Errorf("%s: %d bytes in %d events, want %d in %d", name, end.TextBytes, end.Texts, bytes, texts)
		}
	}
}

// textOf counts generated text with encoding/json, of chat and completions.
func textOf(t testing.TB, stream []byte) (total int64, texts int) {
	type raw = json.RawMessage
	rawLen := func(b raw) int64 {
		var s string
		if json.Unmarshal(b, &s) != nil || string(b) == "null" {
			return 0
		}
		return int64(len(b)) - 2
	}
	for _, e := range events(t, stream) {
		var c struct {
			Choices []struct {
				Text  raw
				Delta struct {
					Content, Reasoning, Refusal raw
					ReasoningContent            raw                                                `json:"reasoning_content"`
					ReasoningDetails            []struct{ Text raw }                               `json:"reasoning_details"`
					ToolCalls                   []struct{ Function struct{ Name, Arguments raw } } `json:"tool_calls"`
				}
			}
		}
		_ = json.Unmarshal([]byte(e.Data), &c)
		var n int64
		for _, ch := range c.Choices {
			d := ch.Delta
			for _, b := range []raw{ch.Text, d.Content, d.Reasoning, d.Refusal, d.ReasoningContent} {
				n += rawLen(b)
			}
			for _, r := range d.ReasoningDetails {
				n += rawLen(r.Text)
			}
			for _, tc := range d.ToolCalls {
				n += rawLen(tc.Function.Name) + rawLen(tc.Function.Arguments)
			}
		}
		if n > 0 {
			total += n
			texts++
		}
	}
	return total, texts
}

func TestErrors(t *testing.T) {
	for name, c := range map[string]struct{ stream, body string }{
		"object":  {abc + "data: {\"error\":{\"message\":\"no\"}}\n\n" + done, `{"message":"no"}`},
		"string":  {"data: {\"error\":\"Unauthorized\"}\n\n", `"Unauthorized"`},
		"number":  {"data: {\"error\":500}\n\n", ``},
		"old":     {"data: {\"object\":\"error\",\"message\":\"no\"}\n\n", ``},
		"named":   {"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"x\"}}\n\n", `{"type":"x"}`},
		"first":   {"data: {\"error\":{\"n\":1}}\n\ndata: {\"error\":{\"n\":2}}\n\n", `{"n":1}`},
		"too big": {"data: {\"error\":{\"m\":\"" + strings.Repeat("x", sse.MaxCapture) + "\"}}\n\n", ``},
	} {
		_, end := run(sse.Options{}, []byte(c.stream))
		if !end.Failed || end.Finished() || string(end.ErrorBody) != c.body {
			t.Errorf("%s: %+v %s", name, end, end.ErrorBody)
		}
	}
	if _, end := run(sse.Options{}, []byte(chunk(delta(`{\"error\":1}`), `,"error":null`))); end.Failed {
		t.Error("a null error is none")
	}
}

func TestShapesChangeNothing(t *testing.T) { // I6
	tricky := []string{
		chunk(delta("a"), ""), chunk(delta(`b\\`), ""), chunk(delta(`c\"`), ""), chunk(delta(`\\\"d`), ""), chunk(delta(""), ""),
		chunk(delta(`","finish_reason":"stop"},{"x":"`), ""), strings.Replace(chunk(delta("xy"), ""), "xy", "x\ny", 1),
		strings.Replace(chunk(delta("xy"), ""), "xy", "x\ry", 1), chunk(delta("a"), "") + "\n", "\n", ": c\n", done, chunk(finish, ""),
		chunk(delta("z"), usage(1, 1)), chunk("", usage(1, 2)),
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		var s []byte
		var each []int
		for range 6 {
			s = append(s, tricky[rng.IntN(len(tricky))]...)
		}
		for i := range s { // fed byte by byte no shape ever matches
			each = append(each, i)
		}
		o := sse.Options{Strip: rng.IntN(2) == 0}
		got, end := run(o, s)
		slow, slowEnd := run(o, s, each...)
		if !bytes.Equal(got, slow) || !reflect.DeepEqual(end, slowEnd) {
			t.Fatalf("%q\n%+v\n%+v", s, end, slowEnd)
		}
	}
}
