package bench

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
)

// agents is a model at 30 USD per million tokens of output, and one of the same pool that is dear enough to empty a
// small budget in mid-stream.
const agents = `models:
  qwen: {price: {prompt: 0, completion: 30}}
  exact: {pool: qwen, price: {prompt: 0, completion: 1}, max_output_tokens: 4000}
`

// TestTranchesFreezeNoBudget: agents that declare max_tokens 32000, 40 streams at once of 300 tokens each, on a budget of
// 25 USD. Holding the worst case would take 38.40 USD; nobody is refused, and what is spent is exact.
func TestTranchesFreezeNoBudget(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, agents, 2, 1, engine.Options{Speed: 20, Slots: 64})
	key := s.Key("--tenant", "acme", "--budget", "25/month")
	const streams, tokens = 40, 300
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			// The engine ends after min_tokens by itself: the cap is far away.
			a := fleet.Ask(t, s.Replicas[i%2].URL, key, fleet.Chat("qwen", "agent", `"stream":true,"max_tokens":32000,"min_tokens":300`))
			if a.Status != 200 || !strings.HasSuffix(a.Body, "data: [DONE]\n\n") {
				t.Errorf("stream %d: %d %s", i, a.Status, a.Body[max(0, len(a.Body)-300):])
			}
		})
	}
	wg.Wait()
	s.booksAgree(t, "acme", streams)
	for _, l := range s.Lines() {
		if l.Completion < tokens || *l.CostNUSD != l.Completion*30_000 {
			t.Errorf("want at least %d tokens at 30,000 nano-dollars each: %s", tokens, l.Raw)
		}
	}
}

// TestBudgetEndsInMidStream: when the budget has no more for a stream it ends with an error event once its hold is used up;
// what it cost passes the budget by less than a tranche, and the line says by how much.
func TestBudgetEndsInMidStream(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, agents, 1, 1, engine.Options{Speed: 2, Slots: 64})
	key := s.Key("--tenant", "acme", "--budget", "0.0005/month") // 500 tokens at 1 micro-dollar
	a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("exact", "a long story", `"stream":true,"max_tokens":3000,"ignore_eos":true`))
	if a.Status != 200 || strings.Contains(a.Body, "[DONE]") || !strings.Contains(a.Body[max(0, len(a.Body)-300):], "insufficient_quota") {
		t.Errorf("want an error event at the end: %d …%s", a.Status, a.Body[max(0, len(a.Body)-300):])
	}
	s.booksAgree(t, "acme", 1)
	l := s.Lines()[0]
	const budget, tranche = 500_000, 256_000
	if *l.CostNUSD < budget*9/10 || *l.CostNUSD > budget+tranche || l.ErrorCode != "insufficient_quota" {
		t.Errorf("want the budget of %d nano-dollars used up and passed by less than a tranche: %s", budget, l.Raw)
	}
	if over := max(0, *l.CostNUSD-budget); l.OverNUSD < over {
		t.Errorf("passed the budget by %d, the line says %d", over, l.OverNUSD)
	}
	var held struct {
		Tokens int64 `json:"held_tokens"`
		NUSD   int64 `json:"held_nusd"`
	}
	if err := json.Unmarshal([]byte(l.Raw), &held); err != nil || held.NUSD != budget || held.Tokens < budget/1000 {
		t.Errorf("want all of the budget held, top-ups included: %+v %v", held, err)
	}
	if b := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("exact", "more", `"stream":true`)); b.Status != 429 {
		t.Errorf("a spent budget lets in: %d %s", b.Status, b.Body)
	}
}
