package bench

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

const caching = `models:
  qwen: {price: {prompt: 2, completion: 6}, cache: {ttl: 10m}}
  exact: {pool: qwen, price: {prompt: 0, completion: 1}, cache: {ttl: 10m, coalesce: true}}
`

// TestCACHE1_WhatShapesTheAnswerIsInTheKey: each variant is a miss with its own entry, and then a hit; order and blanks do
// not matter.
func TestCACHE1_WhatShapesTheAnswerIsInTheKey(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, caching, 1, 1, fast)
	key := s.Key("--tenant", "acme", "--team", "search")
	message := func(more string) string { return `"messages":[{"role":"user","content":"hi"` + more + `}]` }
	base := `{"model":"qwen",` + message("") + `,"temperature":0,"max_tokens":4}`
	bodies := map[string]string{"base": base}
	for _, field := range []string{`"tools":[{"type":"function","function":{"name":"f"}}]`, `"tool_choice":"none"`, `"response_format":{"type":"text"}`, `"seed":1`,
		`"stop":["x"]`, `"n":2`, `"top_p":0.5`, `"logit_bias":{"1":1}`, `"presence_penalty":1`, `"top_k":5`} {
		bodies[field] = strings.TrimSuffix(base, "}") + "," + field + "}"
	}
	bodies["temperature"] = strings.Replace(base, `"temperature":0`, `"temperature":0.1`, 1)
	bodies["max_tokens"] = strings.Replace(base, `"max_tokens":4`, `"max_tokens":5`, 1)
	bodies["name"] = `{"model":"qwen",` + message(`,"name":"bob"`) + `,"temperature":0,"max_tokens":4}`
	bodies["tool_call_id"] = `{"model":"qwen",` + message(`,"tool_call_id":"c2"`) + `,"temperature":0,"max_tokens":4}`
	bodies["model"] = strings.Replace(base, `"qwen"`, `"exact"`, 1)
	first := map[string]string{}
	for what, body := range bodies {
		a := fleet.Ask(t, s.Replicas[0].URL, key, body)
		if a.Status != 200 || a.Header.Get("X-Headgate-Cache") != "miss" {
			t.Errorf("%s: %d %s %s", what, a.Status, a.Header.Get("X-Headgate-Cache"), a.Body)
		}
		first[what] = a.Body
	}
	asked := len(bodies)
	bodies["reordered"] = `{ "max_tokens":4, "temperature":0, "messages" : [ {"content":"hi","role":"user"} ], "model":"qwen" }`
	first["reordered"] = first["base"]
	for what, body := range bodies {
		s.hits(t, key, body, what, first[what])
	}
	if n := len(s.seen()); n < asked || n > asked+3 { // a late read counts as a miss
		t.Errorf("the engine saw %d requests, want %d", n, asked)
	}
}

// hits asks until the answer is a hit and compares: it is stored after the first answer, and a late read is a miss whose answer
// takes the place of the first.
func (s *stack) hits(t *testing.T, key, body, what, want string) fleet.Answer {
	t.Helper()
	var a fleet.Answer
	own := []string{want}
	lab.Eventually(t, 20*time.Second, func() bool {
		if a = fleet.Ask(t, s.Replicas[0].URL, key, body); a.Header.Get("X-Headgate-Cache") == "hit" {
			return true
		}
		own = append(own, a.Body)
		return false
	}, "%s is a hit", what)
	if want != "" && !slices.Contains(own, a.Body) {
		t.Errorf("%s: the hit says %s, the first answer %s", what, a.Body, want)
	}
	return a
}

// streamSaid joins what a stream says, and whether it tells its usage.
func streamSaid(t *testing.T, stream string) (text string, usage bool) {
	t.Helper()
	ids := map[string]bool{}
	for _, e := range strings.Split(strings.TrimSuffix(stream, "data: [DONE]\n\n"), "\n\n") {
		if e == "" {
			continue
		}
		var chunk struct {
			ID      string
			Usage   *struct{}
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(e, "data: ")), &chunk); err != nil {
			t.Errorf("%v in %q", err, e)
		}
		ids[chunk.ID] = true
		usage = usage || chunk.Usage != nil
		for _, c := range chunk.Choices {
			text += c.Delta.Content
		}
	}
	if len(ids) != 1 || !strings.HasSuffix(stream, "data: [DONE]\n\n") {
		t.Errorf("%d ids, or no [DONE]: %s", len(ids), stream)
	}
	return text, usage
}

