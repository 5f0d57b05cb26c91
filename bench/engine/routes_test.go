package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// ask posts a body and decodes the answer.
func ask(t *testing.T, url, body string, want int) map[string]any {
	t.Helper()
	status, text, err := post(t, url, body)
	if err != nil || status != want {
		t.Fatalf("%s: %d %s %v", url, status, text, err)
	}
	return decoded(t, text)
}

func decoded(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// at walks into a decoded answer: at(m, "output", 0, "text").
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			list, _ := v.([]any)
			if p >= len(list) {
				t.Fatalf("no item %d in %v", p, v)
			}
			v = list[p]
		}
	}
	return v
}

// named splits a stream of named events; each event's data has its name as type.
func named(t *testing.T, stream string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for event := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
		if !ok {
			t.Fatalf("event %q", event)
		}
		e := decoded(t, data)
		if e["type"] != name {
			t.Fatalf("event %s has type %v", name, e["type"])
		}
		out = append(out, e)
	}
	return out
}

func TestMessagesStreamedEqualsWhole(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}})
	const head = `{"model":"m","system":[{"type":"text","text":"Be brief."}],"max_tokens":500,"messages":[{"role":"user","content":[{"type":"text","text":"What is a gateway?"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]`
	whole := ask(t, s.URL+messagesPath, head+`}`, 200)
	text, input, output := at(t, whole, "content", 0, "text"), at(t, whole, "usage", "input_tokens"), at(t, whole, "usage", "output_tokens")
	if whole["type"] != "message" || whole["stop_reason"] != "end_turn" || text == "" || input.(float64) < 256 {
		t.Fatalf("%v", whole)
	}
	_, stream, _ := post(t, s.URL+messagesPath, head+`,"stream":true}`)
	events := named(t, stream)
	said := ""
	for _, e := range events {
		if e["type"] == "content_block_delta" {
			said += at(t, e, "delta", "text").(string)
		}
	}
	last := events[len(events)-2]
	if said != text || at(t, events[0], "message", "usage", "input_tokens") != input || at(t, last, "usage", "output_tokens") != output ||
		at(t, last, "delta", "stop_reason") != "end_turn" || events[len(events)-1]["type"] != "message_stop" {
		t.Errorf("said %q, whole %q\n%s", said, text, stream)
	}
	if short := ask(t, s.URL+messagesPath, `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`, 200); short["stop_reason"] != "max_tokens" || at(t, short, "usage", "output_tokens") != 3.0 {
		t.Errorf("%v", short)
	}
	for _, body := range []string{`{"model":"m","messages":[{"role":"user","content":"hi"}]}`, `{"model":"m","max_tokens":3,"messages":[]}`} {
		if e := ask(t, s.URL+messagesPath, body, 400); e["type"] != "error" || at(t, e, "error", "message") == nil {
			t.Errorf("%v", e)
		}
	}
	if e := ask(t, s.URL+messagesPath, `{"model":"x","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`, 404); e["type"] != "error" {
		t.Errorf("%v", e)
	}
}

func TestResponsesStreamedEqualsWhole(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}})
	const head = `{"model":"m","instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"What is a gateway?"}]}]`
	whole := ask(t, s.URL+responsesPath, head+`}`, 200)
	text := at(t, whole, "output", 0, "content", 0, "text")
	if whole["status"] != "completed" || text == "" || !strings.HasPrefix(whole["id"].(string), "resp_") {
		t.Fatalf("%v", whole)
	}
	_, stream, _ := post(t, s.URL+responsesPath, head+`,"stream":true}`)
	events := named(t, stream)
	said := ""
	for i, e := range events {
		if e["sequence_number"] != float64(i) {
			t.Fatalf("event %d has number %v", i, e["sequence_number"])
		}
		if e["type"] == "response.output_text.delta" {
			said += e["delta"].(string)
		}
	}
	last := events[len(events)-1]
	if events[0]["type"] != "response.created" || last["type"] != "response.completed" || said != text ||
		fmt.Sprint(at(t, last, "response", "usage", "output_tokens")) != fmt.Sprint(at(t, whole, "usage", "output_tokens")) {
		t.Errorf("said %q, whole %q\n%s", said, text, stream)
	}
	if short := ask(t, s.URL+responsesPath, `{"model":"m","input":"hi","max_output_tokens":3}`, 200); short["status"] != "incomplete" || at(t, short, "usage", "output_tokens") != 3.0 {
		t.Errorf("%v", short)
	}
}

