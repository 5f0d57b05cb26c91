package bench

import (
	"testing"

	"github.com/headgate/headgate/bench/fleet"
)

// TestAMovedKeyAddsNothingToItsOldTeam: a key that was put into another team is served what that team was answered, and what it is
// answered is kept for that team alone, also on the replica that remembers its old one.
func TestAMovedKeyAddsNothingToItsOldTeam(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, caching, 1, 1, fast)
	moved, stayed := s.Key("--tenant", "acme", "--team", "search", "--name", "moved"), s.Key("--tenant", "acme", "--team", "search")
	s.Run("teams", "create", "ops", "--tenant", "acme")
	body := func(prompt string) string { return fleet.Chat("qwen", prompt, `"max_tokens":4`) }
	for _, key := range []string{moved, stayed} {
		if a := fleet.Ask(t, s.Replicas[0].URL, key, body("first use")); a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	s.Run("keys", "set", "moved", "--tenant", "acme", "--team", "ops")
	if a := fleet.Ask(t, s.Replicas[0].URL, moved, body("a secret of ops"), "X-Request-Id: moved"); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if l := s.lineOf(t, "moved"); l.Team != "ops" {
		t.Fatalf("filed for %s", l.Team)
	}
	s.hits(t, moved, body("a secret of ops"), "the second for the new team", "") // the post-call batch has passed
	if a := fleet.Ask(t, s.Replicas[0].URL, stayed, body("a secret of ops")); a.Header.Get("X-Headgate-Cache") == "hit" {
		t.Error("the old team is served what the new one was answered")
	}
}
