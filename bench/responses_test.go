package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// respond posts to /v1/responses and returns the id and the backend.
func respond(t *testing.T, r *fleet.Replica, key, body string, fields ...string) (id, backend string, a fleet.Answer) {
	t.Helper()
	a = ask(t, "POST", r.URL+"/v1/responses", key, body, fields...)
	if a.Status != 200 || a.Err != nil {
		t.Fatalf("%d %v %s", a.Status, a.Err, a.Body)
	}
	_, rest, found := strings.Cut(a.Body, `"id":"resp_`)
	if !found {
		t.Fatalf("no id in %s", a.Body)
	}
	tail, _, _ := strings.Cut(rest, `"`)
	return "resp_" + tail, a.Header.Get("X-Headgate-Backend"), a
}

// TestResponsesStayWithTheirEngine: whoever continues, reads or cancels a response gets to the engine that made it, from
// any replica; nobody else does.
func TestResponsesStayWithTheirEngine(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast)
	here, there := s.Replicas[0], s.Replicas[1]
	key := s.Key("--tenant", "acme", "--name", "ci", "--rpm", "1000", "--budget", "5/month")
	other := s.Key("--tenant", "other", "--name", "ci")
	for _, r := range s.Replicas { // the first use of a key takes one more
		respond(t, r, key, `{"model":"qwen","input":"first use"}`)
	}
	backends := map[string]bool{}
	for i := range 8 {
		body := fmt.Sprintf(`{"model":"qwen","input":"question %d"`, i)
		if i%2 == 1 {
			body += `,"stream":true`
		}
		id, backend, _ := respond(t, here, key, body+"}")
		backends[backend] = true
		next := fmt.Sprintf(`{"model":"small","input":"and then?","previous_response_id":"%s"}`, id)
		for k, r := range []*fleet.Replica{there, here, there} { // a look-up, and remembered
			label := fmt.Sprintf("next-%d-%d", i, k)
			if _, at, a := respond(t, r, key, next, "X-Request-Id: "+label); at != backend {
				t.Errorf("%s: made on %s, continued on %s: %s", id, backend, at, a.Body)
			}
			if l, want := s.lineOf(t, label), map[int]int{0: 2, 1: 1, 2: 1}[k]; l.RoundTrips != want && !(k == 0 && l.RoundTrips == want+1) { // asked faster than the first replica wrote it: looked for once more
				t.Errorf("%s: %d round trips, want %d: %s", label, l.RoundTrips, want, l.Raw)
			}
		}
		for _, r := range s.Replicas {
			a := ask(t, "GET", r.URL+"/v1/responses/"+id, key, "", "X-Request-Id: "+fmt.Sprintf("get-%d-%s", i, r.Name))
			if a.Status != 200 || !strings.Contains(a.Body, `"id":"`+id+`"`) || a.Header.Get("X-Headgate-Backend") != backend {
				t.Errorf("GET %s: %d %v %s", id, a.Status, a.Header, a.Body)
			}
			if l := s.lineOf(t, fmt.Sprintf("get-%d-%s", i, r.Name)); l.Prompt+l.Completion != 0 || *l.CostNUSD != 0 || !strings.Contains(l.Raw, `"route":"/v1/responses/{id}"`) || l.Tenant != "acme" || l.RoundTrips != 1 {
				t.Errorf("%s", l.Raw)
			}
		}
		if a := ask(t, "POST", there.URL+"/v1/responses/"+id+"/cancel", key, ""); a.Status != 400 || !strings.Contains(a.Body, "synchronous") || a.Header.Get("X-Headgate-Backend") != backend {
			t.Errorf("cancel %s: %d %s", id, a.Status, a.Body) // the engine's own answer
		}
		asked := len(s.seen())
		for name, a := range map[string]fleet.Answer{
			"read":     ask(t, "GET", here.URL+"/v1/responses/"+id, other, ""),
			"cancel":   ask(t, "POST", there.URL+"/v1/responses/"+id+"/cancel", other, ""),
			"continue": ask(t, "POST", here.URL+"/v1/responses", other, next),
		} {
			if a.Status != 404 || !strings.Contains(a.Body, "response_not_found") {
				t.Errorf("another tenant may %s: %d %s", name, a.Status, a.Body)
			}
		}
		if n := len(s.seen()); n != asked {
			t.Errorf("%d questions of another tenant reached an engine", n-asked)
		}
	}
	if len(backends) != 2 {
		t.Errorf("all responses were made on %v: nothing was tested", backends)
	}
	s.booksAgree(t, "acme", 2+8*(1+3+2+1+3))
}

