package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fakeHead is a request's head by hand.
type fakeHead map[string][]string

func (h fakeHead) Context() context.Context    { return context.Background() }
func (h fakeHead) Method() string              { return "POST" }
func (h fakeHead) Path() string                { return "/v1/chat/completions" }
func (h fakeHead) Query() string               { return "" }
func (h fakeHead) Header(name string) []string { return h[name] }
func (h fakeHead) RemoteIP() string            { return "127.0.0.1" }

// TestHDR2_Credentials: scheme in any case, secret exact, no ambiguity (the cases of HDR-2 that need no Redis).
func TestHDR2_Credentials(t *testing.T) {
	alpha := credentialHash(t, "sk-test-alpha")
	for _, c := range []struct {
		head fakeHead
		want string // hash, or "" with status
		no   int
	}{
		{fakeHead{"Authorization": {"Bearer sk-test-alpha"}}, alpha, 0},
		{fakeHead{"Authorization": {"bearer sk-test-alpha"}}, alpha, 0},
		{fakeHead{"Authorization": {"BEARER   sk-test-alpha"}}, alpha, 0},
		{fakeHead{"X-Api-Key": {"sk-test-alpha"}}, alpha, 0},
		{fakeHead{"Authorization": {"Bearer sk-test-alpha"}, "X-Api-Key": {"sk-test-alpha"}}, alpha, 0},
		{fakeHead{"Authorization": {"Basic c2stdGVzdA=="}, "X-Api-Key": {"sk-test-alpha"}}, alpha, 0},
		{fakeHead{"Authorization": {"Bearer"}}, "", 401},
		{fakeHead{"Authorization": {"Bearer "}}, "", 401},
		{fakeHead{"Authorization": {"sk-test-alpha"}}, "", 401},
		{fakeHead{"Authorization": {"Basic c2stdGVzdC1hbHBoYTo="}}, "", 401},
		{fakeHead{"X-Api-Key": {" "}}, "", 401},
		{fakeHead{}, "", 401},
		{fakeHead{"Authorization": {"Bearer sk-test-alpha"}, "X-Api-Key": {"sk-test-beta"}}, "", 400},
		{fakeHead{"Authorization": {"Bearer sk-test-alpha", "Bearer sk-test-beta"}}, "", 400},
		{fakeHead{"X-Api-Key": {"a", "b"}}, "", 400},
	} {
		got, no := credentialOf(c.head)
		switch {
		case c.no == 0 && (no != nil || got.hash != c.want):
			t.Errorf("%v: %v %v, want the hash of alpha", c.head, got, no)
		case c.no != 0 && (no == nil || no.Status != c.no):
			t.Errorf("%v: %v, want %d", c.head, no, c.no)
		case no != nil && (no.Status == 401) != (len(no.fields) == 1 && no.fields[0] == headerField{"Www-Authenticate", "Bearer"}):
			t.Errorf("%v: fields %v", c.head, no.fields)
		}
	}
	if upper, _ := credentialOf(fakeHead{"Authorization": {"Bearer SK-TEST-ALPHA"}}); upper.hash == alpha {
		t.Error("the secret's case was ignored")
	}
}

func credentialHash(t *testing.T, key string) string {
	t.Helper()
	c, no := credentialOf(fakeHead{"X-Api-Key": {key}})
	if no != nil {
		t.Fatal(no)
	}
	return c.hash
}

// TestTenantOf: the last dash splits, and only a tenant of the allowed shape is one: no other name reaches a key's name.
func TestTenantOf(t *testing.T) {
	secret := strings.Repeat("aB3", 11)
	for key, want := range map[string]string{
		"sk-acme-" + secret:                            "acme",
		"sk-a-b-c_d-" + secret:                         "a-b-c_d",
		"sk-proj-" + secret:                            "proj",
		"sk-acme-" + secret[:31]:                       "",
		"sk--" + secret:                                "",
		"sk-Acme-" + secret:                            "",
		"sk-a}b-" + secret:                             "",
		"sk-a:b-" + secret:                             "",
		"sk-a\nb-" + secret:                            "",
		"sk-" + strings.Repeat("a", 63) + "-" + secret: strings.Repeat("a", 63),
		"sk-" + strings.Repeat("a", 64) + "-" + secret: "",
		secret: "",
	} {
		if got := tenantOf(key); got != want {
			t.Errorf("%q: tenant %q, want %q", key, got, want)
		}
	}
}

