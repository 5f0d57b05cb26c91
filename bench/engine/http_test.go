package engine

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	if opts.Speed == 0 {
		opts.Speed = 100
	}
	s, err := Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// post sends one request over a connection of its own and returns status and body; err is that of the transport.
func post(t *testing.T, url, body string, header ...string) (int, string, error) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Details    *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type event struct {
	ID, Object, Model string
	Choices           []struct {
		Index  int
		Text   string
		Delta  struct{ Role, Content string }
		Reason *string `json:"finish_reason"`
	}
	Usage *usage
	Error *struct {
		Message, Type string
		Code          int
	}
}

// events splits a stream and demands that it ends with [DONE].
func events(t *testing.T, body string) []event {
	t.Helper()
	body, ok := strings.CutSuffix(body, "\n\ndata: [DONE]\n\n")
	if !ok {
		t.Fatalf("no [DONE] at the end of %q", body)
	}
	var out []event
	for _, line := range strings.Split(body, "\n\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil || !ok {
			t.Fatalf("event %q: %v", line, err)
		}
		out = append(out, e)
	}
	return out
}

func TestChatStreamedEqualsWhole(t *testing.T) {
	s := start(t, Options{Models: []string{"qwen-7b"}, Seed: 3})
	const head = `{"model":"qwen-7b","messages":[{"role":"user","content":"What is a gateway, and what is it good for? Be short."}]`
	status, whole, err := post(t, s.URL+"/v1/chat/completions", head+"}")
	if status != 200 || err != nil {
		t.Fatal(status, whole, err)
	}
	var answer struct {
		ID, Object string
		Choices    []struct {
			Message struct{ Role, Content string }
			Reason  string `json:"finish_reason"`
		}
		Usage usage
	}
	if err := json.Unmarshal([]byte(whole), &answer); err != nil {
		t.Fatal(err, whole)
	}
	_, stream, err := post(t, s.URL+"/v1/chat/completions", head+`,"stream":true,"stream_options":{"include_usage":true}}`, "X-Request-Id", "label-1")
	if err != nil {
		t.Fatal(err)
	}
	list := events(t, stream)
	text := ""
	for _, e := range list[:len(list)-1] {
		if e.ID != "chatcmpl-label-1" || e.Object != "chat.completion.chunk" || len(e.Choices) != 1 || e.Usage != nil {
			t.Fatalf("%+v", e)
		}
		text += e.Choices[0].Delta.Content
	}
	first, finish, last := list[0], list[len(list)-2], list[len(list)-1]
	if first.Choices[0].Delta.Role != "assistant" || *finish.Choices[0].Reason != "stop" || finish.Choices[0].Delta.Content != "" {
		t.Fatalf("first %+v, finish %+v", first, finish)
	}
	if last.Usage == nil || len(last.Choices) != 0 {
		t.Fatalf("usage %+v", last)
	}
	if answer.Choices[0].Message.Content != text || answer.Choices[0].Reason != "stop" || text == "" {
		t.Fatalf("whole %q, streamed %q", answer.Choices[0].Message.Content, text)
	}
	// I3: one event per token, and the role before them.
	u := *last.Usage
	if u.Completion != len(list)-2 || u.Completion < 20 || u.Completion > 60 || u.Total != u.Prompt+u.Completion || u.Completion != answer.Usage.Completion {
		t.Fatalf("usage %+v with %d events, whole %+v", u, len(list), answer.Usage)
	}
	if answer.Usage.Details.Cached != 0 || u.Details.Cached != (u.Prompt-1)/16*16 {
		t.Fatalf("cached %d, then %d of %d", answer.Usage.Details.Cached, u.Details.Cached, u.Prompt)
	}
	if size := len(stream) / len(list); size < 180 || size > 350 {
		t.Fatalf("%d bytes per event", size)
	}
	if n := s.Generations(); n != 2 || s.MaxRunning() != 1 {
		t.Fatalf("%d generations, %d at once", n, s.MaxRunning())
	}
}

func TestChoicesAndPromptsMultiply(t *testing.T) {
	s := start(t, Options{})
	_, body, err := post(t, s.URL+"/v1/completions",
		`{"prompt":["one prompt","another"],"n":2,"max_tokens":5,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`)
	if err != nil {
		t.Fatal(err)
	}
	perChoice := map[int]int{}
	list := events(t, body)
	for _, e := range list[:len(list)-1] {
		perChoice[e.Choices[0].Index]++
	}
	if u := list[len(list)-1].Usage; u.Completion != 20 || u.Prompt != 3+2 {
		t.Fatalf("%+v", u)
	}
	for i := range 4 {
		if perChoice[i] != 5 {
			t.Fatalf("events per choice %v", perChoice)
		}
	}
	if !strings.Contains(body, `"finish_reason":"length"`) {
		t.Fatal(body)
	}
}

func TestContinuousUsageAndHiddenDetails(t *testing.T) {
	s := start(t, Options{HideCached: true})
	_, body, _ := post(t, s.URL+"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_completion_tokens":3,"max_tokens":9,"stream":true,`+
		`"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	for i, e := range events(t, body) {
		if e.Usage == nil || e.Usage.Completion != min(i, 3) || e.Usage.Details != nil {
			t.Fatalf("event %d: %+v", i, e.Usage)
		}
	}
}

