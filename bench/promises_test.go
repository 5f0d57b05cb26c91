package bench

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// fast is an engine that answers at once, for tests in which its time plays no part.
var fast = engine.Options{Speed: 100, Slots: 128}

// TestPromise2_BudgetsAreHard: two replicas, 100 requests at once, a budget for 40. The engines see 40, the sum of the
// usage lines is what Redis says was spent, and nothing stays reserved or held.
func TestPromise2_BudgetsAreHard(t *testing.T) {
	t.Parallel()
	const fit, all, tokens = 40, 100, 10
	s := newStack(t, 2, 2, fast)
	key := s.Key("--tenant", "acme", "--team", "search", "--name", "ci", "--budget", "0.0004/month") // 40 × 10 tokens × 1 micro-dollar
	statuses := make([]int, all)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			a := fleet.Ask(t, s.Replicas[i%2].URL, key, fleet.Chat("exact", "hello "+strconv.Itoa(i), `"max_tokens":10,"ignore_eos":true`))
			statuses[i] = a.Status
			if a.Status == 429 && (!strings.Contains(a.Body, "insufficient_quota") || a.Header.Get("X-Should-Retry") != "false") {
				t.Errorf("a refusal that is not the budget's: %s", a.Body)
			}
		})
	}
	wg.Wait()
	served, refused := count(statuses, 200), count(statuses, 429)
	if served != fit || refused != all-fit {
		t.Errorf("%d served and %d refused of %d, want %d and %d", served, refused, all, fit, all-fit)
	}
	if n := len(s.seen()); n != fit {
		t.Errorf("the engines saw %d requests, want %d", n, fit)
	}
	s.booksAgree(t, "acme", all)
	if got := s.spend(t, "acme", "team", "search", "spent_nusd"); got != fit*tokens*1000 {
		t.Errorf("spent %d nano-dollars, want %d", got, fit*tokens*1000)
	}
}

// booksAgree waits until nothing is reserved or held any more, then compares the usage lines with the counters.
func (s *stack) booksAgree(t *testing.T, tenant string, lines int) {
	t.Helper()
	s.WaitLines(lines)
	s.nothingLeft(t, tenant)
	all := s.Lines()
	if len(all) != lines {
		t.Errorf("%d usage lines, want one for each of %d requests", len(all), lines)
	}
	var sum int64
	for _, l := range all {
		if l.CostNUSD != nil {
			sum += *l.CostNUSD
		}
	}
	if spent := s.spend(t, tenant, "tenant", tenant, "spent_nusd"); spent != sum {
		t.Errorf("Redis says %d nano-dollars were spent, the usage lines %d", spent, sum)
	}
	audit := []string{"audit", "--tenant", tenant}
	for _, r := range s.Replicas {
		audit = append(audit, "--usage-log", r.UsageLog())
	}
	s.Run(audit...)
}

// nothingLeft waits until nothing of the tenant is reserved and no slot is held.
func (s *stack) nothingLeft(t *testing.T, tenant string) {
	t.Helper()
	root := "hg:{t:" + tenant + "}"
	// A release that Redis did not get is found by the beat: leases younger than 10 s are left alone.
	lab.Succeeds(t, 20*time.Second, func() error {
		if n := s.redisCLI("HLEN", root+":open"); n != "0" {
			return fmt.Errorf("%s reservations are open", n)
		}
		if n := s.redisCLI("ZCARD", root+":reservations"); n != "0" {
			return fmt.Errorf("%s deadlines are left", n)
		}
		if n := s.redisCLI("HLEN", root+":parallel"); n != "0" {
			return fmt.Errorf("%s scopes still run something", n)
		}
		if n := s.spend(t, tenant, "tenant", tenant, "reserved_nusd"); n != 0 {
			return fmt.Errorf("%d nano-dollars are still reserved", n)
		}
		if n := s.slots(t); n != 0 {
			return fmt.Errorf("%d slots are held", n)
		}
		return nil
	}, "nothing is left reserved or held")
}