func TestResponsesAreKept(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}})
	first := ask(t, s.URL+responsesPath, `{"model":"m","input":"What is a gateway?"}`, 200)
	id := first["id"].(string)
	if status, text := get(t, s.URL+responsesPath+"/"+id); status != 200 || decoded(t, text)["id"] != id {
		t.Errorf("%d %s", status, text)
	}
	next := ask(t, s.URL+responsesPath, `{"model":"m","input":"And then?","previous_response_id":"`+id+`"}`, 200)
	if at(t, next, "usage", "input_tokens").(float64) <= at(t, first, "usage", "input_tokens").(float64)+at(t, first, "usage", "output_tokens").(float64) {
		t.Errorf("the conversation was not continued: %v", next["usage"])
	}
	ask(t, s.URL+responsesPath, `{"model":"m","input":"And then?","previous_response_id":"resp_made_up"}`, 404)
	ask(t, s.URL+responsesPath+"/"+id+"/cancel", ``, 400)
	ask(t, s.URL+responsesPath+"/resp_made_up/cancel", ``, 404)
	unstored := ask(t, s.URL+responsesPath, `{"model":"m","input":"hi","store":false}`, 200)
	if status, _ := get(t, s.URL+responsesPath+"/"+unstored["id"].(string)); status != 404 {
		t.Errorf("%d for what was not to be kept", status)
	}
}

func TestBackgroundGoesOnWithoutItsClient(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}, Speed: 10})
	first := ask(t, s.URL+responsesPath, `{"model":"m","input":"hi","background":true}`, 200)
	if first["usage"] != nil || first["status"] != "queued" && first["status"] != "in_progress" {
		t.Fatalf("%v", first)
	}
	url := s.URL + responsesPath + "/" + first["id"].(string)
	_, stream := get(t, url+"?stream=true&starting_after=1")
	events := named(t, stream)
	if events[0]["sequence_number"] != 2.0 || events[len(events)-1]["type"] != "response.completed" {
		t.Errorf("%s", stream)
	}
	if _, text := get(t, url); decoded(t, text)["status"] != "completed" || at(t, decoded(t, text), "usage", "output_tokens").(float64) < 20 {
		t.Errorf("%s", text)
	}

	long := ask(t, s.URL+responsesPath, `{"model":"m","input":"hi","background":true,"ignore_eos":true,"max_output_tokens":20000}`, 200)
	url = s.URL + responsesPath + "/" + long["id"].(string)
	if got := ask(t, url+"/cancel", ``, 200); got["status"] != "cancelled" {
		t.Errorf("%v", got)
	}
	lab.Eventually(t, 10*time.Second, func() bool { return s.Running() == 0 }, "the cancelled response leaves the batch")
	ask(t, url+"/cancel", ``, 400)
	lab.Eventually(t, 10*time.Second, func() bool {
		return !slices.ContainsFunc(s.Seen(), func(x Seen) bool { return x.Outcome == "" })
	}, "every end is noted")
}

func TestEmbeddings(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}})
	floats := ask(t, s.URL+"/v1/embeddings", `{"model":"m","input":["abcd","abcdefgh"]}`, 200)
	coded := ask(t, s.URL+"/v1/embeddings", `{"model":"m","input":["abcd","abcdefgh"],"encoding_format":"base64"}`, 200)
	if at(t, floats, "usage", "prompt_tokens") != 3.0 || at(t, floats, "usage", "total_tokens") != 3.0 {
		t.Errorf("%v", floats["usage"])
	}
	raw, err := base64.StdEncoding.DecodeString(at(t, coded, "data", 1, "embedding").(string))
	vector := at(t, floats, "data", 1, "embedding").([]any)
	if err != nil || len(raw) != 4*len(vector) || len(vector) != usualDimensions {
		t.Fatalf("%v: %d bytes, %d numbers", err, len(raw), len(vector))
	}
	var sum float64
	for _, x := range vector {
		sum += x.(float64) * x.(float64)
	}
	if math.Abs(sum-1) > 1e-3 {
		t.Errorf("length² %v", sum)
	}
	ask(t, s.URL+"/v1/embeddings", `{"model":"m","input":[]}`, 400)
	ask(t, s.URL+"/v1/embeddings", `{"model":"m","input":[1,2,3],"dimensions":3}`, 200)
}

