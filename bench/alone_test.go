package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// TestServeWhileRedisIsAway: with HG_ON_REDIS_DOWN=serve a key that passed before is served within its limits while Redis
// stands still, one that is new is not; everything is charged when Redis is back.
func TestServeWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast, "HG_ON_REDIS_DOWN=serve")
	key := s.Key("--tenant", "acme", "--rpm", "10", "--budget", "1/month")
	fresh := s.Key("--tenant", "acme")
	ask := func(key string, i int) fleet.Answer {
		return fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("exact", fmt.Sprint(i), `"max_tokens":3,"ignore_eos":true`))
	}
	if a := ask(key, 0); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	s.redis.Stop()
	var served, refused int
	for i := range 14 {
		switch a := ask(key, i+1); a.Status {
		case 200:
			served++
		case 429:
			refused++
		default:
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	// One was counted by Redis, and what this replica lets in by itself counts against the same limit.
	if served < 5 || served > 10 || served+refused != 14 {
		t.Errorf("%d served and %d refused of 14 at rpm 10", served, refused)
	}
	if a := ask(fresh, 0); a.Status != 503 {
		t.Errorf("a key that never passed: %d %s", a.Status, a.Body)
	}
	s.redis.Cont()
	lab.Eventually(t, 20*time.Second, func() bool { return s.spend(t, "acme", "tenant", "acme", "spent_nusd") == int64(served+1)*3000 }, "everything served is charged")
	s.booksAgree(t, "acme", 16)
}
