package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// capacityOf is pool qwen as a replica's /capacity shows it; nil: not yet.
func capacityOf(t *testing.T, r *fleet.Replica) map[string]any {
	t.Helper()
	resp, err := http.Get(r.Admin + "/capacity")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var answer struct {
		Pools map[string]map[string]any `json:"pools"`
	}
	if json.NewDecoder(resp.Body).Decode(&answer) != nil {
		return nil
	}
	return answer.Pools["qwen"]
}

// TestCapacity: every replica says the same of the whole fleet: what is offered, served and waiting through both, how much of
// the slots is in use, and how many engines that would take.
func TestCapacity(t *testing.T) {
	t.Parallel()
	s := newStack(t, 2, 2, engine.Options{Slots: 2, Speed: 1})
	key := s.Key("--tenant", "acme")
	figure := func(r *fleet.Replica, name string) float64 {
		n, ok := capacityOf(t, r)[name].(float64)
		if !ok {
			return -1
		}
		return n
	}
	both := func(what string, good func(get func(name string) float64) bool) {
		t.Helper()
		for _, r := range s.Replicas {
			lab.Eventually(t, 60*time.Second, func() bool { return good(func(name string) float64 { return figure(r, name) }) }, "%s by %s", what, r.Name)
		}
	}
	both("at rest", func(get func(string) float64) bool {
		return get("capacity_mu") == 400 && get("slots") == 4 && get("desired_replicas") == 1 && get("waiting_mu") == 0 && get("served_mu") == 0
	})
	if s.Replicas[0].Metric(`headgate_engine_kv_use{backend="b1",pool="qwen"}`) != 0 || s.Replicas[1].Metric(`headgate_pool_capacity_mu{pool="qwen"}`) != 400 {
		t.Error("no gauges of engines or pools")
	}

	// Sixteen clients for four slots, half at each replica: answers of some seconds.
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for i := range 16 {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				fleet.Ask(t, s.Replicas[i%2].URL, key, fleet.Chat("qwen", fmt.Sprint("tell me more of ", i), `"max_tokens":60`, `"ignore_eos":true`))
			}
		})
	}
	both("under load", func(get func(string) float64) bool {
		return get("slots_held") == 4 && get("utilisation") == 1 && get("waiting") > 6 && get("waiting_mu") > 0 && get("desired_replicas") >= 6 &&
			get("offered_mu") > 0 && get("served_mu") > 0
	})
	close(stop)
	asking.Wait()
	both("afterwards", func(get func(string) float64) bool {
		return get("slots_held") == 0 && get("waiting") == 0 && get("utilisation") == 0 && get("desired_replicas") >= 6 // it falls late
	})
}

// TestHealthIsTheFleets: with three replicas two look at an engine; what they find is in Redis, keeps the third and the queue
// away from it, and without Redis each looks for itself.
func TestHealthIsTheFleets(t *testing.T) {
	t.Parallel()
	redis := lab.Redis(t)
	var checks atomic.Int64
	var unwell atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"qwen"}]}`)
		case r.URL.Path == "/health" && unwell.Load():
			w.WriteHeader(http.StatusInternalServerError)
		case r.URL.Path == "/health":
			checks.Add(1)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	f := fleet.Start(t, fleet.Options{Replicas: 3, Redis: redis.URL(), Env: []string{"HG_BACKENDS=qwen=" + server.URL + ";slots=2;id=b1"}})
	healthy := func(n float64) func() bool {
		return func() bool {
			for _, r := range f.Replicas {
				if r.Metric(`headgate_backends{pool="qwen",state="healthy"}`) != n {
					return false
				}
			}
			return true
		}
	}
	lab.Eventually(t, 60*time.Second, healthy(1), "in use everywhere")
	rate := func() float64 { // checks a second, of twelve
		const n = 12
		start, before := time.Now(), checks.Load()
		lab.Eventually(t, 60*time.Second, func() bool { return checks.Load() >= before+n }, "checks")
		return n / time.Since(start).Seconds()
	}
	lab.Eventually(t, 60*time.Second, func() bool { return rate() < 2.6 }, "two of three look")

	unwell.Store(true)
	lab.Eventually(t, 60*time.Second, healthy(0), "out of use everywhere")
	until := func() int64 {
		n, _ := strconv.ParseInt(redis.CLI("HGET", "hg:{p:qwen}:backend:b1", "cooldown_until"), 10, 64)
		return n
	}
	lab.Eventually(t, 60*time.Second, func() bool { return until() > time.Now().UnixMilli() }, "scripts know it")
	if _, port, _ := net.SplitHostPort(server.Listener.Addr().String()); !strings.Contains(redis.CLI("HGET", "hg:{p:qwen}:unwell", "b1"), ":"+port) {
		t.Errorf("findings: %q", redis.CLI("HGETALL", "hg:{p:qwen}:unwell"))
	}
	unwell.Store(false)
	lab.Eventually(t, 60*time.Second, healthy(1), "in use again")
	lab.Eventually(t, 60*time.Second, func() bool { return until() == 0 }, "scripts know that too")

	redis.Stop()
	lab.Eventually(t, 60*time.Second, func() bool { return rate() > 2.6 }, "each looks for itself")
	redis.Cont()
}
