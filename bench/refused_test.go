package bench

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// TestOperatorsSeeWhyAKeyIsRefused: the client of a disabled, an expired and an unreadable key is told the same; the
// usage line says which it is, how long the answer was, and the log names the unreadable record once.
func TestOperatorsSeeWhyAKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast)
	record := func(key string) string { return "hg:{t:acme}:key:" + coordinator.HashKey(key) }
	disabled, expired, garbled := s.Key("--tenant", "acme"), s.Key("--tenant", "acme"), s.Key("--tenant", "acme")
	s.redis.CLI("HSET", record(disabled), "disabled", "1")
	s.redis.CLI("HSET", record(expired), "expires_at", "1000")
	s.redis.CLI("HSET", record(garbled), "rpm", "a few")
	good := fleet.Chat("qwen", "hi")
	for _, c := range []struct{ label, key, code, filed string }{
		{"unknown", "sk-acme-" + strings.Repeat("x", 32), "invalid_api_key", "invalid_api_key"},
		{"none", "", "invalid_api_key", "invalid_api_key"},
		{"disabled", disabled, "invalid_api_key", "key_disabled"},
		{"expired", expired, "invalid_api_key", "key_expired"},
		{"garbled-1", garbled, "invalid_api_key", "record_unreadable"},
		{"garbled-2", garbled, "invalid_api_key", "record_unreadable"},
	} {
		a := fleet.Ask(t, s.Replicas[0].URL, c.key, good, "X-Request-Id: "+c.label)
		if a.Status != 401 || !strings.Contains(a.Body, `"code":"`+c.code+`"`) || strings.Contains(a.Body, c.filed) != (c.filed == c.code) {
			t.Errorf("%s: %d %s", c.label, a.Status, a.Body)
		}
		if hint := strings.Contains(a.Body, "Authorization: Bearer"); hint != (c.key == "") {
			t.Errorf("%s: says how to send a key: %v: %s", c.label, hint, a.Body)
		}
		line := s.lineOf(t, c.label)
		var more struct {
			Response_bytes int
			Key_id         string
		}
		if err := json.Unmarshal([]byte(line.Raw), &more); err != nil || line.ErrorCode != c.filed || more.Response_bytes != len(a.Body) {
			t.Errorf("%s: want %s and %d bytes: %s", c.label, c.filed, len(a.Body), line.Raw)
		}
		if known := strings.HasPrefix(more.Key_id, "key_"); known != (c.label != "none" && c.label != "unknown") {
			t.Errorf("%s: key_id %q", c.label, more.Key_id)
		}
	}
	if n := strings.Count(s.Replicas[0].Output(), "a record cannot be read"); n != 1 {
		t.Errorf("the unreadable record is logged %d times", n)
	}
	if !strings.Contains(s.Replicas[0].Output(), `"scope":"key"`) {
		t.Error("the log does not name the scope")
	}
}

// TestRefusalsSayHowManyAndWhen: one is singular, and what can never fit is not worth a retry.
func TestRefusalsSayHowManyAndWhen(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast)
	one := s.Key("--tenant", "acme", "--rpm", "1")
	if a := fleet.Ask(t, s.Replicas[0].URL, one, fleet.Chat("qwen", "hi")); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	a := fleet.Ask(t, s.Replicas[0].URL, one, fleet.Chat("qwen", "hi"))
	if a.Status != 429 || !strings.Contains(a.Body, "allows 1 request per minute; 0 are left.") || a.Header.Get("Retry-After") == "" || a.Header.Get("X-Should-Retry") != "" {
		t.Errorf("%d %v %s", a.Status, a.Header, a.Body)
	}
	small := s.Key("--tenant", "acme", "--tpm", "100")
	a = fleet.Ask(t, s.Replicas[0].URL, small, fleet.Chat("qwen", "hi", `"max_tokens":500`))
	if a.Status != 429 || !strings.Contains(a.Body, "allows 100 tokens per minute, and this request alone asks for more") ||
		a.Header.Get("Retry-After") != "" || a.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("%d %v %s", a.Status, a.Header, a.Body)
	}
	a = fleet.Ask(t, s.Replicas[0].URL, small, fleet.Chat("qwen", "hi", `"max_tokens":-5`))
	if a.Status != 400 || !strings.Contains(a.Body, "must be a whole number, 0 or more, or null") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

// lineOf waits for the usage line of a request by its label.
func (s *stack) lineOf(t *testing.T, label string) fleet.Line {
	t.Helper()
	var found fleet.Line
	lab.Eventually(t, 20*time.Second, func() bool {
		for _, l := range s.Lines() {
			if l.RequestID == label {
				found = l
				return true
			}
		}
		return false
	}, "a usage line of %s", label)
	return found
}
