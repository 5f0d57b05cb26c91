package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// meterDelay is added to each direction between headgate and Redis: above what a busy machine adds by itself, and a round
// trip below the 150 ms after which a cache that has not answered counts as a miss.
const meterDelay = 50 * time.Millisecond

// metered is one way to reach Redis through relays whose delay can be set.
type metered struct {
	url    string
	tenant string
	delay  func(time.Duration)
	cli    func(args ...string) string
}

// TestPromise1_TwoRoundTrips proves from outside what round_trips says: with a delay d in each direction the engine sees a
// request one round trip (2d) later than without, and the client gets its answer as soon as the engine has given it.
func TestPromise1_TwoRoundTrips(t *testing.T) {
	t.Parallel()
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		redis := lab.Redis(t)
		relay := lab.Relay(t, redis.Addr)
		measure(t, metered{"redis://" + relay.Addr, "acme", relay.SetDelay, redis.CLI})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := lab.ClusterRelayed(t, 3, 0)
		tenant := "acme" // one that lies on another node than the pool
		for c.Owner("{t:"+tenant+"}") == c.Owner("{p:qwen}") {
			tenant += "x"
		}
		measure(t, metered{c.URL(), tenant, c.SetDelay, func(args ...string) string { return c.CLI(args[1], args...) }})
	})
}

func measure(t *testing.T, m metered) {
	s := &stack{consul: lab.Consul(t)}
	s.addEngine(t, "b1", engine.Options{Speed: 20, Slots: 64})
	s.Fleet = fleet.Start(t, fleet.Options{Redis: m.url, Consul: s.consul.Addr, Env: []string{"HG_REDIS_TIMEOUT=5s"},
		Catalogue: strings.Replace(prices, "max_output_tokens: 64", "max_output_tokens: 64\n    cache: {ttl: 10m}", 1)})
	replica := s.Replicas[0]
	s.waitServed(t, replica, 1)
	key := s.Key("--tenant", m.tenant, "--team", "search", "--rpm", "1000", "--tpm", "1000000", "--budget", "5/month")
	refused := s.Key("--tenant", m.tenant, "--team", "search", "--tpm", "1000")
	for _, k := range []string{key, refused} { // the first use of a key takes one more
		if a := fleet.Ask(t, replica.URL, k, fleet.Chat("qwen", "first use", `"max_tokens":2`)); a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	shapes := []struct {
		name, key, body string
		calls           bool // the engine
		before          func()
	}{
		{"chat", key, `"max_tokens":3`, true, nil},
		{"stream", key, `"max_tokens":3,"stream":true`, true, nil},
		{"changed policy", key, `"max_tokens":3,"seed":1`, true, func() { m.cli("HSET", "hg:{t:"+m.tenant+"}:team:search", "rpm", "500") }},
		{"refused", refused, `"max_tokens":2000`, false, nil},
		{"cache hit", key, `"max_tokens":3`, false, nil},
	}
	asked, late := 2, 0
	for _, shape := range shapes {
		var lead, lag [2]time.Duration // before the engine and after it, without and with the delay
		for i, delay := range []time.Duration{0, meterDelay} {
			var leads, lags []time.Duration
			for run := 0; run < 5; run++ {
				if shape.before != nil {
					shape.before()
				}
				content := fmt.Sprintf("%s %v %d", shape.name, delay, run)
				if shape.name == "cache hit" {
					content = "chat 0s 0"
				}
				m.delay(delay)
				before := len(s.engines[0].Seen())
				started := time.Now()
				a := fleet.Ask(t, replica.URL, shape.key, fleet.Chat("qwen", content, shape.body))
				ended := time.Now()
				m.delay(0)
				asked++
				seen := s.engines[0].Seen()[before:]
				if shape.name == "cache hit" && len(seen) == 1 && late < 5 { // an answer after 150 ms counts as a miss: on a busy machine it may be
					late++
					run--
					continue
				}
				if len(seen) != map[bool]int{true: 1}[shape.calls] {
					t.Fatalf("%s: status %d, the engine saw %d requests: %s", shape.name, a.Status, len(seen), a.Body)
				}
				if shape.calls {
					leads, lags = append(leads, seen[0].Time.Sub(started)), append(lags, ended.Sub(seen[0].Ended))
				} else {
					leads, lags = append(leads, ended.Sub(started)), append(lags, 0)
				}
			}
			lead[i], lag[i] = slices.Min(leads), slices.Min(lags) // what a busy machine adds is not Redis
		}
		trips := float64(lead[1]-lead[0]) / float64(2*meterDelay)
		waited := float64(lag[1]-lag[0]) / float64(2*meterDelay)
		t.Logf("%-15s %.2f round trips before the answer, %.2f after it", shape.name, trips, waited)
		if trips < 0.8 || trips > 1.5 {
			t.Errorf("%s: %.2f round trips before the answer, want 1", shape.name, trips)
		}
		if waited > 0.3 {
			t.Errorf("%s: the client waited %.2f round trips after the engine was done, want 0", shape.name, waited)
		}
	}
	lines := s.WaitLines(asked)
	for i, l := range lines {
		want := 1
		if i < 2 {
			want = 2
		}
		if l.RoundTrips != want {
			t.Errorf("round_trips = %d, want %d: %s", l.RoundTrips, want, l.Raw)
		}
	}
}
