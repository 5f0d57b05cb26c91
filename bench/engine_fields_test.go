package bench

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// lastFields are the fields of the body the engine read last.
func lastFields(t *testing.T, e *engine.Server) map[string]any {
	t.Helper()
	seen := e.Seen()
	var m map[string]any
	if err := json.Unmarshal(seen[len(seen)-1].Body, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestEnginesSchedulingPriority: an engine that schedules by priority is told the key's class; one that does not would refuse
// any number but 0.
func TestEnginesSchedulingPriority(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast)
	const body = `{"model":"qwen","messages":[{"role":"user","content":"hi"}]}`
	rude := strings.Replace(body, `"model"`, `"priority":-1000,"model"`, 1)
	modest := strings.Replace(body, `"model"`, `"priority":70,"model"`, 1)
	key, first := s.Key("--tenant", "acme"), s.Key("--tenant", "acme", "--priority", "2")
	told := func(key, body string) any {
		t.Helper()
		if a := fleet.Ask(t, s.Replicas[0].URL, key, body); a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		return lastFields(t, s.engines[len(s.engines)-1])["priority"]
	}
	if got := told(key, body); got != nil {
		t.Errorf("an engine without priorities was told %v", got)
	}
	if got := told(first, rude); got != 0.0 {
		t.Errorf("an engine without priorities was told %v", got)
	}

	ranked, err := engine.Start(engine.Options{Models: []string{"ranked"}, Speed: 100, Priority: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ranked.Close() })
	registerAs(t, s.consul, "ranked", ranked.Addr, map[string]string{"model": "ranked", "slots": "8", "priority": "true"})
	s.engines = append(s.engines, ranked)
	lab.Eventually(t, 20*time.Second, func() bool {
		return s.Replicas[0].Metric(`headgate_backends{pool="ranked",state="healthy"}`) == 1
	}, "the engine is known")
	for _, c := range []struct {
		key, body string
		want      float64
	}{{key, body, 5}, {key, rude, 5}, {key, modest, 70}, {first, body, 2}, {first, rude, 2}} {
		if got := told(c.key, strings.Replace(c.body, "qwen", "ranked", 1)); got != c.want {
			t.Errorf("told %v, not %v: %s", got, c.want, c.body)
		}
	}
}

// TestPrefixIsolation: a team that wants its prefixes apart gets a salt of its own, which nobody else can send.
func TestPrefixIsolation(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast)
	apart := s.Key("--tenant", "acme", "--team", "search", "--isolate-prefix")
	mate := s.Key("--tenant", "acme", "--team", "search", "--isolate-prefix")
	other := s.Key("--tenant", "acme", "--team", "ads", "--isolate-prefix")
	open := s.Key("--tenant", "acme")
	body := func(more string) string {
		return `{"model":"qwen",` + more + `"max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`
	}
	salt := func(key, path, more string) string {
		t.Helper()
		if a := fleet.Post(t, s.Replicas[0].URL+path, key, body(more)); a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		got, _ := lastFields(t, s.engines[0])["cache_salt"].(string)
		return got
	}
	const chat = "/v1/chat/completions"
	own := salt(apart, chat, "")
	if own == "" || own != salt(mate, chat, "") || own != salt(apart, "/v1/messages", "") {
		t.Errorf("a team shares one salt, on every route: %q", own)
	}
	if got := salt(other, chat, ""); got == "" || got == own {
		t.Errorf("another team has the salt %q", got)
	}
	if got := salt(apart, chat, `"cache_salt":"mine",`); got == own || got == "mine" {
		t.Errorf("a client's own salt keeps its prompts apart inside the team: %q", got)
	}
	if got := salt(open, chat, `"cache_salt":"mine",`); got != "mine" {
		t.Errorf("a salt that is the client's alone became %q", got)
	}
	for _, forged := range []string{own, strings.Replace(own, "h", `\u0068`, 1)} {
		if a := fleet.Post(t, s.Replicas[0].URL+chat, open, body(`"cache_salt":"`+forged+`",`)); a.Status != http.StatusBadRequest || !strings.Contains(a.Body, "cache_salt") {
			t.Errorf("somebody else's salt: %d %s", a.Status, a.Body)
		}
	}
}
