package bench

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
)

// hostile are ids that would leave a key's place if they stood in its name as they are.
var hostile = []string{
	"x}:spend:tenant:beta", "{t:beta}", "}{t:beta}", "a:b", "a b", "a\nb", "a\x00b", "a\r\nSET hg:{t:beta} 1", "../beta", "*", "~0123456789abcdef0123456789abcdef",
	"über", strings.Repeat("x", 65), strings.Repeat("{", 300), "a,b", "a|b|c", `a"b`, "%7Bt:beta%7D",
}

// keyShapes are the names a tenant's keys may have; nothing a client sends can make another.
var keyShapes = regexp.MustCompile(`^(hg:tenants|hg:pools|hg:alias:[0-9a-f]{64}|hg:replica:[A-Za-z0-9._-]+:tenants|hg:\{p:(qwen|)\}(:[A-Za-z0-9._~-]+)*|` +
	`hg:\{t:(acme|beta)\}(:(keys|key:[0-9a-f]{64}|(team|user|enduser|tag):(~[0-9a-f]{32}|[A-Za-z0-9._@-]{1,64})|` +
	`rate:[a-z]+:(~[0-9a-f]{32}|[A-Za-z0-9._@-]{1,64})|spend:[a-z]+:(~[0-9a-f]{32}|[A-Za-z0-9._@-]{1,64}):[0-9A-Za-z@-]+|` +
	`parallel|open|reservations|settled|learned|usage|doubtful|names|ids|cache:[0-9A-Za-z_-]+|response:(~[0-9a-f]{32}|[A-Za-z0-9._@-]{1,64})|[a-z]+))?)$`)

// TestTenantIsolation: whatever a client calls its end users, tags, models, responses and requests, it reaches the keys of its
// own tenant only, and every key has one of the documented names.
func TestTenantIsolation(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, cached, 1, 1, fast)
	url := s.Replicas[0].URL
	acme := s.Key("--tenant", "acme", "--team", "search", "--budget", "5/day")
	s.Key("--tenant", "beta", "--budget", "5/day")
	for _, user := range hostile[:3] { // policies under hostile names, too
		s.Run("users", "create", user, "--tenant", "acme", "--json")
		s.Run("users", "delete", user, "--tenant", "acme")
	}
	before := beta(s)
	for _, id := range hostile {
		quoted, _ := json.Marshal(id)
		header := strings.NewReplacer("\n", "", "\r", "", "\x00", "").Replace(id)
		for _, c := range []struct {
			path, body string
			answers    []int
		}{
			{"/v1/chat/completions", fleet.Chat("qwen", "hi", `"user":`+string(quoted)), []int{200, 400}},
			{"/v1/chat/completions", fleet.Chat("qwen", "hi", `"prompt_cache_key":`+string(quoted)), []int{200, 400}},
			{"/v1/chat/completions", `{"model":` + string(quoted) + `,"messages":[]}`, []int{404, 400}},
			{"/v1/responses", `{"model":"qwen","input":"x","previous_response_id":` + string(quoted) + `}`, []int{404, 400}},
		} {
			a := fleet.Post(t, url+c.path, acme, c.body, "X-Headgate-Tags: "+header, "X-Request-Id: "+header)
			if a.Status != c.answers[0] && a.Status != c.answers[1] {
				t.Errorf("%q: %s %d %s", id, c.path, a.Status, a.Body)
			}
		}
	}
	s.booksAgree(t, "acme", 4*len(hostile))
	for _, key := range strings.Split(s.redis.CLI("KEYS", "*"), "\n") {
		if !keyShapes.MatchString(key) {
			t.Errorf("a key of no documented shape: %q", key)
		}
	}
	if after := beta(s); after != before {
		t.Errorf("the other tenant was touched:\n%s\n%s", before, after)
	}
}

// beta is all that the other tenant has in Redis.
func beta(s *stack) string {
	lines := strings.Split(s.redis.CLI("EVAL", strings.Replace(everything, "'*'", "'hg:{t:beta}*'", 1), "0"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
