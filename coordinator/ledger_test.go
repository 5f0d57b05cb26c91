package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/redis/rueidis"
	"github.com/rs/zerolog"
)

// ledgers is some replicas' ledgers on one Redis, and one tenant of its own.
type ledgers struct {
	*testing.T
	store  *pipeline.Store
	pipes  *pipeline.Pipeline
	tenant string
	list   []*Ledger
	logs   *lab.Output
	rids   atomic.Int64
}

var tenants atomic.Int64

func newLedgers(t *testing.T, url string, replicas int) *ledgers {
	t.Helper()
	f := &ledgers{T: t, pipes: pipeline.New(), tenant: fmt.Sprintf("acme-%d-%d", time.Now().UnixNano(), tenants.Add(1)), logs: &lab.Output{}}
	f.store = connected(t, url)
	for i := range replicas {
		f.list = append(f.list, NewLedger(LedgerConfig{Replica: fmt.Sprintf("%s-r%d", f.tenant, i), Store: f.store,
			Pipeline: f.pipes, Log: zerolog.New(f.logs)}))
	}
	f.do("HSET", ":key:k1", "id", "key_1", "name", "ci", "created_at", "0")
	return f
}

func connected(t testing.TB, url string) *pipeline.Store {
	t.Helper()
	s, err := pipeline.NewStore(pipeline.StoreConfig{URL: url, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { s.Run(ctx); close(stopped) }()
	t.Cleanup(func() { cancel(); <-stopped })
	if err := s.WaitConnected(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context(), lua.All()...); err != nil {
		t.Fatal(err)
	}
	return s
}

func (f *ledgers) do(name, suffix string, args ...string) *rueidis.RedisMessage {
	f.Helper()
	m, err := f.store.Do(context.Background(), name, TenantRoot(f.tenant)+suffix, args...)
	if err != nil {
		f.Fatalf("%s %s: %v", name, suffix, err)
	}
	return &m
}

func (f *ledgers) hash(suffix string) map[string]string {
	f.Helper()
	h, err := f.do("HGETALL", suffix).AsStrMap()
	if err != nil {
		f.Fatal(err)
	}
	return h
}

func (f *ledgers) request() Request {
	return Request{RID: fmt.Sprintf("%032x", f.rids.Add(1)), RequestID: "label", Tenant: f.tenant, KeyHash: "k1", Model: "qwen 7b",
		Route: "/v1/chat/completions", Known: true, Priced: true, PromptTokens: 10, OutputCap: 50, OutputUsual: 64, HoldNUSD: 400}
}

func (f *ledgers) admit(l *Ledger, r Request) (Admission, *pipeline.Batch) {
	f.Helper()
	b := f.pipes.Batch()
	a, err := l.Admit(b, r).Wait(context.Background())
	if err != nil {
		f.Errorf("admit: %v", err)
	}
	return a, b
}

func (f *ledgers) settlement(r Request, a Admission, cost int64) Settlement {
	return Settlement{Tenant: f.tenant, RID: r.RID, Claim: a.Claim, AdmittedAt: a.AdmittedAt, KeepRequest: true, Prompt: 10,
		Completion: 30, CostNUSD: cost, Record: fmt.Appendf(nil, `{"rid":%q,"cost_nusd":%d}`, r.RID, cost)}
}

func (f *ledgers) settle(l *Ledger, s Settlement) {
	post := f.pipes.Post()
	l.Settle(post, s)
	post.Send()
}

// settled waits until nothing of l is open.
func (f *ledgers) settled(l *Ledger) {
	f.Helper()
	lab.Eventually(f, 10*time.Second, func() bool { return l.Open() == 0 }, "everything of %s is settled", l.cfg.Replica)
}

func (f *ledgers) month() string { return ":spend:key:key_1:" + time.Now().UTC().Format("2006-01") }

// records is the tenant's usage stream: cost by rid, the later record of a rid counting, and how many there are.
func (f *ledgers) records() (cost map[string]int64, sum int64, n int) {
	f.Helper()
	entries, err := f.do("XRANGE", ":usage", "-", "+").AsXRange()
	if err != nil {
		f.Fatal(err)
	}
	cost = map[string]int64{}
	for _, e := range entries {
		var r struct {
			RID  string
			Cost int64 `json:"cost_nusd"`
		}
		if err := json.Unmarshal([]byte(e.FieldValues["record"]), &r); err != nil {
			f.Fatalf("%s: %v", e.FieldValues["record"], err)
		}
		cost[r.RID] = r.Cost
	}
	for _, c := range cost {
		sum += c
	}
	return cost, sum, len(entries)
}

// L1, L2. BUD-1 without engines: three replicas, 60 clients at once, a budget for 8 holds.
func TestLedgerBudgetIsHardForTheFleet(t *testing.T) { onEach(t, 3, budgetIsHard) }

func budgetIsHard(t *testing.T, f *ledgers) {
	f.do("HSET", ":key:k1", "budget_usd", "0.000003200", "period", "month", "rpm", "1000", "parallel", "100")
	var wg sync.WaitGroup
	var passed atomic.Int64
	for i := range 60 {
		l := f.list[i%3]
		wg.Go(func() {
			r := f.request()
			a, _ := f.admit(l, r)
			switch a.Verdict {
			case Admitted:
				passed.Add(1)
				f.settle(l, f.settlement(r, a, 400)) // the whole hold, so that nothing more fits
			case BudgetExceeded:
				if a.Limit != 3200 || a.Remaining >= 400 || a.Reset <= 0 || a.Scope != "key" || a.ScopeID != "key_1" {
					t.Errorf("%+v", a)
				}
			default:
				t.Errorf("verdict %d", a.Verdict)
			}
		})
	}
	wg.Wait()
	for _, l := range f.list {
		f.settled(l)
	}
	h := f.hash(f.month())
	_, sum, n := f.records()
	if passed.Load() != 8 || h["spent_nusd"] != "3200" || h["reserved_nusd"] != "0" || sum != 3200 || n != 8 || len(f.hash(":parallel")) != 0 {
		t.Fatalf("%d passed, counters %v, records %d of %d", passed.Load(), h, sum, n)
	}
}

// RATE-1: one limit for the fleet.
func TestLedgerRequestLimitIsOneForTheFleet(t *testing.T) {
	onEach(t, 3, ledgerRequestLimitIsOneForTheFleet)
}

func ledgerRequestLimitIsOneForTheFleet(t *testing.T, f *ledgers) {
	f.do("HSET", ":key:k1", "rpm", "10")
	var wg sync.WaitGroup
	var mu sync.Mutex
	left := map[int64]int{}
	refused := 0
	for i := range 60 {
		wg.Go(func() {
			a, _ := f.admit(f.list[i%3], f.request())
			mu.Lock()
			defer mu.Unlock()
			if a.Verdict == Admitted {
				left[a.Requests.Remaining]++
			} else if a.Verdict == RequestsExceeded && a.Reset > 0 && a.Reset <= time.Minute && a.Requests.Limit == 10 && a.Requests.Remaining == 0 {
				refused++
			}
		})
	}
	wg.Wait()
	for i := range int64(10) {
		if left[i] != 1 {
			t.Fatalf("remaining values %v", left)
		}
	}
	if len(left) != 10 || refused != 50 {
		t.Fatalf("%v, %d refused", left, refused)
	}
}

// The set of tenants is written with the first reservation of a key that passed before: no wait of its own.
func TestLedgerAnnouncesInTheSameFlush(t *testing.T) { onEach(t, 1, ledgerAnnouncesInTheSameFlush) }

func ledgerAnnouncesInTheSameFlush(t *testing.T, f *ledgers) {
	l := f.list[0] // not running
	l.seen.put("k1", Hint{Tenant: f.tenant})
	_, b := f.admit(l, f.request())
	m, err := f.store.Do(t.Context(), "SMEMBERS", ReplicaTenants(l.cfg.Replica))
	names, _ := m.AsStrSlice()
	if err != nil || fmt.Sprint(names) != "["+f.tenant+"]" || b.RoundTrips() != 1 {
		t.Fatalf("%v %v, %d round trips", names, err, b.RoundTrips())
	}
	if _, b := f.admit(l, f.request()); b.RoundTrips() != 1 || l.open.unannounced(f.tenant, time.Now()) {
		t.Fatal("announced again")
	}
	other := f.request()
	other.Tenant, other.KeyHash = "made-up", "nobody"
	if a, _ := f.admit(l, other); a.Verdict != KeyUnknown {
		t.Fatalf("%+v", a)
	}
	if m, _ := f.store.Do(t.Context(), "SCARD", ReplicaTenants(l.cfg.Replica)); m.String() == "" {
		t.Fatal("no answer")
	} else if n, _ := m.AsInt64(); n != 1 {
		t.Fatal("a made-up key wrote its tenant")
	}
}

// L3. Redis is away when requests end: their settlements arrive when it is back, each once, and it is logged once.
func TestLedgerKeepsWhatIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	f := newLedgers(t, server.URL(), 1)
	f.do("HSET", ":key:k1", "budget_usd", "1")
	l := f.list[0]
	var late []Settlement
	for i := range 20 {
		r := f.request()
		a, _ := f.admit(l, r)
		late = append(late, f.settlement(r, a, int64(i)))
	}
	server.Kill()
	for _, s := range late {
		f.settle(l, s)
	}
	lab.Eventually(t, 20*time.Second, func() bool { return l.unsettled.count() == 20 }, "20 settlements are kept")
	l.retry(t.Context())
	if l.unsettled.count() != 20 || l.Open() != 20 || l.unsettled.list[0].RID != late[0].RID || l.unsettled.list[19].RID != late[19].RID {
		t.Fatalf("%d kept, %d open", l.unsettled.count(), l.Open())
	}
	server.Restart()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := l.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	h := f.hash(f.month())
	if _, sum, n := f.records(); h["spent_nusd"] != "190" || h["reserved_nusd"] != "0" || sum != 190 || n != 20 {
		t.Fatalf("%v, %d in %d records", h, sum, n)
	}
	if down, up := f.logs.Count("does not take"), f.logs.Count("takes settlements again"); down != 1 || up != 1 {
		t.Fatalf("logged %d and %d times", down, up)
	}
}

func TestLedgerGivesUpAfterAnHour(t *testing.T) { onEach(t, 1, ledgerGivesUpAfterAnHour) }

func ledgerGivesUpAfterAnHour(t *testing.T, f *ledgers) {
	l := f.list[0]
	f.do("SET", ":usage", "no stream")
	l.keep(Settlement{Tenant: f.tenant, RID: "r", CostNUSD: 5, Record: []byte(`{"a":1}`)}, pipeline.ErrUnavailable)
	l.retry(t.Context())
	if l.unsettled.count() != 1 {
		t.Fatal("given up at once")
	}
	l.unsettled.list[0].since = time.Now().Add(-unsettledFor)
	l.retry(t.Context())
	if l.unsettled.count() != 0 || f.logs.Count("given up") != 1 || f.logs.Count(`"record":{"a":1}`) != 1 {
		t.Fatalf("%d kept, log %q", l.unsettled.count(), f.logs)
	}
}

// The admission's reply is lost: applied or not, settling without a claim leaves nothing behind.
func TestLedgerLostReply(t *testing.T) { onEach(t, 1, ledgerLostReply) }

func ledgerLostReply(t *testing.T, f *ledgers) {
	f.do("HSET", ":key:k1", "budget_usd", "1", "rpm", "10")
	l := f.list[0]
	applied, late := f.request(), f.request()
	f.admit(l, applied)
	f.settle(l, Settlement{Tenant: f.tenant, RID: applied.RID})
	f.settle(l, Settlement{Tenant: f.tenant, RID: late.RID})
	if err := f.pipes.Drain(t.Context(), f.store); err != nil {
		t.Fatal(err)
	}
	if a, _ := f.admit(l, late); a.Verdict != AlreadySettled {
		t.Fatalf("%+v", a)
	}
	if h := f.hash(f.month()); h["reserved_nusd"] != "0" || h["spent_nusd"] != "0" || l.Open() != 0 || len(f.hash(":parallel")) != 0 {
		t.Fatalf("%v", h)
	}
	if h := f.hash(":rate:key:key_1"); h["requests"] != "0" || h["tokens"] != "" {
		t.Fatalf("%v", h)
	}
}

// Renewal keeps what is open, opens again what had lapsed, and forgets what Redis does not know.
func TestLedgerRenew(t *testing.T) { onEach(t, 2, ledgerRenew) }

func ledgerRenew(t *testing.T, f *ledgers) {
	f.do("HSET", ":key:k1", "budget_usd", "1")
	l := f.list[0]
	for range lua.RenewMax + 20 {
		f.admit(l, f.request())
	}
	r := f.request()
	a, _ := f.admit(l, r)
	if n, err := f.list[1].Expire(t.Context(), l.cfg.Replica); err != nil || n != lua.RenewMax+21 {
		t.Fatalf("%d %v", n, err)
	}
	l.open.add(f.tenant, "unknown", reserved{}, time.Now())
	l.renew(t.Context())
	if l.Open() != lua.RenewMax+21 {
		t.Fatalf("%d open", l.Open())
	}
	h := f.hash(f.month())
	if h["spent_nusd"] != "0" || h["reserved_nusd"] != fmt.Sprint(400*(lua.RenewMax+21)) || f.hash(":parallel")["key:key_1"] != fmt.Sprint(lua.RenewMax+21) {
		t.Fatalf("%v", h)
	}
	if f.logs.Count("opened again") == 0 {
		t.Fatal("not logged")
	}
	f.settle(l, f.settlement(r, a, 3))
	lab.Eventually(t, 5*time.Second, func() bool { return l.Open() == lua.RenewMax+20 }, "settled")
	if h := f.hash(f.month()); h["spent_nusd"] != "3" {
		t.Fatalf("%v", h)
	}
}

// What the scripts call a verdict is what this package does.
func TestVerdictsAreTheScripts(t *testing.T) { onEach(t, 1, verdictsAreTheScripts) }

func verdictsAreTheScripts(t *testing.T, f *ledgers) {
	set := func(fields ...string) { f.do("HSET", ":key:k1", fields...) }
	plain := func(*Request) {}
	for i, c := range []struct {
		fields []string
		change func(*Request)
		want   Verdict
	}{
		{nil, plain, Admitted},
		{nil, func(r *Request) { r.KeyHash = "k2" }, KeyUnknown},
		{[]string{"disabled", "1"}, plain, KeyDisabled},
		{[]string{"expires_at", "1"}, plain, KeyExpired},
		{[]string{"models", "other"}, plain, ModelNotAllowed},
		{nil, func(r *Request) { r.Known = false }, ModelNotFound},
		{[]string{"rpm", "0"}, plain, RequestsExceeded},
		{[]string{"tpm", "0"}, plain, TokensExceeded},
		{[]string{"parallel", "0"}, plain, ParallelExceeded},
		{[]string{"budget_usd", "1"}, func(r *Request) { r.Priced = false }, PriceMissing},
		{[]string{"budget_usd", "0"}, plain, BudgetExceeded},
		{[]string{"rpm", "x"}, plain, PolicyUnreadable},
	} {
		f.do("DEL", ":key:k1")
		set("id", "key_1")
		if c.fields != nil {
			set(c.fields...)
		}
		r := f.request()
		c.change(&r)
		l := NewLedger(f.list[0].cfg) // remembers nothing
		if a, _ := f.admit(l, r); a.Verdict != c.want {
			t.Errorf("case %d: verdict %d, want %d", i, a.Verdict, c.want)
		}
	}
}
