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

const failoverModels = `models:
  qwen: {price: {prompt: 2, completion: 6}, max_output_tokens: 4096}
`

// failover is a fleet on a Redis whose primary dies in mid-traffic.
type failover struct {
	*stack
	pair   lab.Pair
	tenant string // lives on pair
	other  string // lives elsewhere; "": there is no elsewhere

	killed, over time.Time // when the primary died, and when its replica had taken over

	mu    sync.Mutex
	tried map[string][]try // by tenant
}

// try is a request and what came of it.
type try struct {
	began time.Time
	took  time.Duration
	fleet.Answer
}

// TestPromise8_PrimaryDies: the primary of the ledger is killed while chats and streams run, and takes what it acknowledged
// last with it. Streams go on to their end, requests get an answer or a 503 that says when to come back, the first good answer
// comes within 5 s after the replica took over, and every request is billed once.
func TestPromise8_PrimaryDies(t *testing.T) {
	t.Parallel()
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		set := lab.Sentinel(t)
		dies(t, &failover{stack: &stack{ask: set.CLI}, pair: set.Pair(), tenant: "acme"}, set.URL())
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := lab.ClusterReplicated(t, 3, 0)
		f := &failover{stack: &stack{ask: func(args ...string) string { return c.CLI(args[1], args...) }}, tenant: "acme", other: "other"}
		for c.Owner("{t:"+f.tenant+"}") == c.Owner("{p:qwen}") {
			f.tenant += "x"
		}
		for c.Owner("{t:"+f.other+"}") == c.Owner("{t:"+f.tenant+"}") {
			f.other += "x"
		}
		f.pair = c.Shard("{t:" + f.tenant + "}")
		dies(t, f, c.URL())
	})
}

func dies(t *testing.T, f *failover, url string) {
	const streamed = 1300 // tokens: sixteen seconds
	f.tried, f.consul = map[string][]try{}, lab.Consul(t)
	for _, id := range []string{"b1", "b2"} {
		f.addEngine(t, id, engine.Options{Speed: 1, Slots: 32})
	}
	f.Fleet = fleet.Start(t, fleet.Options{Replicas: 2, Redis: url, Consul: f.consul.Addr, Catalogue: failoverModels,
		Env: []string{"HG_REDIS_TIMEOUT=3s"}}) // a busy machine must not look like a dead primary
	for _, r := range f.Replicas {
		f.waitServed(t, r, 2)
	}
	keys := map[string]string{f.tenant: f.Key("--tenant", f.tenant, "--budget", "5/month", "--rpm", "100000", "--parallel", "100")}
	if f.other != "" {
		keys[f.other] = f.Key("--tenant", f.other, "--budget", "5/month", "--parallel", "100")
	}
	story := fleet.Chat("qwen", "a long story", `"stream":true,"ignore_eos":true`, fmt.Sprintf(`"max_tokens":%d`, streamed))

	var streams, chats sync.WaitGroup
	stream := func() {
		for _, r := range f.Replicas {
			streams.Go(func() { f.try(t, f.tenant, r, keys[f.tenant], story) })
		}
		lab.Eventually(t, 20*time.Second, func() bool { return f.running() >= 2 }, "the streams run")
	}
	stream() // their admission survives
	f.pair.Detach()
	stop := make(chan struct{})
	for tenant, key := range keys {
		for _, r := range f.Replicas {
			chats.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					case <-time.After(30 * time.Millisecond):
						f.try(t, tenant, r, key, fleet.Chat("qwen", fmt.Sprint("chat ", i), `"max_tokens":4`))
					}
				}
			})
		}
	}
	stream() // theirs does not
	lab.Eventually(t, 20*time.Second, func() bool { return f.good(f.tenant, time.Time{}, 2) }, "chats are answered")

	f.killed = time.Now()
	stood := stoodStill(stop)
	f.pair.Kill()
	f.pair.Wait()
	f.over = time.Now()
	lab.Eventually(t, 60*time.Second, func() bool { return f.good(f.tenant, f.over, 2) }, "chats are answered again")
	streams.Wait()
	close(stop)
	chats.Wait()

	f.judge(t, streamed, <-stood)
	if n := strings.Count(f.Replicas[0].Output()+f.Replicas[1].Output(), "charged in full"); n < 2 {
		t.Errorf("%d admissions were charged in full, those of two streams were lost: the primary took nothing with it", n)
	}
	for tenant := range keys {
		f.nothingLeft(t, tenant)
		lab.Succeeds(t, 20*time.Second, func() error { return f.books(t, tenant) }, "the books of %s agree", tenant)
	}
}

