package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// TestKEY3_ExpiryAndRotationActAtTheStatedInstant: two gateways, a rotation with a grace time, and keys that expire, one of
// them imported, in every form; each answer is judged by when it was asked for and when it came.
func TestKEY3_ExpiryAndRotationActAtTheStatedInstant(t *testing.T) {
	t.Parallel()
	s := newStack(t, 2, 1, engine.Options{Speed: 1, Slots: 64})
	k1 := s.Key("--tenant", "acme", "--name", "k1", "--rpm", "100000", "--tpm", "100000000")
	k3 := s.Key("--tenant", "acme", "--name", "k3", "--expires", "6s")
	const foreign = "sk-proj-expires_soon-0123456789"
	file := filepath.Join(t.TempDir(), "keys.jsonl")
	line := fmt.Sprintf(`{"key":%q,"tenant":"acme","id":"k4","expires_at":%q}`, foreign, time.Now().Add(6*time.Second).UTC().Format("2006-01-02T15:04:05.000Z"))
	if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Run("keys", "import", "--from", file)
	expires := func(key string) time.Time {
		var ms int64
		_, _ = fmt.Sscan(s.redis.CLI("HGET", coordinator.KeyRecord("acme", coordinator.HashKey(key)), "expires_at"), &ms)
		return time.UnixMilli(ms)
	}
	var rotated struct{ ID, Key, Old_expires_at string }
	if err := json.Unmarshal([]byte(s.Run("keys", "rotate", "k1", "--grace", "5s", "--json")), &rotated); err != nil {
		t.Fatal(err)
	}
	t1, x, x4 := expires(k1), expires(k3), expires(foreign)
	if at, err := time.Parse(time.RFC3339, rotated.Old_expires_at); err != nil || !at.Equal(t1) {
		t.Fatalf("told %s, stored %v", rotated.Old_expires_at, t1)
	}

	// A stream of K3 that began before its end goes on to its own.
	long := make(chan fleet.Answer, 1)
	lab.Eventually(t, 10*time.Second, func() bool { return time.Until(x) < 500*time.Millisecond || time.Until(t1) < time.Second }, "the ends are near")
	go func() {
		long <- fleet.Ask(t, s.Replicas[0].URL, k3, fleet.Chat("qwen", "hi", `"stream":true`, `"max_tokens":250`, `"ignore_eos":true`), "X-Request-Id: long")
	}()
	const slack = 200 * time.Millisecond
	asked, n := map[string]int{}, 0
	for last := maxTime(maxTime(t1, x), x4).Add(2 * time.Second); time.Now().Before(last); time.Sleep(20 * time.Millisecond) {
		for i, r := range s.Replicas {
			for name, c := range map[string]struct {
				key string
				end time.Time
			}{"k1": {k1, t1}, "k1'": {rotated.Key, time.Time{}}, "k3": {k3, x}, "imported": {foreign, x4}} {
				f := forms[n%len(forms)]
				n++
				from := time.Now()
				a := ask(t, "POST", r.URL+f.path, c.key, f.body("qwen", 1))
				to := time.Now()
				switch {
				case c.end.IsZero() || to.Before(c.end.Add(-slack)):
					asked[name+" before"]++
					if a.Status != 200 {
						t.Errorf("%s on gateway %d, %v before its end: %d %s", name, i+1, c.end.Sub(to), a.Status, a.Body)
					}
				case from.After(c.end.Add(slack)):
					asked[name+" after"]++
					if a.Status != 401 {
						t.Errorf("%s on gateway %d, %v after its end: %d %s", name, i+1, from.Sub(c.end), a.Status, a.Body)
					}
				}
			}
		}
	}
	for _, name := range []string{"k1 before", "k1 after", "k1' before", "k3 before", "k3 after", "imported before", "imported after"} {
		if asked[name] == 0 {
			t.Errorf("%s its end: nothing was asked", name)
		}
	}
	if a := <-long; a.Status != 200 || !strings.HasSuffix(a.Body, "data: [DONE]\n\n") {
		t.Errorf("the stream that was running: %d %q", a.Status, a.Body[max(0, len(a.Body)-200):])
	}
	if l := s.lineOf(t, "long"); l.Outcome != "ok" || l.Completion != 250 {
		t.Errorf("its line: %s", l.Raw)
	}

	// One spend, one rpm and one tpm for both keys.
	for kind := range map[string]bool{"rate": true, "spend": true} {
		if found := strings.Fields(s.redis.CLI("--scan", "--pattern", "hg:{t:acme}:"+kind+":key:"+rotated.ID+"*")); len(found) != 1 {
			t.Errorf("%s counters of the two keys: %v", kind, found)
		}
	}
	s.redis.CLI("HSET", coordinator.KeyRecord("acme", coordinator.HashKey(rotated.Key)), "expires_at", "soon")
	if a := fleet.Ask(t, s.Replicas[0].URL, rotated.Key, fleet.Chat("qwen", "hi")); a.Status != 401 {
		t.Errorf("an end that cannot be read: %d %s", a.Status, a.Body)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestImportedKeysWork as they stand, in whichever tenant they were put, and no longer once deleted.
func TestImportedKeysWork(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast)
	const secret, misleading = "sk-proj-aB_c-0123456789", "sk-other-0123456789abcdefghijABCDEFGHIJ0123"
	file := filepath.Join(t.TempDir(), "keys.jsonl")
	if err := os.WriteFile(file, []byte(`{"key":"`+secret+`","tenant":"acme","id":"k7","rpm":1}`+"\n"+`{"key":"`+misleading+`","tenant":"acme"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := fleet.Ask(t, s.Replicas[0].URL, secret, fleet.Chat("qwen", "hi")); a.Status != 401 {
		t.Fatalf("before: %d %s", a.Status, a.Body)
	}
	s.Run("keys", "import", "--from", file)
	lab.Eventually(t, 5*time.Second, func() bool { // a refusal may be repeated for a second
		return fleet.Ask(t, s.Replicas[0].URL, secret, fleet.Chat("qwen", "hi")).Status == 200
	}, "the imported key is served")
	if a := fleet.Ask(t, s.Replicas[0].URL, secret, fleet.Chat("qwen", "hi")); a.Status != 429 || !strings.Contains(a.Body, "key k7 allows 1 request per minute") {
		t.Errorf("its limit: %d %s", a.Status, a.Body)
	}
	if a := fleet.Ask(t, s.Replicas[0].URL, misleading, fleet.Chat("qwen", "hi"), "X-Request-Id: mine"); a.Status != 200 {
		t.Errorf("a key that looks like another tenant's: %d %s", a.Status, a.Body)
	}
	if l := s.lineOf(t, "mine"); l.Tenant != "acme" {
		t.Errorf("filed for %s", l.Tenant)
	}
	s.Run("keys", "delete", "k7")
	lab.Eventually(t, 3*time.Second, func() bool { // the 429 may be repeated for a second
		return fleet.Ask(t, s.Replicas[0].URL, secret, fleet.Chat("qwen", "hi")).Status == 401
	}, "the deleted key is refused")
}
