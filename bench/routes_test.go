package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// aliased is prices with an alias.
const aliased = `models:
  qwen:
    aliases: [small]
    template_tokens: 10
    price: {prompt: 2, completion: 6}
    max_output_tokens: 64
  exact:
    pool: qwen
    price: {prompt: 0, completion: 1}
`

// newRoutes is a stack with an alias and two replicas in front of two engines.
func newRoutes(t *testing.T, o engine.Options, env ...string) *stack {
	t.Helper()
	s := &stack{redis: lab.Redis(t), consul: lab.Consul(t)}
	s.addEngine(t, "b1", o)
	s.addEngine(t, "b2", o)
	s.Fleet = fleet.Start(t, fleet.Options{Replicas: 2, Redis: s.redis.URL(), Consul: s.consul.Addr, Catalogue: aliased, Env: env})
	for _, r := range s.Replicas {
		s.waitServed(t, r, 2)
	}
	return s
}

// ask sends any request and reads the answer to its end. fields are "Name: value".
func ask(t *testing.T, method, url, key, body string, fields ...string) fleet.Answer {
	t.Helper()
	r := fleet.Request(t, url, key, body, fields...)
	r.Method = method
	answer, err := fleet.Client.Do(r)
	if err != nil {
		return fleet.Answer{Err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return fleet.Answer{Status: answer.StatusCode, Header: answer.Header, Body: string(text), Err: err}
}

// seenAs waits for the end of the one engine request that began with the label.
func (s *stack) seenAs(t *testing.T, label string) (found engine.Seen) {
	t.Helper()
	lab.Eventually(t, 20*time.Second, func() bool {
		n := 0
		for _, seen := range s.seen() {
			if strings.HasPrefix(seen.RequestID, label+"-") {
				found = seen
				n++
			}
		}
		return n == 1 && !found.Ended.IsZero()
	}, "one request %s at the engines", label)
	return found
}

func decodeAnswer(t *testing.T, a fleet.Answer) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(a.Body), &m); err != nil {
		t.Fatalf("%d %v: %.500s", a.Status, err, a.Body)
	}
	return m
}

// upload is a form with the model behind the sound, as some clients send it.
func upload(model string, fields ...string) (body, contentType string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.SetBoundary("0123456789abcdef")
	part, _ := w.CreateFormFile("file", "a.wav")
	_, _ = part.Write(bytes.Repeat([]byte{0, 1, '\r', '\n', '-', '-'}, 10_000))
	_ = w.WriteField("model", model)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		_ = w.WriteField(name, value)
	}
	_ = w.Close()
	return b.String(), w.FormDataContentType()
}

