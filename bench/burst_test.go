package bench

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// burstRuns is how often the burst is made: LEDGER_RUNS=20 for a closer look.
func burstRuns() int {
	n, err := strconv.Atoi(os.Getenv("LEDGER_RUNS"))
	if err != nil {
		return 3
	}
	return n
}

// TestBurst_ExactlyWhatFits: three replicas, 60 clients at once that send three requests each, a budget for n of them, run
// after run on a budget of another scope. Exactly n are served, in every mixture of forms; what Redis says was spent is the
// sum of the usage lines, and nothing stays reserved, running or held.
func TestBurst_ExactlyWhatFits(t *testing.T) {
	t.Parallel()
	const clients, each, tokens = 60, 3, 10
	s := newStack(t, 3, 2, engine.Options{Speed: 100, Slots: 128})
	scopes := []string{"key", "team:search", "user:ann", "tenant"}
	for run := range burstRuns() {
		fit := 20 + 37*run%150
		b := &burst{stack: s, t: t, tenant: fmt.Sprintf("burst%d", run), forms: forms[:5]} // the engine ends Responses by itself
		b.begin(scopes[run%len(scopes)], int64(fit)*tokens*1000)
		var served, refused atomic.Int64
		var wg sync.WaitGroup
		for client := range clients {
			wg.Go(func() {
				for i := range each {
					switch status := b.ask(client, i, tokens, true); status {
					case 200:
						served.Add(1)
					case 429:
						refused.Add(1)
					default:
						t.Errorf("run %d: status %d", run, status)
					}
				}
			})
		}
		wg.Wait()
		if served.Load() != int64(fit) || refused.Load() != int64(clients*each-fit) {
			t.Errorf("run %d, budget of the %s: %d served and %d refused of %d, want %d served", run, b.scope, served.Load(), refused.Load(), clients*each, fit)
		}
		spent := b.agrees(clients * each)
		if spent != int64(fit)*tokens*1000 {
			t.Errorf("run %d: spent %d nano-dollars for %d requests", run, spent, fit)
		}
		t.Logf("run %d, budget of the %s for %d: %d of %d served, %d nano-dollars spent, nothing reserved", run, b.scope, fit, served.Load(), clients*each, spent)
	}
}

// TestBurst_NeverBeyond: the same clients with answers of unknown length below their cap. What was held and not used comes
// back: requests go on being served until what is left cannot hold one more. Only a stream may pass the budget, by a
// tranche at most, and its line says by how much.
func TestBurst_NeverBeyond(t *testing.T) {
	t.Parallel()
	const clients, most, budget = 60, 60, 2_000_000
	s := newStack(t, 3, 2, engine.Options{Speed: 100, Slots: 128})
	for run := range burstRuns() {
		b := &burst{stack: s, t: t, tenant: fmt.Sprintf("long%d", run), forms: [][]form{{forms[0], forms[2], forms[3]}, forms}[run%2]}
		b.begin("team:search", budget)
		var asked atomic.Int64
		var wg sync.WaitGroup
		for client := range clients {
			wg.Go(func() {
				for i := range 2 {
					asked.Add(1)
					b.ask(client, i, most, false)
				}
			})
		}
		wg.Wait()
		for i := 2; ; i++ { // one after the other, what is left
			lab.Succeeds(t, patience, b.quiet, "all is settled")
			asked.Add(1)
			if b.ask(0, i*6, most, false) != 200 {
				break
			}
		}
		spent := b.agrees(int(asked.Load()))
		over := b.beyond(most * 1000)
		if spent > budget+over || spent <= budget-most*1000 {
			t.Errorf("run %d: spent %d of %d, when a request may cost %d and the lines say %d beyond", run, spent, budget, most*1000, over)
		}
		t.Logf("run %d: %d nano-dollars of %d spent by %d requests; the lines of streams say %d beyond", run, spent, budget, asked.Load(), over)
	}
}

