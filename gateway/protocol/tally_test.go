package protocol_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/lex"
)

func TestTally(t *testing.T) { // I3, I4
	const compaction = `"input_tokens":181,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":8,"iterations":[` +
		`{"input_tokens":100,"output_tokens":83,"cache_read_input_tokens":55096,"cache_creation_input_tokens":0,"type":"compaction"},` +
		`{"input_tokens":181,"output_tokens":8,"cache_read_input_tokens":0,"cache_creation_input_tokens":0,"type":"message"}]`
	for _, c := range []struct {
		name    string
		objects []string
		want    protocol.Usage
	}{
		{"chat", []string{`{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}`}, protocol.Usage{Prompt: 10, Cached: 4, Completion: 3}},
		{"chat with Anthropic's fields beside", []string{`{"prompt_tokens":10,"completion_tokens":3,"cache_read_input_tokens":4,"prompt_tokens_details":{"cached_tokens":4}}`}, protocol.Usage{Prompt: 10, Cached: 4, Completion: 3}},
		{"responses", []string{`{"input_tokens":10,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}`}, protocol.Usage{Prompt: 10, Cached: 4, Completion: 3}},
		{"messages, not streamed", []string{`{"input_tokens":4,"cache_read_input_tokens":5,"cache_creation_input_tokens":6,"output_tokens":3}`}, protocol.Usage{Prompt: 15, Cached: 5, Completion: 3}},
		{"messages without caches", []string{`{"input_tokens":4,"output_tokens":3}`}, protocol.Usage{Prompt: 4, Completion: 3}},
		{"messages, caches null", []string{`{"input_tokens":4,"cache_read_input_tokens":null,"cache_creation_input_tokens":null,"output_tokens":3}`}, protocol.Usage{Prompt: 4, Completion: 3}},
		{"start and delta", []string{`{"input_tokens":4,"cache_read_input_tokens":5,"output_tokens":1}`, `{"output_tokens":3}`}, protocol.Usage{Prompt: 9, Cached: 5, Completion: 3}},
		{"start and whole delta", []string{`{"input_tokens":9,"output_tokens":1}`, `{"input_tokens":4,"cache_read_input_tokens":5,"output_tokens":3}`}, protocol.Usage{Prompt: 9, Cached: 5, Completion: 3}},
		{"a null changes nothing", []string{`{"input_tokens":9,"output_tokens":1}`, `{"input_tokens":null,"output_tokens":3}`}, protocol.Usage{Prompt: 9, Completion: 3}},
		{"compaction", []string{`{"input_tokens":100,"cache_read_input_tokens":55096,"output_tokens":7}`, `{` + compaction + `}`}, protocol.Usage{Prompt: 55377, Cached: 55096, Completion: 91}},
		{"compaction told twice", []string{`{` + compaction + `}`, `{` + compaction + `}`}, protocol.Usage{Prompt: 55377, Cached: 55096, Completion: 91}},
		{"iterations without one", []string{`{"input_tokens":9,"output_tokens":3,"iterations":[null,1,{"type":"message","input_tokens":9,"output_tokens":3}]}`}, protocol.Usage{Prompt: 9, Completion: 3}},
		{"not believed", []string{`{"input_tokens":9,"output_tokens":1}`, `{"input_tokens":3,"output_tokens":-1}`}, protocol.Usage{Prompt: 9, Completion: 1}},
		{"an unbelievable compaction", []string{`{"input_tokens":9,"output_tokens":1}`, `{"output_tokens":2,"iterations":[{"type":"compaction","input_tokens":-1}]}`}, protocol.Usage{Prompt: 9, Completion: 1}},
	} {
		var tally protocol.Tally
		for _, o := range c.objects {
			tally.Add([]byte(o))
		}
		c.want.Source = protocol.Backend
		if u, ok := tally.Usage(); !ok || u != c.want {
			t.Errorf("%s: %+v %v", c.name, u, ok)
		}
	}
	const most = "1099511627776" // MaxUsage
	for _, object := range []string{
		`{"input_tokens":` + most + `,"cache_read_input_tokens":1}`,
		`{"input_tokens":1,"output_tokens":1,"iterations":[{"type":"compaction","input_tokens":` + most + `},{"type":"compaction","input_tokens":1}]}`,
		`{"cache_read_input_tokens":1}`, `{"input_tokens":1,"cache_read_input_tokens":1.5}`,
	} {
		if u, ok := protocol.ParseUsage([]byte(object)); ok {
			t.Errorf("%s: %+v", object, u)
		}
	}
	var tally protocol.Tally
	if tally.Add([]byte(`{"input_tokens":1}`)); tally.Completed() {
		t.Error("a prompt alone completes nothing")
	}
	if tally.Add([]byte(`{"output_tokens":0}`)); !tally.Completed() {
		t.Error("0 is a figure")
	}
}

