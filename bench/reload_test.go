package bench

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// TestReloadKeepsWhatRuns: the models file is replaced while streams run. What they count as running, hold and cost is as it was
// when they were admitted; the next request goes by the new file; a broken file changes nothing.
func TestReloadKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "models.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(prices)
	s := &stack{redis: lab.Redis(t), consul: lab.Consul(t)}
	s.addEngine(t, "b1", engine.Options{Speed: 1, Slots: 8})
	s.Fleet = fleet.Start(t, fleet.Options{Redis: s.redis.URL(), Consul: s.consul.Addr, Env: []string{"HG_CATALOG=" + path}})
	r := s.Replicas[0]
	s.waitServed(t, r, 1)
	key := s.Key("--tenant", "acme", "--parallel", "4", "--budget", "50/month")
	const streams = 4
	answers := make(chan fleet.Answer, streams)
	for range streams {
		go func() {
			answers <- fleet.Ask(t, r.URL, key, fleet.Chat("exact", "long", `"stream":true`, `"max_tokens":300`, `"ignore_eos":true`))
		}()
	}
	lab.Eventually(t, 20*time.Second, func() bool { return s.slots(t) == streams }, "all streams run")

	write(strings.Replace(prices, "completion: 1}", "completion: 5}\n    aliases: [precise]", 1))
	_ = syscall.Kill(r.PID(), syscall.SIGHUP)
	lab.Eventually(t, 20*time.Second, func() bool {
		a := fleet.Ask(t, r.URL, key, fleet.Chat("precise", "x")) // known by the new file alone
		return a.Status == 429 && strings.Contains(a.Body, "at the same time")
	}, "the new file is in use, and the streams still count")
	if n := s.slots(t); n != streams {
		t.Errorf("%d slots are held by %d streams", n, streams)
	}
	write("models: [")
	_ = syscall.Kill(r.PID(), syscall.SIGHUP)
	lab.Eventually(t, 20*time.Second, func() bool {
		return strings.Contains(r.Output(), "catalogue") && strings.Contains(r.Output(), `"level":"error"`)
	}, "a broken file is complained of")
	for range streams {
		if a := <-answers; a.Status != 200 || !strings.HasSuffix(a.Body, "data: [DONE]\n\n") {
			t.Errorf("%d %.200s", a.Status, a.Body)
		}
	}
	if a := fleet.Ask(t, r.URL, key, fleet.Chat("precise", "x", `"max_tokens":10`, `"ignore_eos":true`)); a.Status != 200 {
		t.Errorf("after a broken file: %d %s", a.Status, a.Body)
	}
	s.booksAgree(t, "acme", len(s.WaitLines(streams+2)))
	for _, l := range s.Lines() {
		want := l.Completion * 1000 // one micro-dollar a token, as it was when they were admitted
		if l.Completion == 10 {
			want *= 5
		}
		if l.Status == 200 && (l.CostNUSD == nil || *l.CostNUSD != want) {
			t.Errorf("not %d: %s", want, l.Raw)
		}
	}
}
