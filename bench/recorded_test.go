package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// recordings is where the streams of many servers are kept, with where they come from and under which licence.
const recordings = "../gateway/protocol/sse/testdata/streams/"

// recording is one of them and what a second reader found in it.
type recording struct {
	name, stream               string
	Route                      string
	Choices                    int
	Prompt, Cached, Completion *int64 // absent = not in the stream; what is charged for it is the gateway's estimate
	Source, Outcome            string
	Status                     int // of the answer to the client, where it is not 200
}

func allRecordings(t *testing.T) (all []recording) {
	t.Helper()
	names, err := filepath.Glob(recordings + "*.sse")
	if err != nil || len(names) != 96 {
		t.Fatalf("%d streams in %s, %v", len(names), recordings, err)
	}
	for _, name := range names {
		stream, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(strings.TrimSuffix(name, ".sse") + ".expected.json")
		if err != nil {
			t.Fatal(err)
		}
		r := recording{name: strings.TrimSuffix(filepath.Base(name), ".sse"), stream: string(stream), Status: 200, Choices: 1}
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		all = append(all, r)
	}
	return all
}

// TestRecordedStreams: every recorded stream, sent by an engine in pieces of any size. The client gets its bytes and the
// usage line says what the stream says, whether the client asked for usage or not.
func TestRecordedStreams(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	type asked struct {
		recording
		id string
	}
	var all []asked
	routes := map[string]int{}
	for _, r := range allRecordings(t) {
		routes[r.Route]++
		if l.play(scripted.Stream(cutUp(r.stream)...)); r.Status != 200 { // nothing but an error: in one read, for sure
			l.play(scripted.Stream(r.stream))
		}
		a, id := l.askRoute(r.Route, l.streamOf(r, true))
		r.judgeAnswer(t, a)
		all = append(all, asked{r, id})
		if r.Route == "/v1/chat/completions" || r.Route == "/v1/completions" { // the others always show their usage
			a, id := l.askRoute(r.Route, l.streamOf(r, false))
			r.judgeStripped(t, a)
			all = append(all, asked{r, id})
		}
	}
	lines := map[string][]fleet.Line{}
	lab.Eventually(t, patience, func() bool {
		clear(lines)
		for _, line := range l.Lines() {
			lines[line.RequestID] = append(lines[line.RequestID], line)
		}
		return !slices.ContainsFunc(all, func(a asked) bool { return len(lines[a.id]) == 0 })
	}, "a usage line for each stream")
	for _, a := range all {
		if n := len(lines[a.id]); n != 1 {
			t.Errorf("%s: %d usage lines", a.name, n)
		}
		a.judgeLine(t, lines[a.id][0])
	}
	if len(routes) != 4 {
		t.Errorf("not every route was asked: %v", routes)
	}
	l.books()
}

// cutUp cuts the stream as reads might fall, the same way each time.
func cutUp(stream string) (all []string) {
	rng := rand.New(rand.NewPCG(5, uint64(len(stream))))
	for len(stream) > 0 {
		n := min(1+rng.IntN(1+rng.IntN(1500)), len(stream))
		all, stream = append(all, stream[:n]), stream[n:]
	}
	return all
}

