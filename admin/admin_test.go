package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/admin"
	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
)

func start(t *testing.T, cfg admin.Config, m *admin.Metrics) (*admin.Server, string) {
	t.Helper()
	if m == nil {
		m = admin.NewMetrics(admin.Sources{})
	}
	s := admin.New(cfg, m, zerolog.Nop())
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	return s, server.URL
}

func get(t *testing.T, url, auth string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if auth != "" {
		r.Header.Set("Authorization", auth)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestTokenGuards: A1.
func TestTokenGuards(t *testing.T) {
	_, url := start(t, admin.Config{Token: "s3cret"}, nil)
	for _, c := range []struct {
		path, auth string
		want       int
	}{
		{"/livez", "", 200}, {"/readyz", "", 200},
		{"/metrics", "", 401}, {"/metrics", "Bearer s3cre", 401}, {"/metrics", "Bearer s3creT", 401}, {"/metrics", "Bearer s3cret ", 200}, // net/http trims
		{"/metrics", "Basic s3cret", 401}, {"/metrics", "s3cret", 401}, {"/metrics", "bearer s3cret", 200},
		{"/admin/v1/keys", "", 401}, {"/admin/v1/keys", "Bearer s3cret", 404},
	} {
		status, body := get(t, url+c.path, c.auth)
		if status != c.want || strings.Contains(body, "s3cret") {
			t.Errorf("%s with %q: %d %s, want %d", c.path, c.auth, status, body, c.want)
		}
	}
	_, open := start(t, admin.Config{}, nil)
	if status, _ := get(t, open+"/metrics", ""); status != 200 {
		t.Errorf("without a token: %d", status)
	}
}

// TestDoorsAreShut: A4.
func TestDoorsAreShut(t *testing.T) {
	_, url := start(t, admin.Config{}, nil)
	for _, path := range []string{"/", "/admin/v1/", "/capacity", "/ui/", "/metrics/x", "/debug/pprof/"} {
		status, body := get(t, url+path, "")
		var got struct{ Error struct{ Type, Code string } }
		if err := json.Unmarshal([]byte(body), &got); err != nil || status != 404 || got.Error.Code != "route_not_found" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// TestReadyNamesEverything: A2.
func TestReadyNamesEverything(t *testing.T) {
	var redis error
	hang := make(chan struct{})
	defer close(hang)
	checks := []admin.Check{
		{Name: "redis", Ready: func(context.Context) error { return redis }},
		{Name: "eviction", Ready: func(context.Context) error { return nil }},
	}
	s, url := start(t, admin.Config{Checks: checks}, nil)
	if status, body := get(t, url+"/readyz", ""); status != 200 || body != `{"ready":true,"not_ready":{}}`+"\n" {
		t.Fatalf("%d %s", status, body)
	}
	unheard := func(context.Context) error { return errors.New("unheard") }
	_, warns := start(t, admin.Config{Checks: append(checks, admin.Check{Name: "announcements", Mild: true, Ready: unheard})}, nil)
	if status, body := get(t, warns+"/readyz", ""); status != 200 || body != `{"ready":true,"not_ready":{},"warnings":{"announcements":"unheard"}}`+"\n" {
		t.Fatalf("with a warning: %d %s", status, body)
	}
	redis = errors.New("gone")
	s.Drain()
	status, body := get(t, url+"/readyz", "")
	if want := `{"ready":false,"not_ready":{"draining":"this replica is shutting down","redis":"gone"}}` + "\n"; status != 503 || body != want {
		t.Fatalf("%d %s", status, body)
	}
	if status, _ := get(t, url+"/livez", ""); status != 200 {
		t.Fatalf("livez while draining: %d", status)
	}

	checks = append(checks, admin.Check{Name: "consul", Ready: func(context.Context) error { <-hang; return nil }})
	_, url = start(t, admin.Config{Checks: checks}, nil)
	status, body = get(t, url+"/readyz", "")
	if want := `{"ready":false,"not_ready":{"consul":"no answer in time","redis":"gone"}}` + "\n"; status != 503 || body != want {
		t.Fatalf("with a check that hangs: %d %s", status, body)
	}
}

// TestMetricsFollowRecords also holds A3: what clients make up is no label.
func TestMetricsFollowRecords(t *testing.T) {
	pool := &cluster.Pool{Name: "qwen", Backends: []*cluster.Backend{{ID: "a", Slots: 4}, {ID: "b", Draining: true}}}
	m := admin.NewMetrics(admin.Sources{Version: "1.2.3", Running: func() int { return 7 }, PromptBytes: func() int64 { return 4096 },
		Pools: func() []*cluster.Pool { return []*cluster.Pool{pool} },
		Held:  func(pool string) int { return len(pool) }, Waiting: func(pool string) int { return 2 * len(pool) },
		Backlog: map[string]func() int{"redis": func() int { return 9 }, "cache": func() int { return 0 }},
		Open:    func() int { return 3 }, Unsettled: func() int { return 5 }, ConsulUp: func() bool { return true }, BeatAge: func() time.Duration { return 1500 * time.Millisecond },
		Catalogue: func() *catalogue.Catalogue { return &catalogue.Catalogue{} },
		LastLoad:  func() catalogue.Load { return catalogue.Load{At: time.UnixMilli(1_700_000_000_500)} }, Capacity: capacity})
	_, url := start(t, admin.Config{}, m)
	ok := coordinator.Record{Route: "/v1/chat/completions", Model: "qwen-7b", Pool: "qwen", Status: 200, Outcome: "ok", Attempts: 2, Stream: true,
		Prompt: 100, Cached: 40, Completion: 10, CostKnown: true, CostNUSD: 2_500_000_000, Cache: "miss", QueueMS: 300, RedisMS: 0.7,
		RoundTrips: 1, TTFT: 90 * time.Millisecond, TPOT: 12 * time.Millisecond, Duration: time.Second}
	m.Observe(&ok)
	m.Observe(&ok)
	m.Observe(&coordinator.Record{Route: "/v1/chat/completions", Model: "made-up-1", Status: 404, Outcome: "rejected", ErrorCode: "model_not_found", RoundTrips: 1, Stream: true, TTFT: 1})
	m.Observe(&coordinator.Record{Route: "/v1/completions", Model: "qwen-7b", Pool: "qwen", Status: 200, Outcome: "ok", Cache: "hit", Prompt: 7, Completion: 7})
	m.Observe(&coordinator.Record{Route: "/v1/completions", Model: "free-7b", Pool: "qwen", Status: 200, Outcome: "ok", Prompt: 1})
	m.Observe(&coordinator.Record{Route: "/made/up/2", Model: "made-up-3", Status: 404, Outcome: "rejected"})
	_, text := get(t, url+"/metrics", "")
	onThePage(t, text)
	for _, want := range []string{
		`headgate_requests_total{outcome="ok",route="/v1/chat/completions",status="200"} 2`,
		`headgate_requests_total{outcome="rejected",route="other",status="404"} 1`,
		`headgate_tokens_total{kind="prompt",model="qwen-7b"} 200`,
		`headgate_tokens_total{kind="cached",model="qwen-7b"} 80`,
		`headgate_tokens_total{kind="completion",model="qwen-7b"} 20`,
		`headgate_cost_usd_total{model="qwen-7b"} 5`,
		`headgate_attempts_total{pool="qwen"} 4`,
		`headgate_unpriced_requests_total{model="free-7b"} 1`,
		`headgate_cache_total{result="miss"} 2`,
		`headgate_cache_total{result="hit"} 1`,
		`headgate_ttft_seconds_bucket{model="qwen-7b",le="0.1"} 2`,
		`headgate_ttft_seconds_bucket{model="qwen-7b",le="0.05"} 0`,
		`headgate_tpot_seconds_count{model="qwen-7b"} 2`,
		`headgate_request_duration_seconds_sum{route="/v1/chat/completions"} 2`,
		`headgate_queue_wait_seconds_count{pool="qwen"} 2`,
		`headgate_redis_round_trips_bucket{route="/v1/chat/completions",le="1"} 3`,
		`headgate_redis_wait_seconds_count 3`,
		`headgate_requests_in_flight 7`,
		`headgate_prompt_bytes 4096`,
		`headgate_backends{pool="qwen",state="draining"} 1`,
		`headgate_backends{pool="qwen",state="unhealthy"} 1`,
		`headgate_slots{pool="qwen"} 0`,
		`headgate_slots_held{pool="qwen"} 4`,
		`headgate_queue_length{pool="qwen"} 8`,
		`headgate_pool_capacity_mu{pool="qwen"} 300`,
		`headgate_pool_served_mu{pool="qwen"} 20.5`,
		`headgate_pool_offered_mu{pool="qwen"} 30`,
		`headgate_pool_waiting_mu{pool="qwen"} 40`,
		`headgate_pool_utilisation{pool="qwen"} 0.5`,
		`headgate_pool_desired_replicas{pool="qwen"} 3`,
		`headgate_engine_held{backend="a",pool="qwen"} 2`,
		`headgate_engine_backlog_mu{backend="a",pool="qwen"} 7.5`,
		`headgate_engine_cooldown_seconds{backend="a",pool="qwen"} 0`,
		`headgate_engine_probes_failed{backend="a",pool="qwen"} 1`,
		`headgate_engine_external{backend="a",pool="qwen"} 3`,
		`headgate_engine_running{backend="a",pool="qwen"} 5`,
		`headgate_engine_waiting{backend="a",pool="qwen"} 6`,
		`headgate_engine_kv_use{backend="a",pool="qwen"} 0.25`,
		`headgate_engine_prefix_queries_tokens{backend="a",pool="qwen"} 900`,
		`headgate_engine_prefix_hits_tokens{backend="a",pool="qwen"} 300`,
		`headgate_engine_cooldown_seconds{backend="b",pool="qwen"} `,
		`headgate_errors_total{code="model_not_found"} 1`,
		`headgate_post_call_backlog{store="redis"} 9`,
		`headgate_post_call_backlog{store="cache"} 0`,
		`headgate_reservations_open 3`,
		`headgate_settlements_unacknowledged 5`,
		`headgate_beat_age_seconds 1.5`,
		`headgate_catalogue_models 0`,
		`headgate_consul_up 1`,
		`headgate_catalogue_last_load_successful 0`,
		`headgate_catalogue_loaded_timestamp_seconds 1.7000000005e+09`,
		`headgate_ready 0`,
		`version="1.2.3"} 1`,
		`go_goroutines `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s", want)
		}
	}
	if strings.Contains(text, `headgate_engine_running{backend="b"`) {
		t.Error("what an engine said that was not read of late")
	}
	if strings.Contains(text, "made") {
		t.Error("a name that a client made up is a label")
	}
}

// capacity is a pool of two backends, of which b was not read of late.
func capacity() []coordinator.Capacity {
	return []coordinator.Capacity{{Pool: "qwen", At: time.UnixMilli(1_700_000_000_500), CapacityMU: 300, ServedMU: 20.5, OfferedMU: 30, WaitingMU: 40,
		Utilisation: 0.5, Desired: 3, Backends: 2, Used: 1, Slots: 8, Held: 4, External: 3, Waiting: 9, Engines: []coordinator.EngineState{
			{Backend: "a", Held: 2, BacklogMU: 7.5, ProbesFailed: 1, Known: true, External: 3, Running: 5, Queue: 6, KVUse: 0.25, PrefixQueries: 900, PrefixHits: 300},
			{Backend: "b", CooldownUntil: time.Now().Add(time.Hour), Running: 99}}}}
}

// TestCapacityIsJSON: behind the token, by pool.
func TestCapacityIsJSON(t *testing.T) {
	_, url := start(t, admin.Config{Token: "s3cret", Capacity: capacity}, nil)
	if status, _ := get(t, url+"/capacity", ""); status != 401 {
		t.Errorf("without the token: %d", status)
	}
	status, body := get(t, url+"/capacity", "Bearer s3cret")
	if want := `{"pools":{"qwen":{"capacity_mu":300,"served_mu":20.5,"offered_mu":30,"waiting_mu":40,"utilisation":0.5,"desired_replicas":3,` +
		`"backends":2,"backends_in_use":1,"slots":8,"slots_held":4,"external":3,"waiting":9,"as_of":"2023-11-14T22:13:20.500Z"}}}` + "\n"; status != 200 || body != want {
		t.Errorf("%d %s", status, body)
	}
}

// onThePage: docs/metrics.md has every metric of ours, and no other.
func onThePage(t *testing.T, text string) {
	t.Helper()
	data, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	page := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(headgate_[a-z_]+)`").FindAllStringSubmatch(string(data), -1) {
		page[row[1]] = true
	}
	known := map[string]bool{"headgate_check_up": true} // there once the replica has looked
	for _, help := range regexp.MustCompile(`(?m)^# HELP (headgate_[a-z_]+) `).FindAllStringSubmatch(text, -1) {
		known[help[1]] = true
	}
	for name := range known {
		if !page[name] {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
	}
	for name := range page {
		if !known[name] {
			t.Errorf("docs/metrics.md has %s, which is no metric", name)
		}
	}
}

// TestACheckThatNeedsAnother is left out while that one fails.
func TestACheckThatNeedsAnother(t *testing.T) {
	redis := errors.New("gone")
	checks := []admin.Check{
		{Name: "redis", Ready: func(context.Context) error { return redis }},
		{Name: "eviction_policy", Needs: "redis", Ready: func(context.Context) error { return errors.New("evicts") }},
	}
	_, url := start(t, admin.Config{Checks: checks}, nil)
	if _, body := get(t, url+"/readyz", ""); body != `{"ready":false,"not_ready":{"redis":"gone"}}`+"\n" {
		t.Fatalf("%s", body)
	}
	redis = nil
	if _, body := get(t, url+"/readyz", ""); body != `{"ready":false,"not_ready":{"eviction_policy":"evicts"}}`+"\n" {
		t.Fatalf("%s", body)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := admin.New(admin.Config{}, admin.NewMetrics(admin.Sources{}), zerolog.Nop())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	if status, body := get(t, "http://"+l.Addr().String()+"/livez", ""); status != 200 || body != `{"live":true}`+"\n" {
		t.Fatalf("%d %s", status, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
