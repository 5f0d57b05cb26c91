package sse_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// recording is a stream of testdata/streams and what a second reader found in it, from NAME.expected.json.
type recording struct {
	name   string
	stream []byte
	expected
}

// expected: a figure that is absent is not in the stream; what is charged for it is the gateway's estimate.
type expected struct {
	Route                      string
	Choices                    int
	Prompt, Cached, Completion *int64
	Source, Outcome            string
	ResponseID                 string `json:"response_id"`
	Status                     int    // of the answer to the client, where it is not 200
}

func (r recording) options(strip bool) sse.Options {
	o := sse.Options{Strip: strip, Choices: r.Choices}
	switch r.Route {
	case "/v1/responses":
		o.Shape = protocol.ResponsesShape
	case "/v1/messages":
		o.Shape = protocol.MessagesShape
	}
	return o
}

func recordings(t testing.TB) []recording {
	names, err := filepath.Glob("testdata/streams/*.sse")
	if err != nil || len(names) != 96 {
		t.Fatalf("testdata/streams: %d streams, %v", len(names), err)
	}
	var all []recording
	for _, name := range names {
		r := recording{name: strings.TrimSuffix(filepath.Base(name), ".sse")}
		if r.stream, err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile("testdata/streams/" + r.name + ".expected.json")
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &r.expected); err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		all = append(all, r)
	}
	return all
}

func TestRecordedStreams(t *testing.T) {
	for _, r := range recordings(t) {
		_, end := run(r.options(false), r.stream)
		show := func(n *int64) string {
			if n == nil {
				return "-"
			}
			return fmt.Sprint(*n)
		}
		u, none := end.Usage, int64(0)
		got := fmt.Sprintf("%d/%d/%d", u.Prompt, u.Cached, u.Completion)
		want := show(r.Prompt) + "/" + show(r.Cached) + "/" + show(r.Completion)
		if r.Source != "backend" {
			if r.Prompt == nil {
				r.Prompt, r.Cached = &none, &none
			}
			got = fmt.Sprintf("%v %d/%d", u.Source, end.Opening.Prompt, end.Opening.Cached)
			want = "none " + show(r.Prompt) + "/" + show(r.Cached)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", r.name, got, want)
		}
		outcome := "upstream_truncated"
		if end.Failed {
			outcome = "upstream_error"
		} else if end.Finished() {
			outcome = "ok"
		}
		if outcome != r.Outcome || end.ResponseID != r.ResponseID {
			t.Errorf("%s: %s %q, want %s %q", r.name, outcome, end.ResponseID, r.Outcome, r.ResponseID)
		}
		if n := len(events(t, r.stream)); n != end.Events && r.Outcome != "upstream_truncated" {
			t.Errorf("%s: %d events, the reader sees %d", r.name, end.Events, n)
		}
		if bytes, texts := textOf(t, r); bytes != end.TextBytes || texts != end.Texts {
			t.Errorf("%s: %d bytes in %d events, want %d in %d", r.name, end.TextBytes, end.Texts, bytes, texts)
		}
	}
}

