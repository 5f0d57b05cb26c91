package bench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// uncapped: of `qwen` the catalogue says no longest answer, `exact` has one just below the context of small engines.
const uncapped = `models:
  qwen: {price: {prompt: 0, completion: 1}}
  exact: {pool: qwen, price: {prompt: 0, completion: 1}, max_output_tokens: 2000}
`

// newUncapped is a stack of one replica and one engine of that context.
func newUncapped(t *testing.T, context int) *stack {
	t.Helper()
	s := &stack{redis: lab.Redis(t), consul: lab.Consul(t)}
	s.addEngine(t, "b1", engine.Options{Speed: 1000, Slots: 8, MaxModelLen: context})
	s.Fleet = fleet.Start(t, fleet.Options{Redis: s.redis.URL(), Consul: s.consul.Addr, Catalogue: uncapped})
	s.waitServed(t, s.Replicas[0], 1)
	return s
}

// TestUncappedAnswersAreHeldAtTheContext: nobody says how long an answer may be, so it is held at the engine's context, and
// the engine, which keeps to that by itself, is told nothing.
func TestUncappedAnswersAreHeldAtTheContext(t *testing.T) {
	t.Parallel()
	s := newUncapped(t, 2048)
	const body = `"ignore_eos":true`
	if a := fleet.Ask(t, s.Replicas[0].URL, s.Key("--tenant", "acme", "--budget", "0.002047/month"), fleet.Chat("qwen", "hi", body)); a.Status != 429 {
		t.Errorf("a budget below the context: %d %s", a.Status, a.Body)
	}
	if a := fleet.Ask(t, s.Replicas[0].URL, s.Key("--tenant", "acme", "--budget", "0.002048/month"), fleet.Chat("qwen", "hi", body)); a.Status != 200 {
		t.Errorf("a budget of the context: %d %s", a.Status, a.Body)
	}
	s.booksAgree(t, "acme", 2)
	if seen := s.seen(); len(seen) != 1 || bytes.Contains(seen[0].Body, []byte("max_tokens")) {
		t.Errorf("want one request without a cap: %+v", seen)
	}
	for _, l := range s.Lines() {
		if l.OverNUSD != 0 || l.Status == 200 && l.Completion < 2000 {
			t.Errorf("want an answer to the end of the context within its hold: %s", l.Raw)
		}
	}
}

// TestACapOfOursThatIsRefused: the prompt and the cap that was written exceed the context. The request is sent once more
// without it, which is no attempt; a refusal for anything else passes at once.
func TestACapOfOursThatIsRefused(t *testing.T) {
	t.Parallel()
	s := newUncapped(t, 2048)
	key := s.Key("--tenant", "acme", "--budget", "1/month")
	long := strings.Repeat("word ", 400)
	if a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("exact", long, `"ignore_eos":true`)); a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	seen := s.seen()
	if len(seen) != 2 || !bytes.Contains(seen[0].Body, []byte(`"max_tokens":2000`)) || seen[0].Status != 400 || bytes.Contains(seen[1].Body, []byte("max_tokens")) {
		t.Fatalf("want a refused cap of 2000, then none: %+v", seen)
	}
	if a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("exact", "hi", `"tools":[]`)); a.Status != 400 || !strings.Contains(a.Body, "tools must not be empty") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("exact", strings.Repeat("word ", 3000))); a.Status != 400 || !strings.Contains(a.Body, "context length") {
		t.Errorf("a prompt that is too long by itself: %d %s", a.Status, a.Body)
	}
	if n := len(s.seen()); n != 2+1+2 {
		t.Errorf("the engine saw %d requests", n)
	}
	s.booksAgree(t, "acme", 3)
	for _, l := range s.Lines() {
		if l.Attempts != 1 || l.OverNUSD != 0 {
			t.Errorf("want one attempt within its hold: %s", l.Raw)
		}
	}
}

// TestUncappedStreamsStayInTheBudget: an engine that is told no cap goes on beyond the catalogue's longest answer, and the
// hold goes with it.
func TestUncappedStreamsStayInTheBudget(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, prices, 1, 1, engine.Options{Speed: 2, Slots: 64})
	key := s.Key("--tenant", "acme", "--budget", "0.003/month") // 500 tokens of output; the catalogue says 64
	a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("qwen", "hi", `"stream":true,"ignore_eos":true`))
	if a.Status != 200 || !strings.Contains(a.Body[max(0, len(a.Body)-300):], "insufficient_quota") {
		t.Errorf("want an error event at the end: %d …%s", a.Status, a.Body[max(0, len(a.Body)-300):])
	}
	s.booksAgree(t, "acme", 1)
	if l := s.Lines()[0]; l.Completion < 300 || *l.CostNUSD > 3_000_000+256*6000 {
		t.Errorf("want the budget of 3,000,000 used up and passed by less than a tranche: %s", l.Raw)
	}
}