// stoodStill says, once stop is closed, for how long this machine had no time for its tests: what took longer for that is no
// fault of the fleet.
func stoodStill(stop chan struct{}) <-chan time.Duration {
	const step = 20 * time.Millisecond
	said := make(chan time.Duration, 1)
	go func() {
		var sum time.Duration
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-stop:
				said <- sum
				return
			case <-time.After(step):
				if late := time.Since(last) - 2*step; late > 0 {
					sum += late
				}
			}
		}
	}()
	return said
}

// try asks and keeps what came of it.
func (f *failover) try(t *testing.T, tenant string, r *fleet.Replica, key, body string) {
	began := time.Now()
	a := fleet.Ask(t, r.URL, key, body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried[tenant] = append(f.tried[tenant], try{began, time.Since(began), a})
}

func (f *failover) running() (n int) {
	for _, e := range f.engines {
		n += e.Running()
	}
	return n
}

// good is true when n chats that began after then were answered.
func (f *failover) good(tenant string, then time.Time, n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.tried[tenant] {
		if a.Status == 200 && a.began.After(then) {
			n--
		}
	}
	return n <= 0
}

// judge holds every answer to the promise.
func (f *failover) judge(t *testing.T, streamed int, stood time.Duration) {
	t.Helper()
	killed, over := f.killed, f.over
	var refused []try
	first, ends := time.Duration(-1), 0
	for tenant, all := range f.tried {
		for _, a := range all {
			switch {
			case a.Err != nil:
				t.Errorf("%s: an answer broke off: %v", tenant, a.Err)
			case a.Status == 503 && a.Header.Get("Retry-After") != "" && tenant != f.other:
				refused = append(refused, a)
				if a.took > 3*time.Second+stood {
					t.Errorf("a refusal took %v", a.took)
				}
			case a.Status != 200:
				t.Errorf("%s: %d %v %s", tenant, a.Status, a.Header, a.Body)
			case strings.HasPrefix(a.Body, "data: "):
				if ends++; !strings.HasSuffix(a.Body, "data: [DONE]\n\n") || strings.Count(a.Body, "\n\n") < streamed {
					t.Errorf("a stream was cut: …%s", a.Body[max(0, len(a.Body)-300):])
				}
			case tenant == f.tenant && a.began.After(over):
				if done := a.began.Add(a.took).Sub(over); first < 0 || done < first {
					first = done
				}
			}
		}
	}
	if ends != 4 {
		t.Errorf("%d streams came to their end, want 4", ends)
	}
	if first < 0 || first > 5*time.Second+stood {
		t.Errorf("the first good answer came %v after the failover", first)
	}
	var longest time.Duration
	var last time.Time
	for _, a := range refused {
		longest = max(longest, a.took)
		if a.began.After(last) {
			last = a.began
		}
	}
	if len(refused) == 0 {
		t.Error("nobody was refused: the primary was not missed")
	}
	t.Logf("the machine stood still for %v; failover %v; first answer %v after it; %d of %d requests refused, the last %v after the kill, the longest took %v",
		stood, over.Sub(killed).Round(time.Millisecond), first.Round(time.Millisecond), len(refused), len(f.tried[f.tenant]), last.Sub(killed).Round(time.Millisecond), longest.Round(time.Millisecond))
}

// books is nil when the usage lines, the counter and the last record of each request in Redis say the same.
func (f *failover) books(t *testing.T, tenant string) error {
	lines := map[string]int64{}
	var sum, recorded int64
	for _, l := range f.Lines() {
		if l.Tenant != tenant || l.CostNUSD == nil {
			continue
		}
		if _, twice := lines[l.RID]; twice {
			return fmt.Errorf("two lines of %s", l.RID)
		}
		lines[l.RID] = *l.CostNUSD
		sum += *l.CostNUSD
	}
	records := map[string]int64{}
	for text := range strings.SplitSeq(f.redisCLI("XRANGE", "hg:{t:"+tenant+"}:usage", "-", "+"), "\n") {
		var l fleet.Line
		if strings.HasPrefix(text, "{") && json.Unmarshal([]byte(text), &l) == nil && l.CostNUSD != nil {
			records[l.RID] = *l.CostNUSD
		}
	}
	for _, cost := range records {
		recorded += cost
	}
	var wrong []string
	for rid, cost := range lines {
		if records[rid] != cost {
			wrong = append(wrong, fmt.Sprintf("%s: line %d, record %d", rid, cost, records[rid]))
		}
	}
	slices.Sort(wrong)
	if spent := f.spend(t, tenant, "tenant", tenant, "spent_nusd"); spent != sum || recorded != sum || len(wrong) > 0 || sum == 0 {
		return fmt.Errorf("lines %d, spent %d, records %d nano-dollars: %v", sum, spent, recorded, wrong)
	}
	return nil
}
