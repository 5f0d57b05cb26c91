package answer

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/headgate/headgate/gateway/protocol/sse"
)

var rich = `{"id":"c1","object":"chat.completion","created":1,"model":"m","system_fingerprint":"f","choices":[` +
	`{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("é北🙂", 1000) + `","reasoning_content":"why <b>","tool_calls":[` +
	`{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"q\":\"ü\"}"}},{"id":"t2","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
	`"logprobs":{"content":[{"token":"a","logprob":-0.10}]},"finish_reason":"tool_calls","stop_reason":7},` +
	`{"index":1,"message":{"role":"assistant","content":"two"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":3}}`

const plain = `{"id":"c2","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"abc","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":3}}`

func parsed(t *testing.T, text []byte) any {
	t.Helper()
	o, ok := decode(text)
	if !ok {
		t.Fatalf("no JSON: %s", text)
	}
	return o
}

// TestThereAndBack (I1).
func TestThereAndBack(t *testing.T) {
	for _, whole := range []string{rich, plain} {
		stream, ok := Split([]byte(whole), true)
		if !ok {
			t.Fatal("not split")
		}
		back, ok := Join(stream)
		if !ok {
			t.Fatalf("not joined: %s", stream)
		}
		if got, want := parsed(t, back), parsed(t, []byte(whole)); !reflect.DeepEqual(got, want) {
			t.Errorf("got\n%v\nwant\n%v", got, want)
		}
	}
}

// TestSplit (I2).
func TestSplit(t *testing.T) {
	for _, usage := range []bool{true, false} {
		stream, _ := Split([]byte(rich), usage)
		if !utf8.Valid(stream) || bytes.ContainsRune(stream, utf8.RuneError) || bytes.Contains(stream, []byte(`\u003c`)) {
			t.Error("the text was changed")
		}
		r := sse.NewReader(bytes.NewReader(stream))
		var events []string
		for e, err := r.Next(); err == nil; e, err = r.Next() {
			events = append(events, e.Data)
		}
		if len(events) == 0 || events[len(events)-1] != "[DONE]" {
			t.Fatalf("no [DONE] at the end of %d events", len(events))
		}
		withUsage := 0
		for _, e := range events[:len(events)-1] {
			var chunk struct {
				ID, Object string
				Usage      *json.RawMessage
				Choices    []json.RawMessage
			}
			if err := json.Unmarshal([]byte(e), &chunk); err != nil || chunk.ID != "c1" || chunk.Object != "chat.completion.chunk" {
				t.Errorf("%v %s", err, e)
			}
			if chunk.Usage != nil {
				withUsage++
				if len(chunk.Choices) != 0 {
					t.Errorf("usage beside choices: %s", e)
				}
			}
		}
		if withUsage != map[bool]int{true: 1}[usage] {
			t.Errorf("usage asked for %v, on %d events", usage, withUsage)
		}
	}
	for _, bad := range []string{"", "{}", `{"choices":[]}`, `{"choices":7}`, "[]", "x"} {
		if _, ok := Split([]byte(bad), true); ok {
			t.Errorf("%q was split", bad)
		}
	}
}

// TestJoinPieces: a stream as vLLM sends it, texts and arguments in pieces, ids and names once or on every piece.
func TestJoinPieces(t *testing.T) {
	chunk := func(delta, rest string) string {
		return `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":` + delta + rest + "}]}\n\n"
	}
	stream := chunk(`{"role":"assistant","content":""}`, `,"finish_reason":null`) + chunk(`{"content":"a"}`, `,"finish_reason":null,"token_ids":null`) +
		": keep-alive\n\n" + chunk(`{"content":"b","role":"assistant"}`, `,"finish_reason":null`) +
		chunk(`{"tool_calls":[{"index":1,"id":"t","type":"function","function":{"name":"f","arguments":"{\"a"}}]}`, `,"finish_reason":null`) +
		chunk(`{"tool_calls":[{"index":1,"type":"function","function":{"name":"f","arguments":"\":1}"}}]}`, `,"finish_reason":null`) +
		chunk(`{}`, `,"finish_reason":"tool_calls","stop_reason":null`) +
		`data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":1}}` + "\n\ndata: [DONE]\n\n"
	whole, ok := Join([]byte(stream))
	want := `{"id":"c","object":"chat.completion","usage":{"prompt_tokens":1},"choices":[{"index":0,"finish_reason":"tool_calls","stop_reason":null,"token_ids":null,
		"message":{"role":"assistant","content":"ab","tool_calls":[{},{"id":"t","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}`
	if !ok || !reflect.DeepEqual(parsed(t, whole), parsed(t, []byte(want))) {
		t.Errorf("got %s\nwant %s", whole, want)
	}
}

// TestJoinRefuses (I3): what is not a whole good answer is none.
func TestJoinRefuses(t *testing.T) {
	part := `data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	last := `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	done := "data: [DONE]\n\n"
	if _, ok := Join([]byte(part + last + done)); !ok {
		t.Fatal("a good stream was refused: the rest proves nothing")
	}
	for name, stream := range map[string]string{
		"empty": "", "only done": done, "cut": part, "no done": part + last, "no finish": part + done,
		"error":              part + `data: {"error":{"message":"x"}}` + "\n\n" + last + done,
		"garbage":            part + "data: {\n\n" + last + done,
		"second choice open": part + last + `data: {"choices":[{"index":1,"delta":{"content":"b"},"finish_reason":null}]}` + "\n\n" + done,
	} {
		if whole, ok := Join([]byte(stream)); ok {
			t.Errorf("%s gives %s", name, whole)
		}
	}
}

// FuzzJoin: no stream makes it panic or grow beyond what came in, and what comes out can be split and joined again.
func FuzzJoin(f *testing.F) {
	stream, _ := Split([]byte(rich), true)
	f.Add(stream)
	f.Add([]byte("data: {\"choices\":[{\"index\":99999999,\"delta\":{\"tool_calls\":[{\"index\":88888888}]},\"finish_reason\":\"x\"}]}\n\ndata: [DONE]\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole, ok := Join(stream)
		if !ok {
			return
		}
		again, ok := Split(whole, true)
		if !ok {
			t.Fatalf("joined but not split: %s", whole)
		}
		if _, ok := Join(again); !ok {
			t.Fatalf("not joined again: %s", again)
		}
	})
}