// streamOf is the body of a request whose answer could be the recording.
func (l *lane) streamOf(r recording, usage bool) string {
	body := map[string]any{"model": l.model, "stream": true}
	messages := []map[string]string{{"role": "user", "content": "hi"}}
	switch r.Route {
	case "/v1/responses":
		body["input"] = "hi"
		return asJSON(body)
	case "/v1/messages":
		body["messages"], body["max_tokens"] = messages, 64
		return asJSON(body)
	case "/v1/completions":
		body["prompt"] = "hi"
	default:
		body["messages"] = messages
	}
	if r.Choices > 1 {
		body["n"] = r.Choices
	}
	if usage {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	return asJSON(body)
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// askRoute posts to any route and returns the answer and the label of its usage line.
func (l *lane) askRoute(route, body string) (fleet.Answer, string) {
	l.t.Helper()
	id := l.id()
	answer, err := fleet.Client.Do(fleet.Request(l.t, l.Replicas[0].URL+route, l.key, body, "X-Request-Id: "+id))
	if err != nil {
		l.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return fleet.Answer{Status: answer.StatusCode, Header: answer.Header, Body: string(text), Err: err}, id
}

// judgeAnswer: the bytes are the engine's. Behind a stream that broke off stands one event that says so.
func (r recording) judgeAnswer(t *testing.T, a fleet.Answer) {
	t.Helper()
	if a.Status != r.Status || a.Err != nil {
		t.Errorf("%s: status %d, %v: %.300s", r.name, a.Status, a.Err, a.Body)
		return
	}
	switch {
	case r.Status != 200:
		if !strings.Contains(a.Body, `"code":"upstream_error"`) || strings.Contains(a.Header.Get("Content-Type"), "event-stream") {
			t.Errorf("%s: %v %s", r.name, a.Header, a.Body)
		}
	case r.Outcome == "upstream_truncated":
		got, sent := events(t, a.Body), events(t, r.stream)
		if len(got) != len(sent)+1 || !slices.Equal(got[:len(sent)], sent) || !strings.Contains(got[len(sent)], "stream_truncated") {
			t.Errorf("%s: %q", r.name, a.Body)
		}
	case a.Body != r.stream:
		at := 0
		for at < min(len(a.Body), len(r.stream)) && a.Body[at] == r.stream[at] {
			at++
		}
		t.Errorf("%s: %d bytes came of %d, the first difference at %d: %.200q", r.name, len(a.Body), len(r.stream), at, a.Body[at:])
	case !strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream"):
		t.Errorf("%s: %v", r.name, a.Header)
	}
}

// judgeStripped: no chunk shows usage, and nothing else is missing.
func (r recording) judgeStripped(t *testing.T, a fleet.Answer) {
	t.Helper()
	if r.Status != 200 || r.Outcome == "upstream_truncated" {
		return
	}
	got := events(t, a.Body)
	for _, sent := range events(t, r.stream) {
		chunk, usage := withoutUsage(sent)
		if choices, listed := chunk["choices"].([]any); usage && listed && len(choices) == 0 && chunk["error"] == nil {
			continue // it said nothing else
		}
		if len(got) == 0 {
			t.Errorf("%s: %q is missing", r.name, sent)
			return
		}
		left, still := withoutUsage(got[0])
		if _, listed := chunk["choices"]; asJSON(left) != asJSON(chunk) || !usage && got[0] != sent || still && listed {
			t.Errorf("%s: %q became %q", r.name, sent, got[0])
			return
		}
		got = got[1:]
	}
	if len(got) != 0 {
		t.Errorf("%s: %q came too", r.name, got)
	}
}

// withoutUsage parses an event and takes a usage that is not null out of it.
func withoutUsage(data string) (chunk map[string]any, usage bool) {
	d := json.NewDecoder(strings.NewReader(data))
	d.UseNumber()
	if d.Decode(&chunk) != nil {
		return nil, false
	}
	if chunk["usage"] != nil {
		delete(chunk, "usage")
		return chunk, true
	}
	return chunk, false
}

// judgeLine compares the usage line with what is expected. An estimate of an answer is at least a token for each event
// with text, or for each four bytes of it, and at most one for each byte.
func (r recording) judgeLine(t *testing.T, line fleet.Line) {
	t.Helper()
	var more struct {
		Route  string
		Cached int64 `json:"cached_tokens"`
	}
	if err := json.Unmarshal([]byte(line.Raw), &more); err != nil {
		t.Fatal(err)
	}
	ok := line.Outcome == r.Outcome && line.UsageSource == r.Source && line.Status == r.Status && more.Route == r.Route
	if r.Prompt != nil {
		ok = ok && line.Prompt == *r.Prompt && more.Cached == *r.Cached
	} else {
		ok = ok && (line.Prompt > 0) == (r.Source == "estimated") && more.Cached == 0
	}
	if r.Completion != nil {
		ok = ok && line.Completion == *r.Completion
	} else if r.Source == "estimated" {
		seen := r.seen()
		ok = ok && line.Completion >= int64(min(seen.Texts, 1)) && line.Completion <= seen.TextBytes
	}
	if !ok {
		t.Errorf("%s: want %+v: %s", r.name, r.figures(), line.Raw)
	}
}

func (r recording) figures() string {
	r.stream = ""
	return asJSON(r)
}

// seen is what the tap finds in the stream; its own tests compare it with encoding/json.
func (r recording) seen() sse.End {
	shapes := map[string]protocol.Shape{"/v1/responses": protocol.ResponsesShape, "/v1/messages": protocol.MessagesShape}
	tap := sse.NewTap(sse.Options{Shape: shapes[r.Route]})
	var same bytes.Buffer
	tap.Feed([]byte(r.stream), func(b []byte) { same.Write(b) })
	return tap.End()
}
