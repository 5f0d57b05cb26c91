package lua

import (
	"encoding/json"
	"fmt"
	"sort"
	"testing"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"pgregory.net/rapid"
)

// oracle is the ledger in Go, as plainly as it can be said.
type oracle struct {
	rpm, parallel, budget map[string]int64 // by scope; absent: no limit
	cells                 map[string]map[int64]*cell
	open                  map[string]*reserved
	charged               map[string]int64 // by rid, what the last record of it must say
	keyScopes             map[string][]string
}

type cell struct{ n, at int64 }

type reserved struct {
	settle         SettleArgs
	scopes         []string
	second         int64
	hold, deadline int64
	state          byte // o, x
	rid            string
}

func (m *oracle) running(scope string) (n int64) {
	for _, r := range m.open {
		if r.state == 'o' && has(r.scopes, scope) {
			n++
		}
	}
	return n
}

func (m *oracle) reservedBy(scope string) (n int64) {
	for _, r := range m.open {
		if r.state == 'o' && has(r.scopes, scope) {
			n += r.hold
		}
	}
	return n
}

func (m *oracle) spentBy(scope string, scopesOf map[string][]string) (n int64) {
	for rid, cost := range m.charged {
		if has(scopesOf[rid], scope) {
			n += cost
		}
	}
	return n
}

func has(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// verdict is what a request that holds `hold` must be told at now.
func (m *oracle) verdict(scopes []string, hold, now int64, scopesOf map[string][]string) int64 {
	for _, s := range scopes {
		var n int64
		for _, c := range m.cells[s] {
			if c.at+60000 > now {
				n += c.n
			}
		}
		if limit, ok := m.rpm[s]; ok && n >= limit {
			return 7
		}
	}
	for _, s := range scopes {
		if limit, ok := m.parallel[s]; ok && m.running(s) >= limit {
			return 9
		}
	}
	for _, s := range scopes {
		if limit, ok := m.budget[s]; ok && m.spentBy(s, scopesOf)+m.reservedBy(s)+hold > limit {
			return 11
		}
	}
	return 1
}

// Random admissions, settlements, repeats, lost replies, deaths, renewals and clock steps: every decision is the oracle's,
// no limit and no budget is ever passed, the counters are the sums of the records, and nothing is open at the end.
func TestLedgerAgainstAModel(t *testing.T) {
	t.Parallel()
	server := lab.SharedRedis(t)
	base := newBook(t, pipeline.StoreConfig{URL: server.URL()})
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		b := &book{T: t, store: base.store, root: fmt.Sprintf("%s-%d}", base.root[:len(base.root)-1], runs), now: start}
		play(rt, b)
	})
}

