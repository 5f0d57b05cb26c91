package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// together sends n requests at the same moment, taking forms and gateways in turn, and returns the replies in their order.
func (l *lane) together(n int, in []form, key string, cap int, fields ...string) []reply {
	l.t.Helper()
	replies := make([]reply, n)
	var wg sync.WaitGroup
	for i := range n {
		f := in[i%len(in)]
		wg.Go(func() {
			replies[i] = l.askAs(f, i, key, f.body(l.model, cap), append(fields, "X-Request-Id: "+l.id())...)
		})
	}
	wg.Wait()
	return replies
}

// playForms has requests in several forms answered, each in its own, with this usage.
func (l *lane) playForms(in []form, prompt, completion int, first ...scripted.Step) {
	for _, b := range l.b {
		b.Answer(func(q *scripted.Request) scripted.Script {
			stream := strings.Contains(string(q.Body), `"stream":true`)
			at := slices.IndexFunc(in, func(f form) bool { return f.path == q.Target && f.stream == stream })
			if at < 0 {
				l.t.Errorf("%s %s", q.Target, q.Body)
				return nil
			}
			return append(slices.Clone(first), in[at].answer(prompt, completion)...)
		})
	}
}

// TestRATE1_OneLimitForTheFleet: three gateways, 60 requests within a second at 10 a minute: exactly 10. Beside the case,
// limits of other scopes, in every form; the whole is waited for once.
func TestRATE1_OneLimitForTheFleet(t *testing.T) {
	t.Parallel()
	type burst struct {
		*lane
		in      []form
		record  string // of the limit; "" = the key's own
		fields  []string
		key     string
		replies []reply
		took    time.Duration
	}
	bursts := map[string]*burst{
		"the case": {in: forms[:1]},
		"team":     {in: forms, record: "team:search"},
		"tenant":   {in: forms[:2], record: "tenant"},
		"tag":      {in: forms[2:5], record: "tag:night", fields: []string{"X-Headgate-Tags: night"}},
		"both":     {in: forms[5:], record: "user:ann"}, // the key allows 30, the user 10
	}
	for name, b := range bursts {
		b.lane = newLane(t, limits(t), 2, 64)
		policy := []string{"--models", b.model, "--team", "search", "--user", "ann"}
		switch {
		case b.record == "":
			policy = append(policy, "--rpm", "10")
		case name == "both":
			policy = append(policy, "--rpm", "30")
		}
		b.key, _, _ = b.named(policy...)
		if b.record != "" {
			b.policy(strings.TrimPrefix(b.record, "tenant"), "rpm", "10")
		}
		b.playForms(b.in, 10, 3)
	}
	var wait time.Time
	for name, b := range bursts {
		began := time.Now()
		b.replies = b.together(60, b.in, b.key, 3, b.fields...)
		b.took = time.Since(began)
		var left []int
		served := 0
		for _, r := range b.replies {
			remaining, _ := strconv.Atoi(r.Header.Get("X-Ratelimit-Remaining-Requests"))
			if limit := r.Header.Get("X-Ratelimit-Limit-Requests"); limit != "10" {
				t.Errorf("%s: the limit is %q", name, limit)
			}
			if r.Status == 200 {
				served++
				left = append(left, remaining)
				continue
			}
			after := r.secondsOf("Retry-After")
			if r.Status != 429 || !strings.Contains(r.Body, "10 requests per minute") || after < 1 || after > 60 || r.Header.Get("X-Ratelimit-Remaining-Requests") != "0" {
				t.Errorf("%s: %d %v %s", name, r.Status, r.Header, r.Body)
			}
			if end := r.ended.Add(time.Duration(after) * time.Second); end.After(wait) {
				wait = end
			}
		}
		slices.Sort(left)
		if served != 10 || fmt.Sprint(left) != "[0 1 2 3 4 5 6 7 8 9]" {
			t.Errorf("%s: %d of 60 served within %v, with %v left", name, served, b.took, left)
		}
		t.Logf("%s: %d of 60 served; the burst took %v", name, served, b.took)
		b.settled()
	}
	time.Sleep(time.Until(wait))
	for name, b := range bursts {
		if r := b.askAs(b.in[0], 2, b.key, b.in[0].body(b.model, 3), b.fields...); r.Status != 200 {
			t.Errorf("%s: after the longest Retry-After: %d %s", name, r.Status, r.Body)
		}
		if n := len(b.requests()); n != 11 {
			t.Errorf("%s: the backends saw %d requests", name, n)
		}
		if n := len(b.lines(61)); n != 61 {
			t.Errorf("%s: %d usage lines", name, n)
		}
		b.books()
	}
}