func TestErrorsAreVLLMs(t *testing.T) {
	s := start(t, Options{Models: []string{"m"}, MaxModelLen: 100})
	chat := func(rest string) string {
		return `{"model":"m","messages":[{"role":"user","content":"hello"}]` + rest + `}`
	}
	for _, c := range []struct {
		body   string
		status int
		has    string
	}{
		{`{`, 400, `"type":"BadRequestError"`},
		{chat(`,"max_tokens":"3"`), 400, "max_tokens"},
		{chat(`,"stream_options":{"include_usage":true}`), 400, "Stream options can only be defined when `stream=True`"},
		{chat(`,"priority":1`), 400, "Got priority 1 but Priority scheduling is not enabled."},
		{chat(`,"max_tokens":100`), 400, "maximum context length is 100 tokens. However, you requested 108 tokens (8 in the messages, 100"},
		{chat(`,"n":0`), 400, `"param":"n"`},
		{chat(`,"tools":[]`), 400, "tools"},
		{chat(`,"cache_salt":""`), 400, "cache_salt"},
		{`{"model":"m"}`, 400, "messages"},
		{`{"model":"other","messages":[{"role":"user","content":"hello"}]}`, 404, `"type":"NotFoundError","param":"model","code":404`},
	} {
		status, body, err := post(t, s.URL+"/v1/chat/completions", c.body)
		if status != c.status || !strings.Contains(body, c.has) || err != nil {
			t.Errorf("%s\n\t%d %s %v", c.body, status, body, err)
		}
	}
	if s.Generations() != 0 {
		t.Error("an invalid request was generated")
	}
	for _, seen := range s.Seen() {
		if seen.Outcome != "rejected" {
			t.Errorf("%+v", seen)
		}
	}
	if status, _, _ := post(t, start(t, Options{Priority: true}).URL+"/v1/completions", `{"prompt":"x","priority":-3}`); status != 200 {
		t.Errorf("priority where it is enabled: %d", status)
	}
}

func TestFullEngineAnswers503AndARunningIDIsRefused(t *testing.T) {
	s := start(t, Options{Slots: 1, MaxQueued: 2, Speed: 1})
	long := `{"prompt":"x","max_tokens":20000,"ignore_eos":true}`
	go post(t, s.URL+"/v1/completions", long, "X-Request-Id", "a")
	lab.Eventually(t, 10*time.Second, func() bool { return s.Running() == 1 }, "one runs")
	if status, body, _ := post(t, s.URL+"/v1/completions", long, "X-Request-Id", "a"); status != 400 || !strings.Contains(body, "already running") {
		t.Fatal(status, body)
	}
	go post(t, s.URL+"/v1/completions", long)
	lab.Eventually(t, 10*time.Second, func() bool { return s.Waiting() == 1 }, "one waits")
	if status, body, _ := post(t, s.URL+"/v1/completions", long); status != 503 || !strings.Contains(body, `"error"`) {
		t.Fatal(status, body)
	}
}

func TestInformation(t *testing.T) {
	s := start(t, Options{Models: []string{"qwen-7b", "lora"}, APIKey: "k", MaxModelLen: 4096, KVBlocks: 1000})
	get := func(path, key string) (int, string) {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if status, body := get("/v1/models", ""); status != 401 || strings.TrimSpace(body) != `{"error":"Unauthorized"}` {
		t.Fatal(status, body)
	}
	if status, body := get("/v1/models", "k"); status != 200 || !strings.Contains(body, `"id":"lora"`) || !strings.Contains(body, `"max_model_len":4096`) {
		t.Fatal(status, body)
	}
	if status, body := get("/health", ""); status != 200 || body != "" {
		t.Fatal(status, body)
	}
	post(t, s.URL+"/v1/completions", `{"prompt":"0123456789abcdef","max_tokens":7,"ignore_eos":true}`, "Authorization", "Bearer k")
	_, metrics := get("/metrics", "")
	for _, line := range []string{
		`vllm:num_requests_running{engine="0",model_name="qwen-7b"} 0`,
		`vllm:num_requests_waiting{engine="0",model_name="qwen-7b"} 0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="qwen-7b"} 0`,
		`vllm:prefix_cache_queries_total{engine="0",model_name="qwen-7b"} 4`,
		`vllm:prompt_tokens_total{engine="0",model_name="qwen-7b"} 4`,
		`vllm:generation_tokens_total{engine="0",model_name="qwen-7b"} 7`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="qwen-7b"} 1`,
		`num_gpu_blocks="1000"`,
	} {
		if !strings.Contains(metrics, line+"\n") && !strings.Contains(metrics, line+",") {
			t.Errorf("no %s in\n%s", line, metrics)
		}
	}
	if n := strings.Count(metrics, "# TYPE vllm:request_success_total "); n != 1 {
		t.Errorf("%d TYPE lines for one name", n)
	}
}

// I1 and I2 through real connections: half of the clients leave.
func TestManyClientsSomeLeave(t *testing.T) {
	s := start(t, Options{Slots: 8})
	done := make(chan error, 40)
	for i := range 40 {
		go func() {
			body := fmt.Sprintf(`{"prompt":"client %d","max_tokens":200,"ignore_eos":true,"stream":true}`, i)
			resp, err := http.Post(s.URL+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				done <- err
				return
			}
			defer resp.Body.Close()
			if i%2 == 0 {
				_, err = resp.Body.Read(make([]byte, 1))
			} else {
				_, err = io.Copy(io.Discard, resp.Body)
			}
			done <- err
		}()
	}
	for range 40 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	lab.Eventually(t, 10*time.Second, func() bool { return s.Running()+s.Waiting() == 0 }, "all slots are free")
	if s.MaxRunning() != 8 {
		t.Errorf("%d at once with 8 slots", s.MaxRunning())
	}
	counts := map[string]int{}
	for _, seen := range s.Seen() {
		counts[seen.Outcome]++
	}
	if counts["abort"]+counts["ok"] != 40 || counts["ok"] < 20 || counts["abort"] == 0 {
		t.Errorf("outcomes %v", counts)
	}
}
