package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// TestLeastRightsInRedis: under the user of deploy/redis-acl.conf every kind of request is served, a dead replica is cleared,
// every command works, and Redis has refused nothing.
func TestLeastRightsInRedis(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../deploy/redis-acl.conf")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "acl.conf")
	const password = "pass-7f3a9c0e-word"
	if err := os.WriteFile(path, []byte(strings.Replace(string(rules), ">change-me", ">"+password, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &stack{redis: lab.Redis(t, "--include", path), consul: lab.Consul(t)}
	s.addEngine(t, "b1", engine.Options{Speed: 20, Slots: 2})
	url := "redis://headgate:" + password + "@" + s.redis.Addr + "/0"
	s.Fleet = fleet.Start(t, fleet.Options{Replicas: 2, Redis: url, Consul: s.consul.Addr, Catalogue: cached})
	for _, r := range s.Replicas {
		s.waitServed(t, r, 1)
	}
	secrets := everyKindOfRequest(t, s)
	everyCommand(t, s)

	// A replica dies with a stream open: the other one clears it.
	go fleet.Ask(t, s.Replicas[1].URL, secrets[0], fleet.Chat("qwen", "long", `"stream":true`, `"max_tokens":5000`, `"ignore_eos":true`))
	lab.Eventually(t, 10*time.Second, func() bool { return s.slots(t) > 0 }, "the stream holds a slot")
	s.Replicas[1].Kill()
	lab.Eventually(t, 40*time.Second, func() bool { return s.slots(t) == 0 && s.redis.CLI("ZCARD", "hg:{t:acme}:reservations") == "0" }, "what it held is free")

	if log := s.redis.CLI("ACL", "LOG"); log != "" {
		t.Errorf("Redis refused:\n%s", log)
	}
	for _, r := range s.Replicas {
		for _, secret := range append(secrets, password) {
			if strings.Contains(r.Output(), secret) {
				t.Errorf("%s wrote a secret to its log", r.Name)
			}
		}
		for _, l := range r.Lines() {
			for _, secret := range append(secrets, password) {
				if strings.Contains(l.Raw, secret) {
					t.Errorf("a usage line holds a secret: %s", l.Raw)
				}
			}
		}
	}
}

const cached = `models:
  qwen:
    price: {prompt: 2, completion: 6}
    max_output_tokens: 64
    cache: {ttl: 10m, max_bytes: 1048576}
  exact: {pool: qwen, price: {prompt: 0, completion: 1}}
`

// everyKindOfRequest sends what makes the replicas use each of their scripts, and returns the keys it used.
func everyKindOfRequest(t *testing.T, s *stack) []string {
	t.Helper()
	key := s.Key("--tenant", "acme", "--team", "search", "--user", "ann", "--rpm", "1000", "--tpm", "10000000", "--parallel", "50", "--budget", "50/month", "--budget", "5/day", "--tags", "x,y")
	poor := s.Key("--tenant", "acme", "--budget", "0.000001/month")
	answers := make(chan fleet.Answer)
	const crowd = 12 // more than there are slots: some wait
	for i := range crowd {
		go func() {
			body := fleet.Chat("exact", "one of many", `"max_tokens":64`, `"ignore_eos":true`)
			if i%2 == 0 {
				body = fleet.Chat("qwen", "a stream "+strings.Repeat("long ", i*500), `"stream":true`)
			}
			answers <- fleet.Ask(t, s.Replicas[i%2].URL, key, body, "X-Headgate-Tags: a,b")
		}()
	}
	for range crowd {
		if a := <-answers; a.Status != 200 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	for _, c := range []struct {
		path, key, body string
		status          int
	}{
		{"/v1/chat/completions", key, fleet.Chat("qwen", "again", `"temperature":0`), 200},
		{"/v1/chat/completions", key, fleet.Chat("qwen", "again", `"temperature":0`), 200}, // from the cache
		{"/v1/chat/completions", poor, fleet.Chat("qwen", "poor"), 429},
		{"/v1/chat/completions", "sk-acme-" + strings.Repeat("0", 32), fleet.Chat("qwen", "x"), 401},
		{"/v1/responses", key, `{"model":"qwen","input":"hello"}`, 200},
		{"/v1/messages", key, `{"model":"qwen","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`, 200},
		{"/v1/embeddings", key, `{"model":"qwen","input":"hello"}`, 200},
	} {
		if a := fleet.Post(t, s.Replicas[0].URL+c.path, c.key, c.body); a.Status != c.status {
			t.Errorf("%s: %d, not %d: %s", c.path, a.Status, c.status, a.Body)
		}
	}
	return []string{key, poor}
}

// everyCommand runs the commands people type.
func everyCommand(t *testing.T, s *stack) {
	t.Helper()
	foreign := filepath.Join(t.TempDir(), "keys.jsonl")
	if err := os.WriteFile(foreign, []byte(`{"key":"sk-proj-someone-elses-key","tenant":"beta","id":"old"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Run("tenants", "create", "beta", "--rpm", "5")
	s.Run("teams", "create", "search", "--tenant", "beta")
	s.Run("users", "create", "bob", "--tenant", "beta", "--budget", "3/week")
	s.Run("keys", "import", "--from", foreign)
	s.Run("keys", "rotate", "old", "--tenant", "beta", "--grace", "1h")
	s.Run("keys", "set", "old", "--tenant", "beta", "--tpm", "5")
	s.Run("keys", "show", "old", "--tenant", "beta")
	s.Run("keys", "delete", "old", "--tenant", "beta")
	for _, kind := range []string{"tenants", "teams", "users", "keys"} {
		s.Run(kind, "list")
	}
	s.Run("tenants", "delete", "beta")
}
