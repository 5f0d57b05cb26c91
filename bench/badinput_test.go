package bench

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
)

// TestBadInput: each mistake of a client has its code, reserves nothing, calls no engine and leaves one usage line.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast, "HG_MAX_BODY_BYTES=10000")
	key := s.Key("--tenant", "acme", "--rpm", "100", "--budget", "1/month")
	narrow := s.Key("--tenant", "acme", "--models", "other-*")
	good := fleet.Chat("qwen", "hi")
	cases := []struct {
		name, key, body string
		status          int
		code, param     string
	}{
		{"no key", "", good, 401, "invalid_api_key", ""},
		{"a key of no known shape", "sk-nonsense", good, 401, "invalid_api_key", ""},
		{"an unknown key of a tenant", "sk-acme-" + strings.Repeat("x", 32), good, 401, "invalid_api_key", ""},
		{"an unknown tenant", "sk-nobody-" + strings.Repeat("x", 32), good, 401, "invalid_api_key", ""},
		{"no JSON", key, `{"model":`, 400, "invalid_json", ""},
		{"an array", key, `[]`, 400, "invalid_json", ""},
		{"trailing bytes", key, good + "x", 400, "invalid_json", ""},
		{"empty", key, ``, 400, "invalid_json", ""},
		{"no model", key, `{"messages":[]}`, 400, "invalid_field", "model"},
		{"model a number", key, `{"model":7,"messages":[]}`, 400, "invalid_field", "model"},
		{"model empty", key, `{"model":"","messages":[]}`, 400, "invalid_field", "model"},
		{"model twice", key, `{"model":"qwen","model":"exact","messages":[]}`, 400, "invalid_field", "model"},
		{"model twice, once escaped", key, `{"model":"qwen","mod\u0065l":"exact","messages":[]}`, 400, "invalid_field", "model"},
		{"stream a text", key, `{"model":"qwen","stream":"yes"}`, 400, "invalid_field", "stream"},
		{"max_tokens a text", key, `{"model":"qwen","max_tokens":"7"}`, 400, "invalid_field", "max_tokens"},
		{"more tokens than a number holds", key, `{"model":"qwen","max_tokens":9000000000000000000,"n":9}`, 400, "invalid_field", ""},
		{"an unknown model", key, fleet.Chat("nope", "hi"), 404, "model_not_found", "model"},
		{"a model not allowed", narrow, good, 403, "model_not_allowed", "model"},
		{"an unknown model not allowed", narrow, fleet.Chat("nope", "hi"), 403, "model_not_allowed", "model"},
		{"an unknown model allowed", narrow, fleet.Chat("other-1", "hi"), 404, "model_not_found", "model"},
		{"too large", key, fleet.Chat("qwen", strings.Repeat("x", 10000)), 413, "body_too_large", ""},
	}
	for i, c := range cases {
		a := fleet.Ask(t, s.Replicas[0].URL, c.key, c.body, "X-Request-Id: case-"+string(rune('a'+i)))
		var body struct {
			Error struct {
				Message, Type, Code string
				Param               *string
			}
		}
		if err := json.Unmarshal([]byte(a.Body), &body); err != nil || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: no error body (%v): %s", c.name, err, a.Body)
		}
		if a.Status != c.status || body.Error.Code != c.code || body.Error.Message == "" || body.Error.Type == "" {
			t.Errorf("%s: %d %s, want %d %s: %s", c.name, a.Status, body.Error.Code, c.status, c.code, a.Body)
		}
		if c.param != "" && (body.Error.Param == nil || *body.Error.Param != c.param) {
			t.Errorf("%s: the answer does not name %s: %s", c.name, c.param, a.Body)
		}
		if (a.Status == 401) != (a.Header.Get("Www-Authenticate") == "Bearer") {
			t.Errorf("%s: WWW-Authenticate %q on a %d", c.name, a.Header.Get("Www-Authenticate"), a.Status)
		}
	}
	if n := len(s.seen()); n != 0 {
		t.Errorf("an engine was called %d times", n)
	}
	lines := s.WaitLines(len(cases))
	if len(lines) != len(cases) {
		t.Fatalf("%d usage lines for %d requests", len(lines), len(cases))
	}
	for i, l := range lines {
		if l.RequestID != "case-"+string(rune('a'+i)) || l.Outcome != "rejected" || l.Status != cases[i].status || l.ErrorCode != cases[i].code || l.CostNUSD == nil || *l.CostNUSD != 0 {
			t.Errorf("%s: usage line %s", cases[i].name, l.Raw)
		}
		if strings.Contains(l.Raw, key) || cases[i].key != "" && strings.Contains(l.Raw, cases[i].key) {
			t.Errorf("%s: the usage line holds the key", cases[i].name)
		}
	}
	if found := s.redis.CLI("KEYS", "hg:*:rate:*"); found != "" {
		t.Errorf("refused requests left counters: %s", found)
	}
	if found := s.redis.CLI("KEYS", "hg:*:open"); found != "" {
		t.Errorf("refused requests left reservations: %s", found)
	}
}

