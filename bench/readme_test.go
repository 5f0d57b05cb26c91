package bench

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// TestReadmeSession types the session of the README, as it stands there, and compares what comes with what it shows: beside
// `headgate dev`, as the README says, and with a replica and a real Redis.
func TestReadmeSession(t *testing.T) {
	t.Parallel()
	t.Run("dev", func(t *testing.T) {
		t.Parallel()
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		dev := exec.Command(fleet.Binary(t), "dev")
		dev.Env = append(os.Environ(), "HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0")
		dev.Stdout, dev.Stderr = out, out
		if err := dev.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dev.Process.Kill(); _ = dev.Wait(); _ = out.Close() })
		shown := func(form string) (found string) {
			lab.Eventually(t, 30*time.Second, func() bool {
				text, _ := os.ReadFile(out.Name())
				if m := regexp.MustCompile(form).FindSubmatch(text); m != nil {
					found = string(m[1])
				}
				return found != ""
			}, "dev prints %s", form)
			return found
		}
		typeSession(t, shown(`(?m)^  url +http://(\S+)/v1$`), shown(`(?m)^  redis +(redis://\S+)$`))
	})
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		redis := lab.Redis(t)
		e, err := engine.Start(engine.Options{Models: []string{"qwen-7b"}, Speed: 100})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		f := fleet.Start(t, fleet.Options{Redis: redis.URL(), Catalogue: "models: {qwen-7b: {price: {prompt: 0.2, completion: 0.6}}}",
			Env: []string{"HG_BACKENDS=qwen-7b=" + e.URL + ";slots=8;id=b1"}})
		lab.Eventually(t, 30*time.Second, func() bool { return f.Replicas[0].Metric(`headgate_backends{pool="qwen-7b",state="healthy"}`) == 1 }, "the engine is in use")
		typeSession(t, strings.TrimPrefix(f.Replicas[0].URL, "http://"), redis.URL())
	})
}

// typeSession types it to a gateway and its Redis.
func typeSession(t *testing.T, public, redis string) {
	t.Helper()
	commands, shown := session(t)
	// The session's names, on this test's ports; as on a terminal redis-cli quotes and numbers what it prints.
	script := `headgate() { "$HEADGATE" "$@"; }
redis-cli() { command redis-cli --no-raw -u "$HG_REDIS_URL" "$@"; }
curl() { command curl "${@/localhost:8080/$PUBLIC}"; }
`
	for _, c := range commands {
		script += c + "\necho '<<end>>'\n"
	}
	bash := exec.Command("bash", "-c", script)
	bash.Env = append(os.Environ(), "HEADGATE="+fleet.Binary(t), "HG_REDIS_URL="+redis, "PUBLIC="+public)
	var out bytes.Buffer
	bash.Stdout, bash.Stderr = &out, &out
	if err := bash.Run(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	got := strings.Split(out.String(), "<<end>>\n")
	for i, c := range commands {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(shown[i]), "…", `[\s\S]*`) + "$"
		if !regexp.MustCompile(pattern).MatchString(got[i]) {
			t.Errorf("$ %s\nprints\n%s\nthe README shows\n%s", c, got[i], shown[i])
		}
	}
}

// session is the README's commands and what it shows for each.
func session(t *testing.T) (commands, shown []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "<!-- session:")
	_, rest, _ = strings.Cut(rest, "```console\n")
	block, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("the README has no session")
	}
	for line := range strings.Lines(block) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			commands, shown = append(commands, strings.TrimSuffix(command, "\n")), append(shown, "")
			continue
		}
		shown[len(shown)-1] += line
	}
	if len(commands) < 8 {
		t.Fatalf("only %d commands in the session", len(commands))
	}
	return commands, shown
}