// TestRoutes: every route of the public port, streamed and not: the engine gets the client's bytes but for what has to
// change, and the usage line says what the engine counted.
func TestRoutes(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast)
	key := s.Key("--tenant", "acme", "--rpm", "1000", "--tpm", "10000000", "--budget", "50/month")
	type shape struct {
		name, path, body string // $ stands for the model
		contains         string // of the answer
		source           string // of the usage
		noOutput         bool
		edited           bool // the engine gets more than another model
	}
	audio, audioType := upload("$", "prompt=gateways")
	streamedAudio, _ := upload("$", "stream=true", "stream_include_usage=true")
	blindAudio, _ := upload("$", "stream=true")
	shapes := []shape{
		{"chat", "/v1/chat/completions", `{"model":"$","messages":[{"role":"user","content":"hi"}],"max_tokens":9}`, `"object":"chat.completion"`, "backend", false, false},
		{"chat streamed", "/v1/chat/completions", `{"model":"$","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"stream":true,"stream_options":{"include_usage":true}}`, "data: [DONE]", "backend", false, false},
		{"chat streamed, no usage asked", "/v1/chat/completions", `{"model":"$","messages":[{"role":"user","content":"hi"}],"max_tokens":9,"stream":true}`, "data: [DONE]", "backend", false, true},
		{"completions", "/v1/completions", `{"model":"$","prompt":["once upon","a time"],"max_tokens":5,"n":2}`, `"object":"text_completion"`, "backend", false, false},
		{"completions streamed", "/v1/completions", `{"model":"$","prompt":"once upon","max_tokens":5,"stream":true}`, "data: [DONE]", "backend", false, true},
		{"completions without a cap", "/v1/completions", `{"model":"$","prompt":"once upon"}`, `"finish_reason":"length"`, "backend", false, true},
		{"responses", "/v1/responses", `{"model":"$","input":"hi","max_output_tokens":9}`, `"object":"response"`, "backend", false, false},
		{"responses streamed", "/v1/responses", `{"model":"$","input":[{"role":"user","content":"hi"}],"max_output_tokens":9,"stream":true}`, "event: response.completed\n", "backend", false, false},
		{"messages", "/v1/messages", `{"model":"$","max_tokens":9,"system":"Be brief.","messages":[{"role":"user","content":"hi"}]}`, `"type":"message"`, "backend", false, false},
		{"messages streamed", "/v1/messages", `{"model":"$","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":true}`, "event: message_stop\n", "backend", false, false},
		{"embeddings", "/v1/embeddings", `{"model":"$","input":["what is said","is said"],"encoding_format":"base64"}`, `"object":"embedding"`, "backend", true, false},
		{"rerank", "/v1/rerank", `{"model":"$","query":"what","documents":["is said","is not"]}`, `"relevance_score"`, "backend", true, false},
		{"score", "/v1/score", `{"model":"$","text_1":"what","text_2":["is said","is not"]}`, `"object":"score"`, "backend", true, false},
		{"transcriptions", "/v1/audio/transcriptions", audio, `"text":"`, "estimated", false, false},
		{"transcriptions streamed", "/v1/audio/transcriptions", streamedAudio, "data: [DONE]", "backend", false, false},
		{"translations streamed, no usage asked", "/v1/audio/translations", blindAudio, "data: [DONE]", "estimated", false, false},
	}
	for i, c := range shapes {
		for k, model := range []string{"qwen", "small"} {
			label := fmt.Sprintf("shape-%d-%d", i, k)
			body := strings.Replace(c.body, "$", model, 1)
			fields := []string{"X-Request-Id: " + label}
			if strings.HasPrefix(c.path, "/v1/audio/") {
				fields = append(fields, "Content-Type: "+audioType)
			}
			a := ask(t, "POST", s.Replicas[i%2].URL+c.path, key, body, fields...)
			if a.Status != 200 || a.Err != nil || !strings.Contains(a.Body, c.contains) || a.Header.Get("X-Request-Id") != label || a.Header.Get("X-Headgate-Backend") == "" {
				t.Errorf("%s: %d %v %v\n%.1000s", c.name, a.Status, a.Err, a.Header, a.Body)
				continue
			}
			l, seen := s.lineOf(t, label), s.seenAs(t, label)
			want := strings.Replace(c.body, "$", "qwen", 1)
			if seen.Path != c.path || !c.edited && string(seen.Body) != want || !strings.Contains(string(seen.Body), "qwen") || seen.Header.Get("Content-Length") == "0" {
				t.Errorf("%s: the engine got %s %.500q", c.name, seen.Path, seen.Body)
			}
			output := int64(seen.Output)
			if c.noOutput {
				output = 0
			}
			if l.Status != 200 || l.Outcome != "ok" || l.Model != "qwen" || l.UsageSource != c.source || !strings.Contains(l.Raw, `"route":"`+c.path+`"`) ||
				l.Stream != strings.Contains(c.name, "streamed") {
				t.Errorf("%s: %s", c.name, l.Raw)
			}
			if c.source == "backend" && (l.Prompt != int64(seen.Prompt) || l.Completion != output) {
				t.Errorf("%s: the engine counted %d and %d, the line says %s", c.name, seen.Prompt, output, l.Raw)
			}
			if c.source == "estimated" && (l.Prompt == 0 || l.Completion < int64(seen.Output)/2 || l.Completion > 3*int64(seen.Output)) {
				t.Errorf("%s: the engine counted %d and %d, the line says %s", c.name, seen.Prompt, output, l.Raw)
			}
			if l.CostNUSD == nil || *l.CostNUSD != 2000*l.Prompt+6000*l.Completion {
				t.Errorf("%s: cost of %s", c.name, l.Raw)
			}
		}
	}
	if strings.Contains(decodeAnswer(t, ask(t, "POST", s.Replicas[0].URL+"/v1/completions", key, `{"model":"qwen","prompt":"once upon","n":1}`))["object"].(string), "chat") {
		t.Error("a completion is a chat")
	}
	s.booksAgree(t, "acme", 2*len(shapes)+1)
}