// TestUnknownRoutes: nothing but the listed routes is reachable, however it is written.
func TestUnknownRoutes(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast)
	key := s.Key("--tenant", "acme")
	for _, path := range []string{"/", "/v1", "/v1/chat/completions/", "//v1/chat/completions", "/V1/chat/completions", "/v1/chat%2Fcompletions", "/v1/./chat/completions",
		"/x/../v1/chat/completions", "/metrics", "/readyz", "/v1/load_lora_adapter", "/sleep"} {
		r := fleet.Request(t, s.Replicas[0].URL, key, fleet.Chat("qwen", "hi"))
		r.URL.Opaque = path // as it stands, not cleaned
		answer, err := fleet.Client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != 404 {
			t.Errorf("%s: %d, want 404", path, answer.StatusCode)
		}
	}
	if n := len(s.seen()); n != 0 {
		t.Errorf("an engine was called %d times", n)
	}
}

// TestBadStart: an unknown name, a bad value, an unreadable catalogue: the start stops with one line that says so.
func TestBadStart(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("models:\n  a: {price: {prompt: cheap}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  []string
		want []string
	}{
		"unknown name":         {[]string{"HG_LISTNE=:1"}, []string{"HG_LISTNE", "HG_LISTEN"}},
		"bad values":           {[]string{"HG_QUEUE_WAIT=soon", "HG_ATTEMPTS=0"}, []string{"HG_QUEUE_WAIT", "HG_ATTEMPTS"}},
		"no catalogue":         {[]string{"HG_CATALOG=" + broken + ".gone"}, []string{"HG_CATALOG"}},
		"unreadable catalogue": {[]string{"HG_CATALOG=" + broken}, []string{"prompt"}},
		"bad backends":         {[]string{"HG_BACKENDS=nonsense"}, []string{"HG_BACKENDS"}},
		"secret":               {[]string{"HG_REDIS_URL=http://u:geheim@x"}, []string{"HG_REDIS_URL"}},
	} {
		for _, command := range []string{"serve", "dev"} {
			cmd := exec.Command(fleet.Binary(t), command)
			cmd.Env = append(os.Environ(), append(c.env, "HG_ADMIN_LISTEN=127.0.0.1:0")...)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Errorf("%s: %s started", name, command)
			}
			text := strings.TrimSpace(string(out))
			if strings.Contains(text, "\n") || text == "" || strings.Contains(text, "geheim") {
				t.Errorf("%s: %s says, not in one line or with a secret:\n%s", name, command, text)
			}
			for _, w := range c.want {
				if !strings.Contains(text, w) {
					t.Errorf("%s: %s does not name %s: %s", name, command, w, text)
				}
			}
		}
	}
}