// TestRATE2_TokensWhenTheLengthIsUnknown: the case in each form. Where it waits 61 s for a key to be idle, a key of its own is.
func TestRATE2_TokensWhenTheLengthIsUnknown(t *testing.T) {
	t.Parallel()
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, limits(t), 2, 64)
			l.playForms([]form{f}, 10, 20, scripted.Pause(time.Second))

			// (a) An idle key's first request passes, and is charged for what it was.
			first, firstID, _ := l.named("--tpm", "100")
			if r := l.askAs(f, 0, first, f.body(l.model, 0)); r.Status != 200 {
				t.Errorf("(a) %d %s", r.Status, r.Body)
			}
			l.settled()
			if n := l.minute("key", firstID, "tokens"); n != 30 {
				t.Errorf("(a) %d tokens", n)
			}

			// (b) A burst of them does not.
			burst, burstID, _ := l.named("--tpm", "100")
			served := 0
			for _, r := range l.together(20, []form{f}, burst, 0) {
				switch after := r.secondsOf("Retry-After"); {
				case r.Status == 200:
					served++
				case r.Status != 429 || !strings.Contains(r.Body, "100 tokens per minute") || after < 1 || after > 60:
					t.Errorf("(b) %d %v %s", r.Status, r.Header, r.Body)
				}
			}
			l.settled()
			if n := l.minute("key", burstID, "tokens"); served < 1 || served > 4 || n != 30*served {
				t.Errorf("(b) %d served, %d tokens", served, n)
			}

			// (c) Of two declared caps the larger is believed.
			large, _, _ := l.named("--tpm", "100")
			before, seen := l.holds(), len(l.requests())
			body := f.body(l.model, 10000)
			if f.path == "/v1/chat/completions" {
				body = f.body(l.model, 1, `"max_completion_tokens":10000`)
			}
			if r := l.askAs(f, 1, large, body); r.Status != 429 || !strings.Contains(r.Body, "this request alone asks for more") || r.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("(c) %d %v %s", r.Status, r.Header, r.Body)
			}
			if now := l.holds(); now != before || len(l.requests()) != seen {
				t.Errorf("(c) a refused request left something:\n%s\n%s", before, now)
			}

			// (d) What all backends fail at costs no tokens.
			failed, failedID, _ := l.named("--tpm", "100")
			l.play(scripted.JSON(500, `{"error":{"message":"dead"}}`))
			if r := l.askAs(f, 2, failed, f.body(l.model, 5)); r.Status != 502 {
				t.Errorf("(d) %d %s", r.Status, r.Body)
			}
			l.settled()
			if n := l.minute("key", failedID, "tokens"); n != 0 {
				t.Errorf("(d) %d tokens", n)
			}
		})
	}
}

