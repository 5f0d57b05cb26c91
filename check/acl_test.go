package check

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	luaCall = regexp.MustCompile(`\w\('([A-Z]{3,})'(?:, '([A-Z]+)')?`)
	goCall  = regexp.MustCompile(`\.Do\(ctx, "([A-Z]+)"|Name: +"([A-Z]{3,})"`)
)

// TestTheACLHasEveryCommand: what scripts and code ask of Redis stands in deploy/redis-acl.conf; a bench test runs under it, but
// no test runs every line of every script.
func TestTheACLHasEveryCommand(t *testing.T) {
	text, err := os.ReadFile("../deploy/redis-acl.conf")
	if err != nil {
		t.Fatal(err)
	}
	granted := strings.Fields(string(text))
	asked := 0
	want := func(path, name, sub string) {
		asked++
		name, sub = strings.ToLower(name), strings.ToLower(sub)
		if !slices.Contains(granted, "+"+name) && !slices.Contains(granted, "+"+name+"|"+sub) && name != "config" { // INFO says the same
			t.Errorf("%s calls %s %s, which deploy/redis-acl.conf does not grant", path, name, sub)
		}
	}
	for _, path := range files(t, ".lua") {
		if strings.HasPrefix(path, "scripts/lua/") && !strings.Contains(path, "testdata") {
			for _, m := range luaCall.FindAllStringSubmatch(read(t, path), -1) {
				want(path, m[1], m[2])
			}
		}
	}
	for _, path := range files(t, ".go") {
		ours := strings.HasPrefix(path, "coordinator/") || strings.HasPrefix(path, "cmd/") || strings.HasPrefix(path, "pipeline/")
		if ours && !strings.HasSuffix(path, "_test.go") {
			for _, m := range goCall.FindAllStringSubmatch(read(t, path), -1) {
				want(path, m[1]+m[2], "")
			}
		}
	}
	if asked < 100 {
		t.Errorf("only %d calls found", asked)
	}
}