// TestCapsUnderABudget: what the gateway writes into a request so that a budget holds, on each route.
func TestCapsUnderABudget(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast)
	key := s.Key("--tenant", "acme", "--budget", "50/month")
	for i, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"qwen","messages":[{"role":"user","content":"hi"}],"max_output_tokens":1}`, `{"max_tokens":64,"model"`},
		{"/v1/completions", `{"model":"qwen","prompt":"hi","max_completion_tokens":1}`, `{"max_tokens":16,"model"`},
		{"/v1/completions", `{"model":"qwen","prompt":"hi","max_tokens":null}`, `"max_tokens":64}`},
		{"/v1/responses", `{"model":"qwen","input":"hi","max_tokens":1}`, `{"max_output_tokens":64,"model"`},
		{"/v1/messages", `{"model":"qwen","messages":[{"role":"user","content":"hi"}]}`, `{"model":"qwen","messages":[{"role":"user","content":"hi"}]}`},
		{"/v1/embeddings", `{"model":"qwen","input":"hi"}`, `{"model":"qwen","input":"hi"}`},
	} {
		label := fmt.Sprintf("cap-%d", i)
		ask(t, "POST", s.Replicas[0].URL+c.path, key, c.body, "X-Request-Id: "+label)
		if seen := s.seenAs(t, label); !strings.Contains(string(seen.Body), c.want) {
			t.Errorf("%s: the engine got %s, want %s", c.path, seen.Body, c.want)
		}
	}
}

// TestTokenizeCostsNothing: it counts as a request and as nothing else, also under a budget that is used up.
func TestTokenizeCostsNothing(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast)
	key := s.Key("--tenant", "acme", "--name", "ci", "--rpm", "3", "--tpm", "1", "--budget", "0.000001/month")
	there := ask(t, "POST", s.Replicas[0].URL+"/tokenize", key, `{"model":"small","prompt":"what is said"}`, "X-Request-Id: there")
	if there.Status != 200 || !strings.Contains(there.Body, `"count":3`) {
		t.Fatalf("%d %s", there.Status, there.Body)
	}
	ids, _ := json.Marshal(decodeAnswer(t, there)["tokens"])
	if back := ask(t, "POST", s.Replicas[1].URL+"/detokenize", key, `{"model":"qwen","tokens":`+string(ids)+`}`); decodeAnswer(t, back)["prompt"] != "what is said" {
		t.Errorf("%d %s", back.Status, back.Body)
	}
	if a := ask(t, "POST", s.Replicas[0].URL+"/tokenize", key, `{"model":"nope","prompt":"x"}`); a.Status != 404 {
		t.Errorf("an unknown model: %d %s", a.Status, a.Body)
	}
	ask(t, "POST", s.Replicas[0].URL+"/tokenize", key, `{"model":"qwen","prompt":"x"}`)
	if a := ask(t, "POST", s.Replicas[0].URL+"/tokenize", key, `{"model":"qwen","prompt":"x"}`); a.Status != 429 || !strings.Contains(a.Body, "rate_limit_exceeded") {
		t.Errorf("the fourth in a minute of three: %d %s", a.Status, a.Body)
	}
	if l := s.lineOf(t, "there"); l.Prompt != 0 || l.Completion != 0 || l.UsageSource != "none" || l.CostNUSD == nil || *l.CostNUSD != 0 {
		t.Errorf("%s", l.Raw)
	}
	s.booksAgree(t, "acme", 5)
}

// TestMessagesErrors: on /v1/messages every error has Anthropic's shape, whoever found it; elsewhere none has.
func TestMessagesErrors(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast, "HG_MAX_BODY_BYTES=1000")
	key := s.Key("--tenant", "acme", "--name", "ci")
	slow := s.Key("--tenant", "acme", "--name", "slow", "--rpm", "0")
	good := `{"model":"qwen","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`
	for name, c := range map[string]struct {
		method, path, key, body string
		status                  int
		kind                    string
	}{
		"no key":              {"POST", "/v1/messages", "", good, 401, "authentication_error"},
		"bad JSON":            {"POST", "/v1/messages", key, `{`, 400, "invalid_request_error"},
		"unknown model":       {"POST", "/v1/messages", key, strings.Replace(good, "qwen", "nope", 1), 404, "not_found_error"},
		"too large":           {"POST", "/v1/messages", key, strings.Replace(good, "hi", strings.Repeat("x", 1000), 1), 413, "request_too_large"},
		"limited":             {"POST", "/v1/messages", slow, good, 429, "rate_limit_error"},
		"another method":      {"GET", "/v1/messages", key, "", 404, "not_found_error"},
		"a path below":        {"POST", "/v1/messages/count_tokens", key, good, 404, "not_found_error"},
		"the engine's own no": {"POST", "/v1/messages", key, `{"model":"qwen","messages":[{"role":"user","content":"hi"}]}`, 400, "BadRequestError"},
	} {
		a := ask(t, c.method, s.Replicas[0].URL+c.path, "", c.body, "X-Api-Key: "+c.key, "Anthropic-Version: 2023-06-01")
		m := decodeAnswer(t, a)
		inner, _ := m["error"].(map[string]any)
		if a.Status != c.status || m["type"] != "error" || inner["type"] != c.kind || inner["message"] == "" {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	if m := decodeAnswer(t, ask(t, "POST", s.Replicas[0].URL+"/v1/messagesx", key, good)); m["type"] != nil {
		t.Errorf("%v", m)
	}
	a := ask(t, "POST", s.Replicas[0].URL+"/v1/messages?beta=true", "", good, "X-Api-Key: "+key, "Anthropic-Version: 2023-06-01", "Anthropic-Beta: a,b", "X-Request-Id: passed")
	seen := s.seenAs(t, "passed")
	if a.Status != 200 || seen.Header.Get("Anthropic-Version") != "2023-06-01" || seen.Header.Get("Anthropic-Beta") != "a,b" || seen.Header.Get("X-Api-Key") != "" || seen.Path != "/v1/messages" {
		t.Errorf("%d %s\n%v", a.Status, a.Body, seen.Header)
	}
}

// TestBrokenStreamsByRoute: a stream that breaks off ends with an error event its clients know, and is billed.
func TestBrokenStreamsByRoute(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast)
	key := s.Key("--tenant", "acme", "--name", "ci")
	for i, c := range []struct{ path, body, event string }{
		{"/v1/messages", `{"model":"qwen","max_tokens":60,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\","},
		{"/v1/responses", `{"model":"qwen","input":"hi","stream":true}`, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":"},
		{"/v1/completions", `{"model":"qwen","prompt":"hi","stream":true}`, "data: {\"error\":{"},
	} {
		for _, e := range s.engines {
			if err := e.SetFault(engine.Fault{Kind: engine.Cut, After: 8}); err != nil {
				t.Fatal(err)
			}
		}
		label := fmt.Sprintf("broken-%d", i)
		a := ask(t, "POST", s.Replicas[0].URL+c.path, key, c.body, "X-Request-Id: "+label)
		last := a.Body[strings.LastIndex(strings.TrimSuffix(a.Body, "\n\n"), "\n\n")+2:]
		if a.Status != 200 || !strings.HasPrefix(last, c.event) || !strings.Contains(last, "stream") || strings.Contains(a.Body, "[DONE]") {
			t.Errorf("%s: %d ends with %q", c.path, a.Status, last)
		}
		if l := s.lineOf(t, label); l.Outcome != "upstream_truncated" || l.Completion < 3 || l.UsageSource != "estimated" {
			t.Errorf("%s: %s", c.path, l.Raw)
		}
	}
}

// TestModelsByName: a model's own page, whatever its name holds; what a key may not use is refused whether it exists or not.
func TestModelsByName(t *testing.T) {
	t.Parallel()
	s := &stack{redis: lab.Redis(t), consul: lab.Consul(t)}
	s.Fleet = fleet.Start(t, fleet.Options{Redis: s.redis.URL(), Consul: s.consul.Addr, Catalogue: aliased + "  org/qwen-7b:\n    pool: qwen\n"})
	key := s.Key("--tenant", "acme", "--name", "all")
	narrow := s.Key("--tenant", "acme", "--name", "narrow", "--models", "org/*,q*")
	url := s.Replicas[0].URL + "/v1/models"
	for _, c := range []struct {
		key, id string
		status  int
		want    string
	}{
		{key, "/qwen", 200, `"id":"qwen"`},
		{key, "/small", 200, `"id":"qwen"`},
		{key, "/org/qwen-7b", 200, `"id":"org/qwen-7b"`},
		{key, "/org%2Fqwen-7b", 200, `"id":"org/qwen-7b"`},
		{key, "/%71wen", 200, `"id":"qwen"`},
		{key, "/nope", 404, "model_not_found"},
		{key, "/qwen/", 404, "model_not_found"},
		{key, "//qwen", 404, "model_not_found"},
		{key, "/", 404, "route_not_found"},
		{key, "/%zz", 400, "invalid_request"}, // no HTTP
		{narrow, "/exact", 403, "model_not_allowed"},
		{narrow, "/nope", 403, "model_not_allowed"},
		{narrow, "/qnope", 404, "model_not_found"},
		{narrow, "/org/qwen-7b", 200, `"object":"model"`},
		{"sk-acme-" + strings.Repeat("x", 32), "/qwen", 401, "invalid_api_key"},
	} {
		r := fleet.Request(t, url, c.key, "")
		r.Method, r.URL.Opaque = "GET", "/v1/models"+c.id
		answer, err := fleet.Client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != c.status || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.id, answer.StatusCode, text, c.status, c.want)
		}
	}
	if a := ask(t, "POST", url, key, `{}`); a.Status != 404 {
		t.Errorf("POST /v1/models: %d", a.Status)
	}
	if a := ask(t, "HEAD", url, key, ``); a.Status != http.StatusNotFound {
		t.Errorf("HEAD /v1/models: %d", a.Status)
	}
	if keys := s.redis.CLI("KEYS", "hg:{t:acme}:rate:*"); keys != "" {
		t.Errorf("looking at models counted: %s", keys)
	}
}