// TestRATE3_ARefusedRequestUsesUpNothingElse: the case, over three gateways, in each form.
func TestRATE3_ARefusedRequestUsesUpNothingElse(t *testing.T) {
	t.Parallel()
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, limits(t), 1, 64)
			key, id, _ := l.named("--rpm", "2", "--tpm", "10000", "--parallel", "1")
			l.playForms([]form{f}, 10, 3, scripted.Pause(3*time.Second))
			first := make(chan reply, 1)
			go func() { first <- l.askAs(f, 0, key, f.body(l.model, 50)) }()
			lab.Eventually(t, patience, func() bool { return len(l.requests()) == 1 }, "A is with the backend")
			b := l.askAs(f, 1, key, f.body(l.model, 50))
			if b.Status != 429 || !strings.Contains(b.Body, "concurrency") {
				t.Errorf("B: %d %s", b.Status, b.Body)
			}
			if a := <-first; a.Status != 200 {
				t.Errorf("A: %d %s", a.Status, a.Body)
			}
			l.settled()
			before := l.holds()
			for i := range 10 {
				if r := l.askAs(f, i, key, `{"model":`); r.Status != 400 {
					t.Errorf("malformed: %d %s", r.Status, r.Body)
				}
				if r := l.askAs(f, i, key, f.body("nope", 50)); r.Status != 404 {
					t.Errorf("unknown: %d %s", r.Status, r.Body)
				}
			}
			if now := l.holds(); now != before {
				t.Errorf("faulty requests changed\n%s\nto\n%s", before, now)
			}
			l.playForms([]form{f}, 10, 3)
			if c := l.askAs(f, 2, key, f.body(l.model, 50)); c.Status != 200 {
				t.Errorf("C: %d %s", c.Status, c.Body)
			}
			l.settled()
			if d := l.askAs(f, 0, key, f.body(l.model, 50)); d.Status != 429 || !strings.Contains(d.Body, "2 requests per minute") {
				t.Errorf("D: %d %s", d.Status, d.Body)
			}
			if requests, tokens := l.minute("key", id, "requests"), l.minute("key", id, "tokens"); requests != 2 || tokens != 26 {
				t.Errorf("%d requests and %d tokens are counted", requests, tokens)
			}

			// A backend's own 400 counts as one request and no tokens.
			other, otherID, _ := l.named("--rpm", "2", "--tpm", "10000")
			l.play(scripted.JSON(400, `{"error":{"message":"too long","type":"BadRequestError","code":400}}`))
			if r := l.askAs(f, 1, other, f.body(l.model, 50)); r.Status != 400 {
				t.Errorf("the backend's own: %d %s", r.Status, r.Body)
			}
			l.settled()
			if requests, tokens := l.minute("key", otherID, "requests"), l.minute("key", otherID, "tokens"); requests != 1 || tokens != 0 {
				t.Errorf("after a 400 %d requests and %d tokens are counted", requests, tokens)
			}
		})
	}
}

// TestRATE3_WhoeverRefuses: every limit of every scope refuses a request that all others would let pass, and none of them
// has counted it, whichever it is.
func TestRATE3_WhoeverRefuses(t *testing.T) {
	t.Parallel()
	ample := []string{"rpm", "1000", "tpm", "1000000", "parallel", "100", "budget_usd", "1", "period", "month"}
	refusing := map[string][]string{
		"rpm":      {"rpm", "0"},
		"tpm":      {"tpm", "20"},
		"parallel": {"parallel", "0"},
		"budget":   {"budget_usd", "0.00001"},
		"second":   {"budgets", "0.00001/day"},
		"list":     {"models", "other,m-*-x"},
		"garbled":  {"tpm", "many"},
		"disabled": {"disabled", "1"},
	}
	for _, scope := range []string{"key", "team:search", "user:ann", "tenant", "tag:night", "enduser:bob"} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, limits(t), 2, 64)
			key, _, record := l.named("--team", "search", "--user", "ann")
			records := map[string]string{"key": record, "tenant": "hg:{t:" + l.tenant + "}"}
			for _, s := range []string{"team:search", "user:ann", "tag:night", "enduser:bob"} {
				records[s] = "hg:{t:" + l.tenant + "}:" + s
			}
			for _, r := range records {
				l.redis.CLI(append([]string{"HSET", r}, ample...)...)
			}
			passes := func(g int) reply {
				return l.askAs(chatForm, g, key, chatForm.body(l.model, 50, `"user":"bob"`), "X-Headgate-Tags: night")
			}
			if r := passes(0); r.Status != 200 {
				t.Fatalf("%d %s", r.Status, r.Body)
			}
			l.settled()
			for name, no := range refusing {
				if scope == "tag:night" && name == "disabled" || scope == "enduser:bob" && name == "disabled" {
					continue // not of these
				}
				before, seen := l.holds(), len(l.requests())
				l.redis.CLI(append([]string{"HSET", records[scope]}, no...)...)
				for g := range 3 {
					r := passes(g)
					if r.Status != 429 && r.Status != 401 && r.Status != 403 {
						t.Errorf("%s: %d %s", name, r.Status, r.Body)
					}
				}
				if now := l.holds(); now != before || len(l.requests()) != seen {
					t.Errorf("%s changed\n%s\nto\n%s", name, before, now)
				}
				l.redis.CLI("HDEL", records[scope], no[0])
				l.redis.CLI(append([]string{"HSET", records[scope]}, ample...)...)
			}
			lab.Eventually(t, patience, func() bool { return passes(1).Status == 200 }, "all pass again") // a refusal may be repeated for a second
			l.books()
		})
	}
}