func play(rt *rapid.T, b *book) {
	tenant, team := "tenant:"+b.tenant(), "team:a"
	m := &oracle{rpm: map[string]int64{}, parallel: map[string]int64{}, budget: map[string]int64{}, cells: map[string]map[int64]*cell{},
		open: map[string]*reserved{}, charged: map[string]int64{},
		keyScopes: map[string][]string{"k1": {"key:k1", team, tenant}, "k2": {"key:k2", tenant}}}
	scopesOf := map[string][]string{}
	b.hset(":key:k1", "id", "k1", "team", "a")
	b.hset(":key:k2", "id", "k2")
	b.hset(":team:a", "created_at", "0")
	b.hset("", "created_at", "0")
	for scope, suffix := range map[string]string{"key:k1": ":key:k1", "key:k2": ":key:k2", team: ":team:a", tenant: ""} {
		m.cells[scope] = map[int64]*cell{}
		for name, limits := range map[string]map[string]int64{"rpm": m.rpm, "parallel": m.parallel, "budget_usd": m.budget} {
			if rapid.IntRange(0, 2).Draw(rt, scope+name) > 0 {
				n := rapid.Int64Range(0, 12).Draw(rt, scope+name+"=")
				text := decimal(n)
				if name == "budget_usd" {
					n *= 10
					text = fmt.Sprintf("0.%09d", n)
				}
				limits[scope] = n
				b.hset(suffix, name, text)
			}
		}
	}
	var settled []SettleArgs
	pick := func(state byte) *reserved {
		var rids []string
		for rid, r := range m.open {
			if r.state == state {
				rids = append(rids, rid)
			}
		}
		if len(rids) == 0 {
			return nil
		}
		sort.Strings(rids)
		return m.open[rapid.SampledFrom(rids).Draw(rt, "rid")]
	}
	lapse := func(r *reserved) {
		r.state = 'x'
		m.charged[r.rid] = r.hold
	}
	admit := func() {
		k := rapid.SampledFrom([]string{"k1", "k2"}).Draw(rt, "key")
		money := rapid.Int64Range(0, 20).Draw(rt, "hold")
		a := b.args(key(k), hold(money))
		a.Label = ClaimText(fmt.Sprintf(`"rid":%q`, a.RID))
		var due []*reserved
		for _, r := range m.open {
			if r.state == 'o' && r.deadline <= b.now {
				due = append(due, r)
			}
		}
		sort.Slice(due, func(i, j int) bool {
			return due[i].deadline < due[j].deadline || due[i].deadline == due[j].deadline && due[i].rid < due[j].rid
		})
		for _, r := range due[:min(2, len(due))] {
			lapse(r)
		}
		want := m.verdict(m.keyScopes[k], money, b.now, scopesOf)
		r, err := b.tryAdmit(a)
		if err != nil || r.Verdict != want {
			rt.Fatalf("admit: verdict %d by %s, want %d (%v)", r.Verdict, r.Scope, want, err)
		}
		if want != 1 {
			if want == 7 && r.Limit > 0 && (r.ResetMS < 1 || r.ResetMS > 60000) {
				rt.Fatalf("reset %d", r.ResetMS)
			}
			return
		}
		scopesOf[a.RID] = m.keyScopes[k]
		m.open[a.RID] = &reserved{rid: a.RID, scopes: m.keyScopes[k], second: b.now / 1000, hold: money, deadline: b.now + 25000, state: 'o',
			settle: SettleArgs{RID: a.RID, Claim: r.Claim}}
		for _, s := range m.keyScopes[k] {
			if _, counted := m.rpm[s]; counted {
				c := m.cells[s][b.now/1000]
				if c == nil {
					c = &cell{}
					m.cells[s][b.now/1000] = c
				}
				c.n, c.at = c.n+1, b.now
			}
		}
	}
	settle := func(r *reserved, claim bool) {
		s := r.settle
		want := Replaced
		if r.state == 'x' {
			want = Undone
		}
		if claim {
			s.Keep = rapid.Bool().Draw(rt, "keep")
			s.CostNUSD = rapid.Int64Range(0, r.hold).Draw(rt, "cost") // a cost is never above its hold here
			if !s.Keep {
				s.CostNUSD = 0
			}
		} else {
			s.Claim = ""
		}
		s.Record = fmt.Appendf(nil, `{"rid":%q,"cost_nusd":%d}`, s.RID, s.CostNUSD)
		b.settle(s, want)
		m.charged[r.rid] = s.CostNUSD
		delete(m.open, r.rid)
		settled = append(settled, s)
		if !s.Keep {
			for _, scope := range r.scopes {
				if c := m.cells[scope][r.second]; c != nil {
					c.n--
				}
			}
		}
	}
	check := func() {
		for scope := range m.cells {
			h := b.hash(":spend:" + scope + ":2076-11")
			if m.spentBy(scope, scopesOf) != number(h["spent_nusd"]) || m.reservedBy(scope) != number(h["reserved_nusd"]) {
				rt.Fatalf("%s: %v, want %d spent, %d reserved", scope, h, m.spentBy(scope, scopesOf), m.reservedBy(scope))
			}
			if limit, ok := m.budget[scope]; ok && number(h["spent_nusd"])+number(h["reserved_nusd"]) > limit {
				rt.Fatalf("%s is over its budget: %v", scope, h)
			}
			if n := number(b.hash(":parallel")[scope]); n != m.running(scope) {
				rt.Fatalf("%s: %d running, want %d", scope, n, m.running(scope))
			}
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"":       func(*rapid.T) { check() },
		"admit":  func(*rapid.T) { admit() },
		"admit2": func(*rapid.T) { admit(); admit() },
		"step": func(*rapid.T) {
			b.now += rapid.SampledFrom([]int64{1, 40, 1000, 7000, 24999, 59999, 60000}).Draw(rt, "ms")
		},
		"settle": func(*rapid.T) {
			if r := pick('o'); r != nil {
				settle(r, true)
			}
		},
		"late": func(*rapid.T) {
			if r := pick('x'); r != nil {
				settle(r, true)
			}
		},
		"lost": func(*rapid.T) {
			if r := pick('o'); r != nil {
				settle(r, false)
			}
		},
		"repeat": func(*rapid.T) {
			if len(settled) > 0 {
				b.settle(rapid.SampledFrom(settled).Draw(rt, "again"), Repeated)
			}
		},
		"die": func(*rapid.T) {
			b.expire("r1")
			for _, r := range m.open {
				if r.state == 'o' {
					lapse(r)
				}
			}
		},
		"renew": func(*rapid.T) {
			r := pick('o')
			if late := pick('x'); late != nil && rapid.Bool().Draw(rt, "late") {
				// An opened one holds again what it held, which must not have been given away meanwhile for this check.
				r = late
				for _, s := range r.scopes {
					if limit, ok := m.parallel[s]; ok && m.running(s) >= limit {
						return
					}
				}
				delete(m.charged, r.rid)
			}
			if r != nil {
				b.renew("r1", r.rid)
				r.state, r.deadline = 'o', b.now+25000
			}
		},
	})
	for _, r := range m.open {
		settle(r, false)
	}
	check()
	b.nothingOpen()
	last := map[string]int64{}
	for _, text := range b.records() {
		var rec struct {
			RID  string
			Cost int64 `json:"cost_nusd"`
		}
		if err := json.Unmarshal([]byte(text), &rec); err != nil {
			rt.Fatal(err)
		}
		last[rec.RID] = rec.Cost
	}
	if fmt.Sprint(last) != fmt.Sprint(m.charged) {
		rt.Fatalf("the last records say %v, charged were %v", last, m.charged)
	}
}

func number(text string) (n int64) {
	fmt.Sscan(text, &n)
	return n
}