// TestMatches: the same patterns as admit's, see KEY-2.
func TestMatches(t *testing.T) {
	lists := []string{"fam/*,solo"}
	for model, want := range map[string]bool{"fam/x": true, "solo": true, "famz/x": false, "xfam/x": false, "FAM/x": false, "solo2": false,
		"fam/": false, "fam": false, "Solo": false, "other": false} {
		if got := mayUse(lists, model); got != want {
			t.Errorf("%s: %v, want %v", model, got, want)
		}
	}
	if !mayUse(nil, "anything") || mayUse([]string{"a*", "*b"}, "ac") || !mayUse([]string{"a*", "*b"}, "aab") || !mayUse([]string{"a*b*c"}, "aXbYc") || mayUse([]string{"a*b*c"}, "abc") {
		t.Error("no list allows all; every list must allow; a * is at least one character")
	}
	if parted := []string{" a*\tb,\n c "}; !mayUse(parted, "ax") || !mayUse(parted, "b") || !mayUse(parted, "c") || mayUse(parted, "a") || mayUse([]string{" , "}, "") {
		t.Error("lists are parted by commas and white space, as in admit's script")
	}
}

// TestMatchesAsARegularExpression: any pattern of few letters, against the definition.
func TestMatchesAsARegularExpression(t *testing.T) {
	words := func(letters string, most int) (all []string) {
		all = []string{""}
		for from, n := 0, 0; n < most; n++ {
			to := len(all)
			for _, w := range all[from:to] {
				for _, c := range letters {
					all = append(all, w+string(c))
				}
			}
			from = to
		}
		return all
	}
	names := words("ab", 5)
	for _, pattern := range words("ab*", 5) {
		want := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "*", ".+") + "$")
		for _, name := range names {
			if got := matches(pattern, name); got != want.MatchString(name) {
				t.Fatalf("%q, %q: %v", pattern, name, got)
			}
		}
	}
	slow := make(chan bool, 1)
	go func() { slow <- matches(strings.Repeat("*a", 30)+"b", strings.Repeat("a", 200)) }()
	select {
	case <-slow:
	case <-time.After(20 * time.Second):
		t.Fatal("a pattern that goes back in the name for ever")
	}
}

// TestLabel: only a label of the allowed letters is passed on.
func TestLabel(t *testing.T) {
	for sent, want := range map[string]string{"abc-123": "abc-123", "A.b_c": "A.b_c", "": "rid", "a b": "rid", "a\nb": "rid", "é": "rid",
		strings.Repeat("x", 128): strings.Repeat("x", 128), strings.Repeat("x", 129): "rid"} {
		if got := label(sent, "rid"); got != want {
			t.Errorf("%q becomes %q, want %q", sent, got, want)
		}
	}
}

