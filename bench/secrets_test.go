package bench

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// everything is the whole of a Redis as text: names, fields, values.
const everything = `local out = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, read = redis.call('TYPE', key).ok, { string = {'GET'}, hash = {'HGETALL'}, set = {'SMEMBERS'}, zset = {'ZRANGE', 0, -1}, list = {'LRANGE', 0, -1}, stream = {'XRANGE', '-', '+'} }
  out[#out + 1] = key .. ' ' .. cjson.encode(redis.call(read[kind][1], key, unpack(read[kind], 2)))
end
return out`

// TestNoSecretIsWritten: keys, tokens and passwords, valid or not and wherever a client puts them, stand in no log, usage
// line, metric, answer, crash dump, nor in Redis, and reach no engine.
func TestNoSecretIsWritten(t *testing.T) {
	t.Parallel()
	s := &stack{redis: lab.Redis(t), consul: lab.Consul(t)}
	s.redis.CLI("ACL", "SETUSER", "gate", "on", ">redis-pass-4711-word", "~*", "&*", "+@all")
	s.addEngine(t, "b1", engine.Options{Speed: 100, Slots: 8})
	s.Fleet = fleet.Start(t, fleet.Options{Redis: "redis://gate:redis-pass-4711-word@" + s.redis.Addr + "/0", Consul: s.consul.Addr, Catalogue: cached,
		Env: []string{"HG_LOG_LEVEL=trace", "HG_ADMIN_TOKEN=admin-token-0815", "HG_CACHE_REDIS_URL=redis://gate:redis-pass-4711-word@" + s.redis.Addr + "/1"}})
	r := s.Replicas[0]
	lab.Eventually(t, 30*time.Second, func() bool { return strings.Contains(r.Output(), "backend healthy") }, "the engine is known")

	foreign := filepath.Join(t.TempDir(), "keys.jsonl")
	if err := os.WriteFile(foreign, []byte(`{"key":"sk-proj-imported-7777","tenant":"acme","id":"old"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := s.Run("keys", "import", "--from", foreign) + s.Run("keys", "list", "--json") + s.Run("keys", "show", "old", "--tenant", "acme")
	secrets := []string{s.Key("--tenant", "acme"), s.Key("--tenant", "acme", "--disabled"), s.Key("--tenant", "acme", "--rpm", "0"),
		"sk-acme-" + strings.Repeat("W", 40), "sk-proj-imported-7777", "not-even-a-key-123456"}
	var answers bytes.Buffer
	ask := func(r *http.Request) {
		answer, err := fleet.Client.Do(r)
		if err != nil {
			fmt.Fprintln(&answers, err)
			return
		}
		defer answer.Body.Close()
		fmt.Fprintln(&answers, answer.Header)
		_, _ = io.Copy(&answers, answer.Body)
	}
	for _, secret := range secrets {
		for _, body := range []string{fleet.Chat("qwen", "hi"), fleet.Chat("qwen", "hi", `"stream":true`), fleet.Chat("nowhere", "hi"), `{"model":`, fleet.Chat("qwen", "x", `"max_tokens":"`+secret+`"`)} {
			ask(fleet.Request(t, r.URL+"/v1/chat/completions", secret, body))
			ask(fleet.Request(t, r.URL+"/v1/chat/completions", "", body, "X-Api-Key: "+secret))
			ask(fleet.Request(t, r.URL+"/v1/chat/completions", secret, body, "X-Api-Key: another-"+secret))
			ask(fleet.Request(t, r.URL+"/v1/messages", "", body, "Authorization: Basic "+secret))
		}
		ask(fleet.Request(t, r.URL+"/v1/models?api_key="+secret+"&key="+secret, secret, ""))
		ask(fleet.Request(t, r.URL+"/nowhere/"+secret[:4], secret, "{}"))
	}
	for _, token := range []string{"admin-token-0815", "wrong-token-9999", secrets[0]} {
		for _, path := range []string{"/metrics", "/capacity", "/readyz", "/admin/v1/keys", "/debug/pprof/"} {
			ask(fleet.Request(t, r.Admin+path, token, ""))
		}
	}
	s.redis.Stop() // and what is said while Redis is away
	ask(fleet.Request(t, r.URL+"/v1/chat/completions", secrets[0], fleet.Chat("qwen", "hi")))
	s.redis.Cont()

	var engines, usage strings.Builder
	for _, seen := range s.seen() {
		fmt.Fprintln(&engines, seen.Header, string(seen.Body))
	}
	for _, l := range r.Lines() {
		usage.WriteString(l.Raw)
	}
	if err := syscall.Kill(r.PID(), syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, 20*time.Second, func() bool { return strings.Contains(r.Output(), "goroutine ") }, "the process leaves a crash dump")
	places := map[string]string{"the log or the crash dump": r.Output(), "a usage line": usage.String(), "an answer": answers.String(), "an engine": engines.String(),
		"Redis": s.redis.CLI("EVAL", everything, "0"), "the command line's output": said}
	for place, text := range places {
		if len(text) < 100 {
			t.Errorf("%s: next to nothing was looked at: %q", place, text)
		}
		for _, secret := range append(secrets, "redis-pass-4711-word", "admin-token-0815", "wrong-token-9999") {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%s holds %s: …%s", place, secret, text[max(0, at-200):min(len(text), at+100)])
			}
			if _, bare, ok := strings.Cut(secret, "sk-acme-"); ok && strings.Contains(text, bare) {
				t.Errorf("%s holds the secret part of %s", place, secret)
			}
		}
	}
}