// TestResponsesNobodyKnows: an id that this tenant has not made never reaches an engine, and costs nothing.
func TestResponsesNobodyKnows(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast)
	key := s.Key("--tenant", "acme", "--name", "ci", "--rpm", "10")
	url := s.Replicas[0].URL
	unstored, _, _ := respond(t, s.Replicas[0], key, `{"model":"qwen","input":"hi","store":false}`)
	asked := len(s.seen())
	for _, c := range []struct {
		method, path, body string
		status             int
		code, param        string
	}{
		{"GET", "/v1/responses/resp_unknown", "", 404, "response_not_found", "id"},
		{"GET", "/v1/responses/resp_unknown?stream=true", "", 404, "response_not_found", "id"},
		{"GET", "/v1/responses/" + unstored, "", 404, "response_not_found", "id"},
		{"POST", "/v1/responses/resp_unknown/cancel", "", 404, "response_not_found", "id"},
		{"POST", "/v1/responses", `{"model":"qwen","input":"hi","previous_response_id":"resp_unknown"}`, 404, "response_not_found", "previous_response_id"},
		{"POST", "/v1/responses", `{"model":"qwen","input":"hi","previous_response_id":"../x"}`, 404, "response_not_found", "previous_response_id"},
		{"POST", "/v1/responses", `{"model":"qwen","input":"hi","previous_response_id":7}`, 400, "invalid_field", "previous_response_id"},
		{"POST", "/v1/responses", `{"model":"qwen","input":"hi","request_id":"resp_another"}`, 400, "invalid_field", "request_id"},
		{"GET", "/v1/responses", "", 404, "route_not_found", ""},
		{"GET", "/v1/responses/", "", 404, "route_not_found", ""},
		{"DELETE", "/v1/responses/resp_1", "", 404, "route_not_found", ""},
		{"POST", "/v1/responses/resp_1", "", 404, "route_not_found", ""},
		{"GET", "/v1/responses/resp_1/cancel", "", 404, "route_not_found", ""},
		{"GET", "/v1/responses/resp_1/", "", 404, "route_not_found", ""},
		{"GET", "/v1/responses/resp%5f1", "", 404, "route_not_found", ""},
		{"GET", "/v1/responses/a/b", "", 404, "route_not_found", ""},
		{"GET", "/v1/responses/..", "", 404, "route_not_found", ""},
	} {
		r := fleet.Request(t, url, key, c.body)
		path, query, _ := strings.Cut(c.path, "?")
		r.Method, r.URL.Opaque, r.URL.RawQuery = c.method, path, query
		answer, err := fleet.Client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 1000)
		n, _ := answer.Body.Read(text)
		answer.Body.Close()
		if body := string(text[:n]); answer.StatusCode != c.status || !strings.Contains(body, c.code) || c.param != "" && !strings.Contains(body, `"param":"`+c.param+`"`) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, answer.StatusCode, body)
		}
	}
	if n := len(s.seen()); n != asked {
		t.Errorf("%d reached an engine", n-asked)
	}
	s.booksAgree(t, "acme", 18)
	if n := s.redis.CLI("HGET", "hg:{t:acme}:rate:key:"+s.Lines()[0].KeyID, "requests"); n != "1" {
		t.Errorf("%s requests are counted, want the one that was served", n)
	}
}

// TestResponsesOfAGoneEngine: a response whose engine left the fleet is gone with it.
func TestResponsesOfAGoneEngine(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast)
	key := s.Key("--tenant", "acme", "--name", "ci")
	var id string
	t.Run("while it is there", func(t *testing.T) {
		e := s.addEngine(t, "b3", fast)
		for _, r := range s.Replicas {
			s.waitServed(t, r, 3)
		}
		for i := 0; id == ""; i++ {
			made, backend, _ := respond(t, s.Replicas[0], key, fmt.Sprintf(`{"model":"qwen","input":"question %d"}`, i))
			if backend == "b3" {
				id = made
			}
			if i > 200 {
				t.Fatalf("nothing is placed on b3: %d", len(e.Seen()))
			}
		}
	})
	if t.Failed() {
		return
	}
	for _, r := range s.Replicas {
		lab.Eventually(t, 20*time.Second, func() bool { return r.Metric("headgate_backends") == 2 }, "%s knows two engines", r.Name)
		for name, a := range map[string]fleet.Answer{
			"read":     ask(t, "GET", r.URL+"/v1/responses/"+id, key, ""),
			"continue": ask(t, "POST", r.URL+"/v1/responses", key, `{"model":"qwen","input":"hi","previous_response_id":"`+id+`"}`),
		} {
			if a.Status != 404 || !strings.Contains(a.Body, "response_not_found") {
				t.Errorf("%s: %s: %d %s", r.Name, name, a.Status, a.Body)
			}
		}
	}
}

