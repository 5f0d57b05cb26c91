package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/bench/lab"
)

// asMain tells the test binary to be headgate: commands that run until a signal are tested as processes.
const asMain = "TEST_BINARY_IS_HEADGATE"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// headgate runs one command line in this process.
func headgate(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, diag bytes.Buffer
	status = surroundings{environ: env, stdout: &out, stderr: &diag}.run(t.Context(), args)
	return status, out.String(), diag.String()
}

// must is headgate for lines that work.
func must(t *testing.T, env []string, args ...string) (stdout string) {
	t.Helper()
	status, out, diag := headgate(t, env, args...)
	if status != 0 {
		t.Fatalf("headgate %s: status %d: %s", strings.Join(args, " "), status, diag)
	}
	return out
}

// TestBadInputIsOneLine: M1.
func TestBadInputIsOneLine(t *testing.T) {
	t.Parallel()
	broken := t.TempDir() + "/models.yaml"
	if err := os.WriteFile(broken, []byte("models:\n  qwen: {price: {prompt: cheap}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	redis := "HG_REDIS_URL=" + lab.SharedRedis(t).URL()
	for _, c := range []struct {
		env    []string
		args   string
		status int
		want   string
	}{
		{[]string{"HG_LISTNE=:1"}, "serve", 1, "HG_LISTNE: unknown variable; did you mean HG_LISTEN?"},
		{[]string{"HG_DRAIN_TIME=soon", "HG_ATTEMPTS=0"}, "serve", 1, "HG_ATTEMPTS: must be from 1 to 10; HG_DRAIN_TIME:"},
		{[]string{"HG_LISTNE=:1"}, "dev", 1, "HG_LISTNE"},
		{[]string{"HG_LISTNE=:1"}, "keys list", 1, "HG_LISTNE"},
		{[]string{"HG_CATALOG=/nowhere.yaml"}, "serve", 1, "/nowhere.yaml"},
		{[]string{"HG_CATALOG=" + broken}, "serve", 1, "qwen"},
		{[]string{"HG_CATALOG=" + broken}, "dev", 1, "qwen"},
		{[]string{"HG_REDIS_URL=redis://bob:s3cret@127.0.0.1:1/0"}, "keys list", 1, "redis at 127.0.0.1:1 not reached: dial"},
		{[]string{redis}, "tenants show nobody", 1, `tenant "nobody" not found`},
		{[]string{redis}, "keys show key_x --tenant nobody", 1, `not found`},
		{nil, "keys create", 2, "needs --tenant"},
		{nil, "keys create --tenant", 2, "needs an argument"},
		{nil, "keys creat", 2, `unknown command "creat", did you mean "create"?`},
		{nil, "dve", 2, `unknown command "dve", did you mean "dev"?`},
		{nil, "serve --port 80", 2, "unknown flag: --port"},
		{nil, "serve now", 2, "want headgate serve"},
		{nil, "tenants create", 2, "want headgate tenants create"},
		{nil, "teams create search", 2, "needs --tenant"},
		{[]string{redis}, "keys create --tenant acme --rpm many", 2, `rpm "many": want a whole number`},
		{[]string{redis}, "keys create --tenant Acme", 2, `tenant "Acme"`},
		{[]string{redis}, "tenants create acme --budget 50", 2, "50/month"},
		{[]string{redis}, "tenants create acme rmp=5", 2, `no field "rmp" (known: name, disabled, rpm,`},
		{[]string{redis}, "keys create --tenant acme --expires 2020-01-01", 2, `headgate: expires_at "2020-01-01": is in the past`},
		{[]string{redis}, "keys create --tenant acme rpm=", 2, "headgate: rpm is empty (leave it out for none)"},
		{[]string{redis}, "keys create --tenant acme --disabled false", 2, "for a flag --disabled=false"},
		{[]string{redis}, "keys create --tenant acme ci2", 2, "a key's name is given as --name ci2"},
		{nil, "help bogus", 2, `no command "bogus"`},
		{nil, "keys rotate", 2, "want headgate keys rotate <id>"},
		{[]string{redis}, "keys rotate ci --grace soon", 2, `--grace "soon": want a length as 90m, 24h or 7d`},
		{[]string{redis}, "keys rotate ci --grace -1h", 2, `--grace "-1h": want a length as 90m, 24h or 7d`},
		{nil, "keys import", 2, "keys import needs --from"},
		{[]string{redis}, "tenants create acme rpm", 2, "want field=value"},
		{[]string{redis}, "tenants create acme --rpm 5 rpm=6", 2, "rpm is given twice"},
	} {
		env := c.env
		if c.args == "teams create search" {
			env = []string{redis}
		}
		status, out, diag := headgate(t, env, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(diag, c.want) || strings.Count(diag, "\n") != 1 || out != "" {
			t.Errorf("%v headgate %s: status %d, stdout %q, stderr %q; want %d, one line with %q", c.env, c.args, status, out, diag, c.status, c.want)
		}
		if strings.Contains(diag, "invalid:") {
			t.Errorf("headgate %s: a prefix that says nothing: %s", c.args, diag)
		}
		if strings.Contains(diag, "s3cret") {
			t.Errorf("headgate %s shows a password: %s", c.args, diag)
		}
	}
}

// TestHelpHasExamples: each command explains itself and shows a line.
func TestHelpHasExamples(t *testing.T) {
	var lines []string
	for _, c := range []string{"", "dev", "serve", "sim", "ready", "status", "usage", "explain", "audit", "keys rotate", "keys import"} {
		lines = append(lines, c+" --help")
	}
	for _, kind := range []string{"tenants", "teams", "users", "keys"} {
		for _, verb := range []string{"create", "list", "show", "set", "delete"} {
			lines = append(lines, kind+" "+verb+" --help")
		}
	}
	for _, line := range lines {
		if out := must(t, nil, strings.Fields(line)...); !strings.Contains(out, "Examples:\n  headgate") && !strings.Contains(out, "Examples:\n  HG_") {
			t.Errorf("headgate %s: no example:\n%s", line, out)
		}
	}
	if version, flag := must(t, nil, "version"), must(t, nil, "--version"); version != flag {
		t.Errorf("--version: %q", flag)
	}
	if out := must(t, nil, "help", "keys", "rotate"); !strings.Contains(out, "headgate keys rotate <id>") || strings.Contains(out, "[flags]") {
		t.Errorf("help keys rotate: %s", out)
	}
	if out := must(t, nil, "version"); !regexp.MustCompile(`^headgate \S+ .*go1\.\d+`).MatchString(out) {
		t.Errorf("version: %q", out)
	}
}

// TestEveryCommandAndFlagIsOnThePage: docs/cli.md names each command, and each flag of records.
func TestEveryCommandAndFlagIsOnThePage(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	has := func(what string) {
		if !strings.Contains(string(text), what) {
			t.Errorf("docs/cli.md lacks %s", what)
		}
	}
	for _, c := range (surroundings{}).root().Commands() {
		if c.Name() == "help" {
			continue
		}
		has("`" + map[bool]string{true: c.Name(), false: "headgate " + c.Name()}[c.Name() == "teams" || c.Name() == "users" || c.Name() == "keys"])
		for _, below := range c.Commands() {
			if c.Name() == "keys" && (below.Name() == "rotate" || below.Name() == "import") {
				has("`headgate keys " + below.Name() + "`")
				continue
			}
			has(below.Name() + "`")
		}
		if c.Name() == "keys" {
			for _, below := range c.Commands() {
				below.Flags().VisitAll(func(f *pflag.Flag) { has("--" + f.Name) })
			}
		}
	}
}

// TestEndedContextEndsACommand: a signal while Redis does not answer ends the command.
func TestEndedContextEndsACommand(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, diag bytes.Buffer
	status := surroundings{environ: []string{"HG_REDIS_URL=redis://127.0.0.1:1/0"}, stdout: &out, stderr: &diag}.run(ctx, []string{"keys", "list"})
	if status != 1 || !strings.Contains(diag.String(), "not reached") {
		t.Fatalf("%d %s", status, diag.String())
	}
}

func TestWritable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := writable(dir + "/a/b"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir + "/a/b"); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if writable(dir+"/file") == nil || writable(dir+"/file/below") == nil {
		t.Error("a file is no directory")
	}
}