// wholeSaid is the text of a whole answer.
func wholeSaid(t *testing.T, body string) string {
	t.Helper()
	var c struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal([]byte(body), &c); err != nil || len(c.Choices) != 1 {
		t.Fatalf("%v %s", err, body)
	}
	return c.Choices[0].Message.Content
}

// TestCACHE2_BothForms: what was stored from either form is given in either form, and costs nothing.
func TestCACHE2_BothForms(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, caching, 1, 1, fast)
	key := s.Key("--tenant", "acme", "--budget", "1/month")
	whole := fleet.Chat("qwen", "whole first", `"max_tokens":9`)
	streamed := fleet.Chat("qwen", "streamed first", `"max_tokens":9,"stream":true`)
	said := wholeSaid(t, fleet.Ask(t, s.Replicas[0].URL, key, whole).Body)
	for _, asked := range []bool{true, false} {
		body := strings.TrimSuffix(whole, "}") + fmt.Sprintf(`,"stream":true,"stream_options":{"include_usage":%v}}`, asked)
		if text, usage := streamSaid(t, s.hits(t, key, body, "as a stream", "").Body); text != said || usage != asked {
			t.Errorf("%q with usage %v, want %q with usage %v", text, usage, said, asked)
		}
	}
	text, _ := streamSaid(t, fleet.Ask(t, s.Replicas[0].URL, key, streamed).Body)
	if got := wholeSaid(t, s.hits(t, key, strings.Replace(streamed, `,"stream":true`, "", 1), "whole from a stream", "").Body); got != text {
		t.Errorf("%q, the stream said %q", got, text)
	}
	for _, l := range s.WaitLines(5) {
		if l.Cache == "hit" && (*l.CostNUSD != 0 || l.Completion != 9 || l.Outcome != "ok") {
			t.Errorf("a hit is charged, or says no usage: %s", l.Raw)
		}
	}
}

// TestCACHE3_OnlyGoodAnswers: nothing that failed or broke off is stored.
func TestCACHE3_OnlyGoodAnswers(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, caching, 1, 1, fast, "HG_ATTEMPTS=1")
	key := s.Key("--tenant", "acme")
	streamed := fleet.Chat("qwen", "hi", `"max_tokens":9,"stream":true`)
	for _, fault := range []engine.Fault{{Kind: "400"}, {Kind: engine.ErrorEvent, After: 2}, {Kind: engine.NoUsage}, {Kind: engine.NoDone}, {Kind: engine.Cut, After: 3}, {Kind: engine.Reset, After: 3}} {
		_ = s.engines[0].SetFault(fault)
		before := len(s.seen())
		_ = fleet.Ask(t, s.Replicas[0].URL, key, streamed)
		if len(s.seen()) != before+1 {
			t.Errorf("%s: not asked", fault.Kind)
		}
		if found := s.redis.CLI("KEYS", "hg:*:cache:*"); found != "" {
			t.Errorf("%s was stored: %s", fault.Kind, found)
		}
	}
	_ = s.engines[0].SetFault()
	if good := fleet.Ask(t, s.Replicas[0].URL, key, streamed); good.Status != 200 {
		t.Fatalf("%d %s", good.Status, good.Body)
	}
	s.hits(t, key, streamed, "the good one", "")
}

// TestCoalesce: of equal requests in flight at one replica one goes to the engine; the others get its answer, each admitted
// by itself, and are not charged.
func TestCoalesce(t *testing.T) {
	t.Parallel()
	s := newStackWith(t, caching, 1, 1, engine.Options{Speed: 1, Slots: 64})
	key := s.Key("--tenant", "acme", "--rpm", "100", "--budget", "1/month")
	if a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("exact", "first use", `"max_tokens":1`)); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	const equal = 20
	bodies := make([]string, equal)
	var wg sync.WaitGroup
	for i := range equal {
		wg.Go(func() {
			a := fleet.Ask(t, s.Replicas[0].URL, key, fleet.Chat("exact", "the same", `"max_tokens":200,"ignore_eos":true`, fmt.Sprintf(`"stream":%v`, i%4 == 3)))
			if a.Status != 200 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			bodies[i] = a.Body
		})
	}
	wg.Wait()
	if n := len(s.seen()); n != 2 {
		t.Errorf("the engine saw %d requests, want the first use and one for all", n)
	}
	s.booksAgree(t, "acme", equal+1)
	charged := 0
	for _, l := range s.Lines() {
		if *l.CostNUSD > 0 {
			charged++
		}
	}
	if charged != 2 {
		t.Errorf("%d requests were charged, want 2", charged)
	}
	if bodies[0] != bodies[1] {
		t.Errorf("two answers: %s %s", bodies[0], bodies[1])
	}
}
