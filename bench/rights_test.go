package bench

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// A Redis user that may do anything with keys and nothing with channels, as `~hg:* +@all` means since Redis 7: waiting
// requests get their slots with the beat, nothing is left behind, and the replica says what is missing.
func TestRedisWithoutChannels(t *testing.T) {
	t.Parallel()
	s := &stack{redis: lab.Redis(t), consul: lab.Consul(t)}
	s.addEngine(t, "b1", engine.Options{Speed: 20, Slots: 1})
	s.redis.CLI("ACL", "SETUSER", "app", "on", ">pw", "~hg:*", "+@all", "resetchannels")
	s.Fleet = fleet.Start(t, fleet.Options{Redis: "redis://app:pw@" + s.redis.Addr + "/0", Consul: s.consul.Addr, Catalogue: prices})
	s.waitServed(t, s.Replicas[0], 1)
	key := s.Key("--tenant", "acme")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("qwen", "hi", `"max_tokens":20,"ignore_eos":true`)); a.Status != 200 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		})
	}
	wg.Wait()
	lab.Eventually(t, 20*time.Second, func() bool { return s.slots(t) == 0 && s.redis.CLI("KEYS", "hg:{p:qwen}:held:*") == "" }, "slots are left")
	answer, err := http.Get(s.Replicas[0].Admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); answer.StatusCode != 200 || !strings.Contains(string(body), `"warnings":{"announcements":"the redis user may not publish to hg:grant:*`) {
		t.Fatalf("readyz: %d %s", answer.StatusCode, body)
	}
	if out := s.Replicas[0].Output(); strings.Count(out, "announcements of grants do not come through") != 1 {
		t.Fatalf("not said once:\n%s", out)
	}
}