func TestResponseIDOf(t *testing.T) {
	for body, want := range map[string]string{
		`{"id":"resp_1","output":[{"id":"msg_1"}]}`:       "resp_1",
		`{"output":[{"id":"msg_1"}],"object":"response"}`: "",
		`{"id":1}`:                     "",
		`{"id":"a\u0062"}`:             "",
		`{"id":"resp_1"`:               "",
		`[{"id":"resp_1"}]`:            "",
		``:                             "",
		`{"id":"x","id":"resp_1"} `:    "resp_1",
		`{"response":{"id":"resp_1"}}`: "",
	} {
		if got := protocol.ResponseIDOf([]byte(body)); got != want {
			t.Errorf("%s: %q", body, got)
		}
	}
}

// FuzzUsage lets encoding/json judge what is read from a usage object.
func FuzzUsage(f *testing.F) { // I3
	for _, s := range []string{
		`{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}`,
		`{"input_tokens":4,"cache_read_input_tokens":5,"cache_creation_input_tokens":6,"output_tokens":3}`,
		`{"input_tokens":10,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}`,
		`{"input_tokens":1,"output_tokens":8,"iterations":[{"type":"compaction","input_tokens":9,"output_tokens":8,"cache_read_input_tokens":7}]}`,
		`{"prompt_tokens":-1}`, `{"prompt_tokens":1e3}`, `{"prompt_tokens":null}`, `{"iterations":[{}]}`, `null`, `{"output_tokens":1099511627777}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		if bytes.Count(object, []byte("{"))+bytes.Count(object, []byte("[")) >= lex.MaxDepth {
			return // one level deeper it is refused
		}
		u, ok := protocol.ParseUsage(object)
		whole, wholeOK := protocol.UsageOf(append(append([]byte(`{"usage":`), object...), '}'))
		if ok != wholeOK || u != whole {
			t.Fatalf("%q: %+v %v alone, %+v %v in an answer", object, u, ok, whole, wholeOK)
		}
		if !ok {
			return
		}
		if u.Prompt < 0 || u.Completion < 0 || u.Cached < 0 || u.Cached > u.Prompt || u.Prompt > protocol.MaxUsage || u.Completion > protocol.MaxUsage || u.Source != protocol.Backend {
			t.Fatalf("%q: %+v", object, u)
		}
		type details struct {
			Cached *int64 `json:"cached_tokens"`
		}
		type counts struct {
			Prompt        *int64   `json:"prompt_tokens"`
			Completion    *int64   `json:"completion_tokens"`
			PromptDetails *details `json:"prompt_tokens_details"`
		}
		var c counts
		if json.Unmarshal(object, &c) != nil || c.Prompt == nil || hasAny(object, "input_tokens", "output_tokens", "iterations", "\\") || repeats(object) {
			return // several names for one figure: their order decides, which encoding/json does not tell
		}
		want := protocol.Usage{Prompt: *c.Prompt, Source: protocol.Backend}
		if c.Completion != nil {
			want.Completion = *c.Completion
		}
		if c.PromptDetails != nil && c.PromptDetails.Cached != nil {
			want.Cached = min(*c.PromptDetails.Cached, want.Prompt)
		}
		if u != want {
			t.Fatalf("%q: %+v, judged %+v", object, u, want)
		}
	})
}

func hasAny(text []byte, words ...string) bool {
	for _, w := range words {
		if bytes.Contains(bytes.ToLower(text), []byte(w)) {
			return true
		}
	}
	return false
}

// repeats reports whether a name may stand there twice, in any case: encoding/json does not mind the case.
func repeats(object []byte) bool {
	low := bytes.ToLower(object)
	for _, w := range []string{"prompt_tokens\"", "completion_tokens\"", "prompt_tokens_details\"", "cached_tokens\""} {
		if bytes.Count(low, []byte(w)) > 1 {
			return true
		}
	}
	return !bytes.Equal(low, object)
}