// TestResponsesWaitForTheirEngine: while the engine that holds a response is full, who continues it waits for that one,
// though another is idle.
func TestResponsesWaitForTheirEngine(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, engine.Options{Speed: 100, Slots: 1})
	key := s.Key("--tenant", "acme", "--name", "ci")
	id, backend, _ := respond(t, s.Replicas[0], key, `{"model":"qwen","input":"a question"}`)
	holder, idle := s.engines[0], s.engines[1]
	if backend == "b2" {
		holder, idle = idle, holder
	}
	next := `{"model":"qwen","input":"and then?","previous_response_id":"` + id + `"`
	if err := holder.SetFault(engine.Fault{Kind: engine.Slow, Delay: 50 * time.Millisecond, Times: 1}); err != nil {
		t.Fatal(err)
	}
	results := make(chan fleet.Answer, 3)
	go func() { // takes the only slot for a while: 40 events, 50 ms each
		results <- ask(t, "POST", s.Replicas[0].URL+"/v1/responses", key, next+`,"stream":true,"max_output_tokens":40}`)
	}()
	lab.Eventually(t, 10*time.Second, func() bool { return s.slots(t) == 1 }, "the holder's slot is taken")
	for i := range 2 {
		go func() {
			results <- ask(t, "POST", s.Replicas[i].URL+"/v1/responses", key, next+`}`, fmt.Sprintf("X-Request-Id: waits-%d", i))
		}()
	}
	for range 3 {
		if a := <-results; a.Status != 200 || a.Err != nil || a.Header.Get("X-Headgate-Backend") != backend {
			t.Errorf("made on %s, continued: %d %v %v %.300s", backend, a.Status, a.Err, a.Header, a.Body)
		}
	}
	for i := range 2 {
		if l := s.lineOf(t, fmt.Sprintf("waits-%d", i)); l.QueueMS == 0 {
			t.Errorf("nobody waited: %s", l.Raw)
		}
	}
	if n := idle.Generations(); n != 0 {
		t.Errorf("the other engine generated %d times", n)
	}
}

// TestContinuedResponsesAreHeldInFull: what was said before is in the engine and not in the body, so the hold covers as much
// as a prompt can have there; what is charged is what it had.
func TestContinuedResponsesAreHeldInFull(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, engine.Options{Speed: 100, Slots: 8, MaxModelLen: 8192})
	tight := s.Key("--tenant", "acme", "--name", "tight", "--budget", "0.016/month") // 8,000 prompt tokens
	wide := s.Key("--tenant", "acme", "--name", "wide", "--budget", "0.018/month")   // 9,000
	id, _, _ := respond(t, s.Replicas[0], tight, `{"model":"qwen","input":"hi","max_output_tokens":5}`)
	next := `{"model":"qwen","input":"hi","max_output_tokens":5,"previous_response_id":"` + id + `"}`
	if a := ask(t, "POST", s.Replicas[0].URL+"/v1/responses", tight, next); a.Status != 429 || !strings.Contains(a.Body, "insufficient_quota") {
		t.Errorf("a budget that cannot hold the context: %d %s", a.Status, a.Body)
	}
	for i := range 3 {
		respond(t, s.Replicas[0], wide, next)
		s.booksAgree(t, "acme", 3+i) // the next one needs all of it again
	}
}

// TestResponsesOfAFastClient: a client that comes back through another replica before the first one's note has reached
// Redis still finds its response.
func TestResponsesOfAFastClient(t *testing.T) {
	t.Parallel()
	s := &stack{redis: lab.Redis(t), consul: lab.Consul(t)}
	s.addEngine(t, "b1", fast)
	relay := lab.Relay(t, s.redis.Addr)
	s.Fleet = fleet.Start(t, fleet.Options{Redis: s.redis.URL(), Consul: s.consul.Addr, Catalogue: aliased})
	far := fleet.Start(t, fleet.Options{Redis: "redis://" + relay.Addr, Consul: s.consul.Addr, Catalogue: aliased})
	s.waitServed(t, s.Replicas[0], 1)
	s.waitServed(t, far.Replicas[0], 1)
	key := s.Key("--tenant", "acme", "--name", "ci")
	for _, r := range []*fleet.Replica{s.Replicas[0], far.Replicas[0]} {
		respond(t, r, key, `{"model":"qwen","input":"first use"}`)
	}
	relay.SetDelay(60 * time.Millisecond) // the note is there after the first look, and after the one 50 ms behind it
	for i := range 6 {
		id, _, _ := respond(t, far.Replicas[0], key, fmt.Sprintf(`{"model":"qwen","input":"question %d"}`, i))
		if a := ask(t, "GET", s.Replicas[0].URL+"/v1/responses/"+id, key, ""); a.Status != 200 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
}