// textOf counts generated text with encoding/json.
func textOf(t testing.TB, r recording) (total int64, texts int) {
	type raw = json.RawMessage
	rawLen := func(b raw) int64 {
		var s string
		if json.Unmarshal(b, &s) != nil || string(b) == "null" {
			return 0
		}
		return int64(len(b)) - 2
	}
	for _, e := range events(t, r.stream) {
		var n int64
		count := func(parts ...raw) {
			for _, b := range parts {
				n += rawLen(b)
			}
		}
		switch r.Route {
		case "/v1/responses":
			var c struct{ Delta raw }
			_ = json.Unmarshal([]byte(e.Data), &c)
			count(c.Delta)
		case "/v1/messages":
			var c struct {
				Block struct{ Text, Thinking, Name, Content raw } `json:"content_block"`
				Delta struct {
					Text, Thinking, Content raw
					PartialJSON             raw `json:"partial_json"`
				}
			}
			_ = json.Unmarshal([]byte(e.Data), &c)
			count(c.Block.Text, c.Block.Thinking, c.Block.Name, c.Block.Content)
			count(c.Delta.Text, c.Delta.Thinking, c.Delta.Content, c.Delta.PartialJSON)
		default:
			type call struct{ Function struct{ Name, Arguments raw } }
			var c struct {
				Choices []struct {
					Text  raw
					Delta struct {
						Content, Reasoning, Refusal raw
						ReasoningContent            raw                  `json:"reasoning_content"`
						ReasoningDetails            []struct{ Text raw } `json:"reasoning_details"`
						ContentList                 []struct{ Text raw } `json:"content_list"`
						ToolCalls                   []call               `json:"tool_calls"`
					}
				}
				Delta struct {
					Message struct {
						ToolCalls call `json:"tool_calls"`
					}
				} // Cohere's own
			}
			_ = json.Unmarshal([]byte(e.Data), &c)
			for _, ch := range c.Choices {
				d := ch.Delta
				count(ch.Text, d.Content, d.Reasoning, d.Refusal, d.ReasoningContent)
				for _, r := range append(d.ReasoningDetails, d.ContentList...) {
					count(r.Text)
				}
				for _, tc := range d.ToolCalls {
					count(tc.Function.Name, tc.Function.Arguments)
				}
			}
			count(c.Delta.Message.ToolCalls.Function.Name, c.Delta.Message.ToolCalls.Function.Arguments)
		}
		if n > 0 {
			total += n
			texts++
		}
	}
	return total, texts
}

// TestCutsDoNotMatter cuts every recorded stream at offsets spread evenly and at random pairs, as many as cutBudget allows;
// and its beginning and end again with other line ends. With EVERY_OFFSET=1 in the environment no offset is left out, which
// takes two and a half minutes of a processor.
func TestCutsDoNotMatter(t *testing.T) { // I1
	const cutBudget = 150 << 10 // bytes read for each stream, about
	every := os.Getenv("EVERY_OFFSET") != ""
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			apart := func(stream []byte) int {
				if every {
					return 1
				}
				return len(stream)*len(stream)/cutBudget + 1
			}
			for _, strip := range []bool{false, true} {
				cut(t, r.options(strip), r.stream, apart(r.stream))
			}
			for _, stream := range variants(withoutMiddle(r.stream))[1:] {
				cut(t, r.options(true), stream, apart(stream))
			}
		})
	}
}

// cut compares the stream cut at every step-th offset, at random pairs, and everywhere, with the stream in one piece.
func cut(t *testing.T, o sse.Options, stream []byte, step int) {
	wantBytes, wantEnd := run(o, stream)
	check := func(cuts ...int) {
		got, end := run(o, stream, cuts...)
		if !bytes.Equal(got, wantBytes) || !reflect.DeepEqual(end, wantEnd) {
			t.Fatalf("%+v, cuts %v:\n%+v\nwant\n%+v\nbytes equal: %v", o, cuts, end, wantEnd, bytes.Equal(got, wantBytes))
		}
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(stream))))
	for i := rng.IntN(step); i < len(stream); i += step {
		check(i)
	}
	for range 40/step + 4 {
		a, b := rng.IntN(len(stream)), rng.IntN(len(stream))
		check(min(a, b), max(a, b))
	}
	each := make([]int, len(stream))
	for i := range each {
		each[i] = i
	}
	check(each...)
}

// withoutMiddle leaves the events at the beginning and the end, where long streams differ.
func withoutMiddle(stream []byte) []byte {
	const most = 1 << 10
	if len(stream) <= most {
		return stream
	}
	middle := bytes.Index(stream[most/2:], []byte("\n\n")) + most/2 + 2
	last := bytes.LastIndex(stream[:len(stream)-most/2], []byte("\n\n")) + 2
	if middle >= last {
		return stream
	}
	return append(bytes.Clone(stream[:middle]), stream[last:]...)
}

func TestNothingHeldWithoutStrip(t *testing.T) { // I2
	for _, r := range recordings(t) {
		o := r.options(r.Route == "/v1/responses" || r.Route == "/v1/messages") // there Strip changes nothing
		tap := sse.NewTap(o)
		for i := range r.stream {
			n := 0
			tap.Feed(r.stream[i:i+1], func(b []byte) {
				n += len(b)
				if b[0] != r.stream[i] {
					t.Fatalf("%s: byte %d changed", r.name, i)
				}
			})
			if n != 1 {
				t.Fatalf("%s: byte %d: %d bytes handed on", r.name, i, n)
			}
		}
	}
}
