package lua

import (
	"encoding/json"
	"fmt"
	"sort"
	"testing"

	"github.com/headgate/headgate/pipeline"
	"pgregory.net/rapid"
)

// Random admissions, top-ups, settlements, repeats, lost replies, deaths, renewals and clock steps: every decision is the
// oracle's, no limit and no budget is ever passed, the counters are the sums of the records, and nothing is open at the end.
func TestLedgerAgainstAModel(t *testing.T) {
	for name, url := range everywhere {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			most := 20
			if name == "redis" {
				most = 1 << 30
			}
			playAll(t, newBook(t, pipeline.StoreConfig{URL: url(t)}), most)
		})
	}
}

// playAll plays as many games as rapid asks for, most at most.
func playAll(t *testing.T, base *book, most int) {
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		if runs++; runs > most {
			return
		}
		g := &game{T: rt, b: &book{T: t, store: base.store, root: fmt.Sprintf("%s-%d}", base.root[:len(base.root)-1], runs), now: start}}
		g.play()
	})
}

// game is one run: the ledger under test, and the oracle beside it.
type game struct {
	*rapid.T
	b       *book
	m       *oracle
	asks    map[string][]string // the scopes of each kind of request
	settled []SettleArgs
	made    []AdmitArgs
}

// setUp draws limits for every scope.
func (g *game) setUp() {
	tenant := "tenant:" + g.b.tenant()
	g.m = &oracle{rpm: map[string]int64{}, tpm: map[string]int64{}, parallel: map[string]int64{}, budget: map[string]int64{},
		minutes: map[string]*minute{}, open: map[string]*reserved{}, charged: map[string]int64{}, scopesOf: map[string][]string{}}
	g.asks = map[string][]string{"k1": {"key:k1", "team:a", tenant}, "k2": {"key:k2", "user:u", tenant},
		"k1 tagged": {"key:k1", "team:a", tenant, "enduser:e", "tag:x"}}
	g.b.hset(":key:k1", "id", "k1", "team", "a")
	g.b.hset(":key:k2", "id", "k2", "user", "u")
	for _, s := range []struct{ scope, suffix string }{{"key:k1", ":key:k1"}, {"key:k2", ":key:k2"}, {"team:a", ":team:a"}, {"user:u", ":user:u"},
		{tenant, ""}, {"enduser:e", ":enduser:e"}, {"tag:x", ":tag:x"}} {
		g.b.hset(s.suffix, "created_at", "0")
		for _, limit := range []struct {
			field string
			most  int64
			in    map[string]int64
		}{{"rpm", 12, g.m.rpm}, {"tpm", 90, g.m.tpm}, {"parallel", 9, g.m.parallel}, {"budget_usd", 120, g.m.budget}} {
			if rapid.IntRange(0, 3).Draw(g.T, s.scope+limit.field) == 0 {
				continue
			}
			n := rapid.Int64Range(limit.most/4, limit.most).Draw(g.T, s.scope+limit.field+"=")
			limit.in[s.scope] = n
			text := decimal(n)
			if limit.field == "budget_usd" {
				text = fmt.Sprintf("0.%09d", n)
			}
			g.b.hset(s.suffix, limit.field, text)
		}
	}
}

// pick draws one of the reservations in a state, nil if there is none.
func (g *game) pick(state byte) *reserved {
	var rids []string
	for rid, r := range g.m.open {
		if r.state == state {
			rids = append(rids, rid)
		}
	}
	if len(rids) == 0 {
		return nil
	}
	sort.Strings(rids)
	return g.m.open[rapid.SampledFrom(rids).Draw(g.T, "rid")]
}