// TestCacheHash: order and blanks do not matter, what shapes the answer does.
func TestCacheHash(t *testing.T) {
	base := cacheHash([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0}`), "search", "", "/v1/chat/completions", "m")
	same := cacheHash([]byte(` { "temperature":0, "stream":false, "messages":[ {"content":"hi","role":"user"} ],"model":"alias"}`), "search", "", "/v1/chat/completions", "m")
	if base == "" || base != same {
		t.Errorf("the same request has two names: %q %q", base, same)
	}
	seen := map[string]string{base: "base"}
	for _, v := range []struct{ what, body, team, user, route, model string }{
		{"tools", `{"messages":[{"role":"user","content":"hi"}],"temperature":0,"tools":[{"type":"function"}]}`, "search", "", "/v1/chat/completions", "m"},
		{"seed", `{"messages":[{"role":"user","content":"hi"}],"temperature":0,"seed":1}`, "search", "", "/v1/chat/completions", "m"},
		{"temperature", `{"messages":[{"role":"user","content":"hi"}],"temperature":0.1}`, "search", "", "/v1/chat/completions", "m"},
		{"big number", `{"messages":[{"role":"user","content":"hi"}],"temperature":0,"seed":9007199254740993}`, "search", "", "/v1/chat/completions", "m"},
		{"next big number", `{"messages":[{"role":"user","content":"hi"}],"temperature":0,"seed":9007199254740992}`, "search", "", "/v1/chat/completions", "m"},
		{"unknown field", `{"messages":[{"role":"user","content":"hi"}],"temperature":0,"top_k":5}`, "search", "", "/v1/chat/completions", "m"},
		{"team", `{"messages":[{"role":"user","content":"hi"}],"temperature":0}`, "other", "", "/v1/chat/completions", "m"},
		{"end user", `{"messages":[{"role":"user","content":"hi"}],"temperature":0}`, "search", "u", "/v1/chat/completions", "m"},
		{"team and user swapped", `{"messages":[{"role":"user","content":"hi"}],"temperature":0}`, "searchu", "", "/v1/chat/completions", "m"},
		{"route", `{"messages":[{"role":"user","content":"hi"}],"temperature":0}`, "search", "", "/v1/completions", "m"},
		{"model", `{"messages":[{"role":"user","content":"hi"}],"temperature":0}`, "search", "", "/v1/chat/completions", "n"},
		{"lone surrogate", `{"messages":[{"role":"user","content":"\ud800"}]}`, "search", "", "/v1/chat/completions", "m"},
		{"another lone surrogate", `{"messages":[{"role":"user","content":"\udfff"}]}`, "search", "", "/v1/chat/completions", "m"},
		{"U+FFFD", `{"messages":[{"role":"user","content":"\ufffd"}]}`, "search", "", "/v1/chat/completions", "m"},
	} {
		hash := cacheHash([]byte(v.body), v.team, v.user, v.route, v.model)
		if other, dup := seen[hash]; dup || hash == "" {
			t.Errorf("%s has the name of %s", v.what, other)
		}
		seen[hash] = v.what
	}
}

// FuzzCredential: a key is one secret, exact, or the request is refused; the tenant it names is one that may stand in a key of
// Redis as it is.
func FuzzCredential(f *testing.F) {
	secret := strings.Repeat("a", 32)
	f.Add("Bearer sk-acme-"+secret, "", "")
	f.Add("bearer  sk-a-b-"+secret+" ", "Basic Zm9v", "sk-a-b-"+secret)
	f.Add("Bearer", "Bearer x", "y")
	f.Add("Bearer sk-{t:b}-"+secret, "Bearer sk-A-"+secret, "sk-a\n-"+secret)
	f.Fuzz(func(t *testing.T, one, two, header string) {
		c, no := credentialOf(fakeHead{"Authorization": {one, two}, "X-Api-Key": {header}})
		if no != nil {
			if no.Status != 400 && no.Status != 401 || c != (credential{}) {
				t.Fatalf("%+v beside %+v", no, c)
			}
			return
		}
		sent := map[string]bool{}
		for _, v := range []string{one, two} {
			if scheme, rest, ok := strings.Cut(strings.TrimSpace(v), " "); ok && strings.EqualFold(scheme, "bearer") && strings.TrimSpace(rest) != "" {
				sent[strings.TrimSpace(rest)] = true
			}
		}
		if v := strings.TrimSpace(header); v != "" {
			sent[v] = true
		}
		if len(sent) != 1 {
			t.Fatalf("%d secrets made one key: %v", len(sent), sent)
		}
		for v := range sent {
			sum := sha256.Sum256([]byte(v))
			if c.hash != hex.EncodeToString(sum[:]) {
				t.Fatalf("%q is not exact", v)
			}
		}
		if strings.Trim(c.tenant, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" || len(c.tenant) > 63 {
			t.Fatalf("tenant %q", c.tenant)
		}
	})
}
