package cluster

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/lab"
)

// TestProbeJudgesAnAnswer: what generates nothing, or breaks off, has failed; what refuses or is full hangs not.
func TestProbeJudgesAnAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		completions, embeddings int // statuses; 0: no answer
		body                    string
		well                    bool
	}{
		"a token":                    {200, 500, `{"choices":[]}`, true},
		"no answer":                  {0, 200, "", false},
		"its core is dead":           {500, 200, `{"error":{}}`, false},
		"full":                       {503, 500, `{"error":{}}`, true},
		"an engine for embeddings":   {400, 200, `{}`, true},
		"a hanging one of that kind": {404, 0, `{}`, false},
		"refuses all":                {400, 404, `{}`, true},
		"wants a key":                {401, 500, `{}`, true},
		"no JSON":                    {200, 200, `<html>`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked []string
			done := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var body map[string]any
				if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body["model"] != "m" || r.Method != "POST" {
					t.Errorf("%s %v, %v", r.Method, body, err)
				}
				status := map[string]int{"/base/v1/completions": c.completions, "/base/v1/embeddings": c.embeddings}[r.URL.Path]
				asked = append(asked, r.URL.Path)
				if strings.HasSuffix(r.URL.Path, "completions") && (body["max_tokens"] != 1.0 || body["priority"] != float64(probePriority)) {
					t.Errorf("%v", body)
				}
				if status == 0 {
					<-done
					return
				}
				w.WriteHeader(status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			defer close(done)
			limit := 20 * time.Second
			if c.completions == 0 || c.embeddings == 0 && c.completions == 404 {
				limit = 200 * time.Millisecond
			}
			host := strings.TrimPrefix(server.URL, "http://")
			b := &Backend{ID: "b", Scheme: "http", Host: host, Addr: host, BasePath: "/base", Models: []string{"m", "n"}, Priority: true}
			if err := newProber(nil).generate(t.Context(), b, limit); (err == nil) != c.well {
				t.Errorf("%v", err)
			}
		})
	}
}

// probeBoard says what is due, once, and keeps what was filed.
type probeBoard struct {
	mu     sync.Mutex
	due    []string
	wished []string
	filed  map[string]bool
}

func (b *probeBoard) Living() []string { return []string{"self"} }

func (b *probeBoard) Order(_ context.Context, wishes []ProbeWish) []ProbeOrder {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wished = nil
	orders := make([]ProbeOrder, len(wishes))
	for i, w := range wishes {
		b.wished = append(b.wished, w.Backends...)
		orders[i] = ProbeOrder{Known: true}
		for _, id := range w.Backends {
			if at := slices.Index(b.due, id); at >= 0 {
				b.due = slices.Delete(b.due, at, at+1)
				orders[i].Due = append(orders[i].Due, id)
			}
		}
	}
	return orders
}

func (b *probeBoard) Probed(_ context.Context, _ ProbeWish, backend string, well bool) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filed[backend] = well
	return 1, nil
}

// TestProbesAreOfTheReaders: who may be probed is wished for, and what is due is made and filed.
func TestProbesAreOfTheReaders(t *testing.T) { // L10
	t.Parallel()
	engine := func(id string, status int) *Backend {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{}`))
		}))
		t.Cleanup(server.Close)
		host := strings.TrimPrefix(server.URL, "http://")
		b := &Backend{ID: id, Pool: "p", Scheme: "http", Host: host, Addr: host, Models: []string{"m"}, state: &state{}}
		b.state.up.Store(true)
		return b
	}
	well, sick, down, draining := engine("well", 200), engine("sick", 500), engine("down", 200), engine("draining", 200)
	down.state.up.Store(false)
	draining.Draining = true
	pool := newPool("p", []*Backend{well, sick, down, draining}, nil)
	b := &probeBoard{due: []string{"well", "sick", "down", "draining"}, filed: map[string]bool{}}
	p := NewProbes(ProbesConfig{Replica: "self", Idle: 2 * time.Second}, func() []*Pool { return []*Pool{pool} }, b, zerolog.Nop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	lab.Eventually(t, 30*time.Second, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.filed) == 2 }, "two probes")
	cancel()
	<-done
	if !b.filed["well"] || b.filed["sick"] || !slices.Equal(b.wished, []string{"sick", "well"}) {
		t.Errorf("filed %v, wished for %v", b.filed, b.wished)
	}
}