// TestPromise3_NothingLeaks: a replica killed in mid-stream. Its slot is free within 15 s and its hold settled within
// 30 s, once; a lost record says what it was charged.
func TestPromise3_NothingLeaks(t *testing.T) {
	t.Parallel()
	s := newStack(t, 2, 1, engine.Options{Speed: 0.2, Slots: 4})
	key := s.Key("--tenant", "acme", "--team", "search", "--budget", "1/month")
	answer, err := fleet.Client.Do(fleet.Request(t, s.Replicas[0].URL+"/v1/chat/completions", key, fleet.Chat("qwen", "a long story", `"stream":true,"max_tokens":60,"ignore_eos":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadFull(answer.Body, make([]byte, 64)); err != nil {
		t.Fatalf("no stream: %v", err)
	}
	held := s.spend(t, "acme", "tenant", "acme", "reserved_nusd")
	if held == 0 || s.slots(t) != 1 {
		t.Fatalf("%d nano-dollars and %d slots held in mid-stream, want some and 1", held, s.slots(t))
	}
	s.Replicas[0].Kill()
	killed := time.Now()
	lab.Eventually(t, 15*time.Second, func() bool { return s.slots(t) == 0 }, "the slot is free within 15 s")
	t.Logf("slot free after %.1f s", time.Since(killed).Seconds())
	lab.Eventually(t, time.Until(killed.Add(30*time.Second)), func() bool { return s.spend(t, "acme", "tenant", "acme", "reserved_nusd") == 0 }, "the hold is settled within 30 s")
	t.Logf("hold settled after %.1f s", time.Since(killed).Seconds())
	if spent := s.spend(t, "acme", "tenant", "acme", "spent_nusd"); spent != held {
		t.Errorf("charged %d nano-dollars, want the hold of %d", spent, held)
	}
	records := s.redis.CLI("XRANGE", "hg:{t:acme}:usage", "-", "+")
	if strings.Count(records, `"outcome":"lost"`) != 1 {
		t.Errorf("want one lost record, got:\n%s", records)
	}
	a := fleet.Ask(t, s.Replicas[1].URL, key, fleet.Chat("qwen", "still there?", `"max_tokens":2`))
	if a.Status != 200 {
		t.Errorf("the other replica answers %d %s", a.Status, a.Body)
	}
}

// TestPromise4_BilledOnce: an attempt that fails before its first byte is repeated elsewhere; there is one record, one
// charge, and nobody is billed for the failure.
func TestPromise4_BilledOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 2, fast)
	key := s.Key("--tenant", "acme", "--rpm", "100", "--budget", "1/month")
	for i, fault := range []string{engine.CloseBeforeHead, "503", "500", engine.CloseAfterHead} {
		for _, e := range s.engines {
			if err := e.SetFault(); err != nil {
				t.Fatal(err)
			}
		}
		for _, stream := range []bool{true, false} {
			// Whichever backend is first fails once.
			for _, e := range s.engines {
				_ = e.SetFault(engine.Fault{Kind: fault, Times: 1})
			}
			body := fleet.Chat("exact", fmt.Sprintf("prompt %d %v", i, stream), fmt.Sprintf(`"stream":%v,"max_tokens":3,"ignore_eos":true`, stream))
			a := fleet.Ask(t, s.Replicas[0].URL, key, body)
			if a.Status != 502 && a.Status != 503 {
				t.Errorf("%s on both backends: status %d %s", fault, a.Status, a.Body)
			}
			for _, e := range s.engines {
				_ = e.SetFault()
			}
			_ = s.engines[0].SetFault(engine.Fault{Kind: fault})
			if a = fleet.Ask(t, s.Replicas[0].URL, key, body); a.Status != 200 || a.Header.Get("X-Headgate-Backend") != "b2" {
				t.Errorf("%s on b1: status %d from %q: %s", fault, a.Status, a.Header.Get("X-Headgate-Backend"), a.Body)
			}
		}
	}
	s.booksAgree(t, "acme", 16)
	for _, l := range s.Lines() {
		switch {
		case l.Status == 200 && (*l.CostNUSD != 3000 || l.Completion != 3 || l.Outcome != "ok"):
			t.Errorf("a served request was not charged for its 3 tokens: %s", l.Raw)
		case l.Status != 200 && (*l.CostNUSD != 0 || l.Attempts != 2):
			t.Errorf("a failed request was charged or not repeated: %s", l.Raw)
		}
	}
	if got := s.spend(t, "acme", "tenant", "acme", "spent_nusd"); got != 8*3000 {
		t.Errorf("spent %d, want %d", got, 8*3000)
	}
}

// TestPromise5_AChangeActsAtOnce: a policy changed with redis-cli decides the next request on every replica.
func TestPromise5_AChangeActsAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t, 2, 1, fast)
	key := s.Key("--tenant", "acme", "--team", "search")
	ask := func(i int) fleet.Answer {
		return fleet.Ask(t, s.Replicas[i].URL, key, fleet.Chat("qwen", "hi", `"max_tokens":2`))
	}
	for i := range 2 {
		if a := ask(i); a.Status != 200 {
			t.Fatalf("replica %d: %d %s", i, a.Status, a.Body)
		}
	}
	for _, change := range []struct {
		set    []string
		status int
		code   string
	}{
		{[]string{"HSET", "hg:{t:acme}:team:search", "models", "other*"}, 403, "model_not_allowed"},
		{[]string{"HDEL", "hg:{t:acme}:team:search", "models"}, 200, ""},
		{[]string{"HSET", "hg:{t:acme}", "parallel", "0"}, 429, "rate_limit_exceeded"},
		{[]string{"HDEL", "hg:{t:acme}", "parallel"}, 200, ""},
		{[]string{"HSET", "hg:{t:acme}", "disabled", "1"}, 401, "invalid_api_key"},
	} {
		s.redis.CLI(change.set...)
		for i := range 2 {
			if a := ask(i); a.Status != change.status || !strings.Contains(a.Body, change.code) {
				t.Errorf("after %v replica %d answers %d %s, want %d %s", change.set, i, a.Status, a.Body, change.status, change.code)
			}
		}
	}
	// A refusal may be repeated from memory, for a second at most.
	s.redis.CLI("HDEL", "hg:{t:acme}", "disabled")
	lab.Eventually(t, 3*time.Second, func() bool { return ask(0).Status == 200 && ask(1).Status == 200 }, "the key works again")
}

// TestPromise6_BytesAreSacred: what the gateway need not change arrives byte for byte, both ways.
func TestPromise6_BytesAreSacred(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast)
	key := s.Key("--tenant", "acme")
	odd := `{ "messages" : [ {"role":"user", "content":"\u00e9\ud83d\ude42 é🙂 \"}{][" } ],` + "\n\t" + `"metadata":{"a":1,"a":2},"temperature":1.0e0, "model":"qwen" ,"max_tokens":2}  `
	if a := fleet.Ask(t, s.Replicas[0].URL, key, odd); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	streamed := fleet.Chat("qwen", "hi", `"stream":true`, `"stream_options":{"include_usage":true}`, `"max_tokens":5`)
	a := fleet.Ask(t, s.Replicas[0].URL, key, streamed)
	seen := s.seen()
	if string(seen[0].Body) != odd {
		t.Errorf("the engine got\n%q\nwant\n%q", seen[0].Body, odd)
	}
	if string(seen[1].Body) != streamed {
		t.Errorf("the engine got\n%q\nwant\n%q", seen[1].Body, streamed)
	}
	direct := fleet.Ask(t, s.engines[0].URL, "", streamed)
	if varying(a.Body) != varying(direct.Body) || !strings.HasSuffix(a.Body, "data: [DONE]\n\n") {
		t.Errorf("the client got\n%s\nthe engine says\n%s", a.Body, direct.Body)
	}
}

// varying takes out what differs between two equal requests: ids, times, and what was cached.
func varying(stream string) string {
	for _, field := range []string{`"id":"`, `"created":`, `"cached_tokens":`} {
		parts := strings.Split(stream, field)
		for i := 1; i < len(parts); i++ {
			if end := strings.IndexAny(parts[i], ",}"); end >= 0 {
				parts[i] = parts[i][end:]
			}
		}
		stream = strings.Join(parts, field)
	}
	return stream
}

// TestPromise8_RedisDown: without Redis a request gets a clear 503 in time, no engine is called, and a running stream goes
// on to its end and is billed.
func TestPromise8_RedisDown(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, engine.Options{Speed: 0.5, Slots: 4})
	key := s.Key("--tenant", "acme", "--budget", "1/month")
	answer, err := fleet.Client.Do(fleet.Request(t, s.Replicas[0].URL+"/v1/chat/completions", key, fleet.Chat("qwen", "a story", `"stream":true,"max_tokens":60,"ignore_eos":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadFull(answer.Body, make([]byte, 64)); err != nil {
		t.Fatalf("no stream: %v", err)
	}
	s.redis.Stop()
	a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("qwen", "anyone?"))
	if a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || !strings.Contains(a.Body, "redis_unavailable") {
		t.Errorf("without Redis: %d %v %s", a.Status, a.Header, a.Body)
	}
	rest, err := io.ReadAll(answer.Body)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the running stream was cut: %v …%s", err, rest[max(0, len(rest)-200):])
	}
	if n := len(s.seen()); n != 1 {
		t.Errorf("the engine saw %d requests, want the stream alone", n)
	}
	s.redis.Cont()
	s.booksAgree(t, "acme", 2)
	if spent := s.spend(t, "acme", "tenant", "acme", "spent_nusd"); spent == 0 {
		t.Error("the stream was not billed")
	}
}

// TestPromise8_ConsulDown: without Consul the last known backends stay in use.
func TestPromise8_ConsulDown(t *testing.T) {
	t.Parallel()
	s := newStack(t, 1, 1, fast)
	key := s.Key("--tenant", "acme")
	s.consul.Stop()
	defer s.consul.Cont()
	for i := range 20 {
		if a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("qwen", fmt.Sprint(i), `"max_tokens":2`)); a.Status != 200 {
			t.Fatalf("request %d: %d %s", i, a.Status, a.Body)
		}
	}
}

func count(statuses []int, want int) int {
	return len(slices.DeleteFunc(slices.Clone(statuses), func(s int) bool { return s != want }))
}
