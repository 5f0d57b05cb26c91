package bench

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
)

// pictures: an image is 2048 tokens at 2 micro-dollars unless the entry says less.
const pictures = `models:
  qwen: {price: {prompt: 2, completion: 6}}
  exact: {pool: qwen, price: {prompt: 2, completion: 6}, image_tokens: 256}
`

// withImages is a request with n images and an answer of two tokens.
func withImages(model string, n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%d"}}`, i)
	}
	return `{"model":"` + model + `","max_tokens":2,"messages":[{"role":"user","content":[` + strings.Join(parts, ",") + `]}]}`
}

// TestImagesAreHeld: images count in budgets and token limits before an engine has told what they cost.
func TestImagesAreHeld(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, pictures, 1, 1, fast)
	url := s.Replicas[0].URL
	refused := func(key, body, code string) {
		t.Helper()
		if a := fleet.Ask(t, url, key, body); a.Status != 429 || !strings.Contains(a.Body, code) {
			t.Errorf("want 429 %s, got %d %s", code, a.Status, a.Body)
		}
	}
	money := s.Key("--tenant", "acme", "--budget", "0.03/month") // 15,000 tokens of prompt
	refused(money, withImages("qwen", 40), "insufficient_quota")
	refused(money, withImages("qwen", 8), "insufficient_quota")
	minute := s.Key("--tenant", "acme", "--tpm", "10000")
	refused(minute, withImages("qwen", 5), "rate_limit_exceeded")
	if n := len(s.seen()); n != 0 {
		t.Fatalf("the engine saw %d requests", n)
	}
	for key, body := range map[string]string{money: withImages("exact", 40), minute: withImages("exact", 5)} {
		if a := fleet.Ask(t, url, key, body); a.Status != 200 {
			t.Errorf("where an image is 256 tokens: %d %s", a.Status, a.Body)
		}
	}
	s.booksAgree(t, "acme", 5)
	for _, l := range s.Lines() {
		if l.OverNUSD != 0 || l.Status == 200 && l.Prompt < 256*5 {
			t.Errorf("the hold was too small, or the images cost nothing: %s", l.Raw)
		}
	}
}