func (g *game) admit() {
	kind := rapid.SampledFrom([]string{"k1", "k2", "k1 tagged"}).Draw(g.T, "ask")
	a := g.b.args(key(kind[:2]), tokens(rapid.Int64Range(1, 9).Draw(g.T, "prompt"), rapid.SampledFrom([]int64{0, 3, 20}).Draw(g.T, "cap"),
		rapid.Int64Range(1, 9).Draw(g.T, "usual")), hold(rapid.Int64Range(0, 12).Draw(g.T, "hold")))
	if kind != kind[:2] {
		a.EndUser, a.Tags = "e", "nobody,x"
	}
	if rapid.Bool().Draw(g.T, "stream") {
		a.Tranche = Tranche{Bound: rapid.Int64Range(1, 40).Draw(g.T, "bound"), PricePico: rapid.SampledFrom([]int64{0, 300, 1000, 2500}).Draw(g.T, "price"),
			Least: rapid.Int64Range(0, 5).Draw(g.T, "least")}
	}
	a.Label = ClaimText(fmt.Sprintf(`"rid":%q`, a.RID))
	for i, r := range g.m.lapsed(g.b.now) {
		if i < 2 {
			g.m.lapse(r)
		}
	}
	want, held := g.m.verdict(g.asks[kind], a, g.b.now)
	r, err := g.b.tryAdmit(a)
	if err != nil || r.Verdict != want {
		g.Fatalf("admit: verdict %d by %s, want %d (%v)", r.Verdict, r.Scope, want, err)
	}
	if want != 1 {
		if (want == 7 || want == 8) && (r.ResetMS < 0 || r.ResetMS > 60000 || r.ResetMS == 0 && want == 7 && r.Limit > 0) {
			g.Fatalf("reset %d", r.ResetMS)
		}
		return
	}
	o := g.m.reserve(g.asks[kind], a, held, g.b.now)
	o.settle = SettleArgs{RID: a.RID, Claim: r.Claim}
	if r.HeldTokens != o.tokens || r.HeldNUSD != o.hold || r.HeldOutput != o.out {
		g.Fatalf("holds %d tokens, %d, %d of output; want %d, %d, %d", r.HeldTokens, r.HeldNUSD, r.HeldOutput, o.tokens, o.hold, o.out)
	}
	g.made = append(g.made, a)
}

// repeatAdmit sends an admission once more, as if its reply had been lost.
func (g *game) repeatAdmit() {
	if len(g.made) == 0 {
		return
	}
	a := rapid.SampledFrom(g.made).Draw(g.T, "again")
	a.nowMS = g.b.now
	for i, r := range g.m.lapsed(g.b.now) {
		if i < 2 {
			g.m.lapse(r)
		}
	}
	want := int64(13)
	if o := g.m.open[a.RID]; o != nil && o.state == 'o' {
		want = 1
	}
	if r, err := g.b.tryAdmit(a); err != nil || r.Verdict != want {
		g.Fatalf("repeated admit: verdict %d, want %d (%v)", r.Verdict, want, err)
	}
}

func (g *game) extend() {
	r := g.pick('o')
	if r == nil {
		return
	}
	total := rapid.Int64Range(1, 60).Draw(g.T, "total")
	var want int64
	if r.out > 0 {
		want = g.m.extend(r, total, g.b.now)
	}
	for range rapid.IntRange(1, 2).Draw(g.T, "times") {
		got, err := g.b.tryExtend(r.settle, total, r.scopes[0][len("key:"):])
		if err != nil || got.Granted != want {
			g.Fatalf("extend to %d: %d (%v), want %d", total, got.Granted, err, want)
		}
	}
}

// end settles a reservation with its claim and any figures its hold covers, or as after a lost reply.
func (g *game) end(r *reserved, claim bool) {
	s := r.settle
	want := Replaced
	if r.state == 'x' {
		want = Undone
	}
	if claim {
		s.Keep, s.apart = rapid.Bool().Draw(g.T, "keep"), rapid.Bool().Draw(g.T, "apart")
		if s.Keep {
			s.Prompt, s.Completion = rapid.Int64Range(0, 12).Draw(g.T, "prompt"), rapid.Int64Range(0, 70).Draw(g.T, "completion")
			s.CostNUSD = rapid.Int64Range(0, r.hold).Draw(g.T, "cost")
		}
	} else {
		s.Claim = ""
	}
	s.Record = fmt.Appendf(nil, `{"rid":%q,"cost_nusd":%d}`, s.RID, s.CostNUSD)
	g.b.settle(s, want)
	g.m.end(r, s)
	g.settled = append(g.settled, s)
}