func TestRerankAndScore(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}})
	ranked := ask(t, s.URL+"/v1/rerank", `{"model":"m","query":"q","documents":["a",{"text":"b"},"c","d"],"top_n":3}`, 200)
	results := ranked["results"].([]any)
	for i := range results {
		if i > 0 && at(t, results, i, "relevance_score").(float64) > at(t, results, i-1, "relevance_score").(float64) {
			t.Errorf("not in order: %v", results)
		}
	}
	if len(results) != 3 || at(t, ranked, "usage", "total_tokens") != 4.0 {
		t.Errorf("%v", ranked)
	}
	scored := ask(t, s.URL+"/v1/score", `{"model":"m","text_1":"q","text_2":["a","b"]}`, 200)
	if len(scored["data"].([]any)) != 2 || at(t, scored, "usage", "total_tokens") != 2.0 {
		t.Errorf("%v", scored)
	}
	ask(t, s.URL+"/v1/score", `{"model":"m","text_1":["q","r"],"text_2":["a","b","c"]}`, 400)
	ask(t, s.URL+"/v1/rerank", `{"model":"m","documents":["a"]}`, 400)
}

func TestTokenizeThereAndBack(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}})
	const text = "what is said, is said"
	there := ask(t, s.URL+"/tokenize", `{"model":"m","prompt":"`+text+`"}`, 200)
	if there["count"] != 6.0 {
		t.Errorf("%v", there)
	}
	ids, _ := json.Marshal(there["tokens"])
	if back := ask(t, s.URL+"/detokenize", `{"model":"m","tokens":`+string(ids)+`}`, 200); back["prompt"] != text {
		t.Errorf("%v", back)
	}
	ask(t, s.URL+"/tokenize", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, 200)
	if s.Generations() != 0 {
		t.Error("something was computed")
	}
}

func TestAudio(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}})
	upload := func(path string, fields ...string) (int, string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		part, _ := w.CreateFormFile("file", "a.wav")
		_, _ = part.Write(make([]byte, 100_000))
		for _, f := range append(fields, "model=m") {
			name, value, _ := strings.Cut(f, "=")
			_ = w.WriteField(name, value)
		}
		_ = w.Close()
		status, text, err := post(t, s.URL+path, b.String(), "Content-Type", w.FormDataContentType())
		if err != nil {
			t.Fatal(err)
		}
		return status, text
	}
	status, text := upload("/v1/audio/transcriptions")
	whole := decoded(t, text)
	if status != 200 || whole["text"] == "" || at(t, whole, "usage", "seconds") != 4.0 {
		t.Errorf("%d %s", status, text)
	}
	if _, plain := upload("/v1/audio/translations", "response_format=text"); strings.HasPrefix(plain, "{") || plain == "" {
		t.Errorf("%q", plain)
	}
	_, stream := upload("/v1/audio/transcriptions", "stream=true", "stream_include_usage=true")
	said := ""
	for event := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\ndata: [DONE]\n\n"), "\n\n") {
		e := decoded(t, strings.TrimPrefix(event, "data: "))
		if len(e["choices"].([]any)) > 0 {
			said += at(t, e, "choices", 0, "delta", "content").(string)
		} else if at(t, e, "usage", "completion_tokens").(float64) < 20 {
			t.Errorf("%v", e)
		}
	}
	if said != whole["text"] {
		t.Errorf("said %q, whole %q", said, whole["text"])
	}
	if status, _, _ := post(t, s.URL+"/v1/audio/transcriptions", `{"model":"m"}`); status != 400 {
		t.Errorf("%d for JSON", status)
	}
}