// burst is one tenant with one key and one budget.
type burst struct {
	*stack
	t                  *testing.T
	forms              []form
	tenant, key, scope string
}

// begin makes the key and gives the scope its budget.
func (b *burst) begin(scope string, nusd int64) {
	b.t.Helper()
	b.scope = scope
	b.key = b.Key("--tenant", b.tenant, "--team", "search", "--user", "ann", "--rpm", "100000", "--tpm", "100000000")
	record := "hg:{t:" + b.tenant + "}:" + scope
	switch scope {
	case "key":
		record = keyRecord(b.tenant, b.key)
	case "tenant":
		record = "hg:{t:" + b.tenant + "}"
	}
	usd := strconv.FormatFloat(float64(nusd)/1e9, 'f', 9, 64)
	b.redis.CLI("HSET", record, "budget_usd", usd, "period", "month", "budgets", "1/day")
}

// ask sends one request of a model that costs a micro-dollar for each token of the answer, and returns the status.
func (b *burst) ask(client, i, tokens int, all bool) int {
	f := b.forms[(client+i)%len(b.forms)]
	body := f.body("exact", tokens, fmt.Sprintf(`"ignore_eos":%v`, all), fmt.Sprintf(`"seed":%d`, client*10+i))
	r := fleet.Request(b.t, b.Replicas[(client+i)%len(b.Replicas)].URL+f.path, b.key, body)
	a, err := fleet.Client.Do(r)
	if err != nil {
		b.t.Errorf("%s: %v", f.name, err)
		return 0
	}
	defer a.Body.Close()
	if _, err := io.Copy(io.Discard, a.Body); err != nil {
		b.t.Errorf("%s: %v", f.name, err)
	}
	return a.StatusCode
}

func (b *burst) quiet() error {
	root := "hg:{t:" + b.tenant + "}"
	for _, key := range []string{":open", ":parallel"} {
		if n := b.redis.CLI("HLEN", root+key); n != "0" {
			return fmt.Errorf("%s entries in %s", n, key)
		}
	}
	for _, c := range [][2]string{{"tenant", b.tenant}, {"team", "search"}, {"user", "ann"}} {
		if n := b.spend(b.t, b.tenant, c[0], c[1], "reserved_nusd"); n != 0 {
			return fmt.Errorf("%d nano-dollars of the %s are reserved", n, c[0])
		}
	}
	if n := b.slots(b.t); n != 0 {
		return fmt.Errorf("%d slots are held", n)
	}
	return nil
}

// beyond is by how much the tenant's lines say that a budget was passed; only streams may, none by more than most.
func (b *burst) beyond(most int64) (sum int64) {
	for _, l := range b.Lines() {
		if l.Tenant != b.tenant || l.OverNUSD == 0 {
			continue
		}
		if sum += l.OverNUSD; !l.Stream || l.OverNUSD > most {
			b.t.Errorf("%d nano-dollars beyond: %s", l.OverNUSD, l.Raw)
		}
	}
	return sum
}

// agrees waits until all is settled and compares the usage lines with the counters.
func (b *burst) agrees(requests int) (spent int64) {
	b.t.Helper()
	lab.Succeeds(b.t, patience, b.quiet, "nothing is left reserved or held")
	var lines int
	lab.Eventually(b.t, patience, func() bool {
		lines, spent = 0, 0
		for _, l := range b.Lines() {
			if l.Tenant == b.tenant {
				lines++
				spent += *l.CostNUSD
			}
		}
		return lines >= requests
	}, "a usage line for each of %d requests", requests)
	if lines != requests {
		b.t.Errorf("%d usage lines of %d requests", lines, requests)
	}
	for _, c := range [][2]string{{"tenant", b.tenant}, {"team", "search"}, {"user", "ann"}} {
		if n := b.spend(b.t, b.tenant, c[0], c[1], "spent_nusd"); n != spent && (c[0] != "user" || n != 0) {
			b.t.Errorf("the %s has spent %d, the usage lines say %d", c[0], n, spent)
		}
	}
	return spent
}