func (g *game) renew() {
	r := g.pick('o')
	if late := g.pick('x'); late != nil && rapid.Bool().Draw(g.T, "late") {
		// One opened again runs again; that it may pass the limit then is no decision of this ledger.
		for _, s := range late.scopes {
			if limit, ok := g.m.parallel[s]; ok && g.m.running(s) >= limit {
				return
			}
		}
		r = late
		delete(g.m.charged, r.rid)
	}
	if r != nil {
		g.b.renew("r1", r.rid)
		r.state, r.deadline = 'o', g.b.now+25000
	}
}

// check holds every counter to the oracle, and to its limit.
func (g *game) check() {
	for _, scopes := range g.asks {
		for _, scope := range scopes {
			h := g.b.hash(":spend:" + scope + ":2076-11")
			if g.m.spentBy(scope) != number(h["spent_nusd"]) || g.m.reservedBy(scope) != number(h["reserved_nusd"]) {
				g.Fatalf("%s: %v, want %d spent, %d reserved", scope, h, g.m.spentBy(scope), g.m.reservedBy(scope))
			}
			if limit, ok := g.m.budget[scope]; ok && number(h["spent_nusd"])+number(h["reserved_nusd"]) > limit {
				g.Fatalf("%s is over its budget: %v", scope, h)
			}
			if n := number(g.b.hash(":parallel")[scope]); n != g.m.running(scope) {
				g.Fatalf("%s: %d running, want %d", scope, n, g.m.running(scope))
			}
			if u := g.m.counted(scope); u != nil {
				if n, _ := u.sums(g.b.now); g.m.rpm[scope] > 0 && n > g.m.rpm[scope] {
					g.Fatalf("%s: %d requests in a minute", scope, n)
				}
			}
		}
	}
}

func (g *game) play() {
	g.setUp()
	g.Repeat(map[string]func(*rapid.T){
		"":       func(*rapid.T) { g.check() },
		"admit":  func(*rapid.T) { g.admit() },
		"admit2": func(*rapid.T) { g.admit(); g.admit() },
		"again":  func(*rapid.T) { g.repeatAdmit() },
		"extend": func(*rapid.T) { g.extend() },
		"step": func(*rapid.T) {
			g.b.now += rapid.SampledFrom([]int64{1, 40, 1000, 7000, 24999, 59999, 60000, -1, -700, -1500, -20000}).Draw(g.T, "ms")
		},
		"settle": func(*rapid.T) {
			if r := g.pick('o'); r != nil {
				g.end(r, true)
			}
		},
		"late": func(*rapid.T) {
			if r := g.pick('x'); r != nil {
				g.end(r, true)
			}
		},
		"lost": func(*rapid.T) {
			if r := g.pick('o'); r != nil {
				g.end(r, false)
			}
		},
		"repeat": func(*rapid.T) {
			if len(g.settled) > 0 {
				g.b.settle(rapid.SampledFrom(g.settled).Draw(g.T, "again"), Repeated)
			}
		},
		"die": func(*rapid.T) {
			g.b.expire("r1")
			for _, r := range g.m.open {
				if r.state == 'o' {
					g.m.lapse(r)
				}
			}
		},
		"renew": func(*rapid.T) { g.renew() },
	})
	for _, r := range g.m.open {
		g.end(r, false)
	}
	g.check()
	g.b.nothingOpen()
	last := map[string]int64{}
	for _, text := range g.b.records() {
		var rec struct {
			RID  string
			Cost int64 `json:"cost_nusd"`
		}
		if err := json.Unmarshal([]byte(text), &rec); err != nil {
			g.Fatal(err)
		}
		last[rec.RID] = rec.Cost
	}
	if fmt.Sprint(last) != fmt.Sprint(g.m.charged) {
		g.Fatalf("the last records say %v, charged were %v", last, g.m.charged)
	}
}

func number(text string) (n int64) {
	fmt.Sscan(text, &n)
	return n
}
