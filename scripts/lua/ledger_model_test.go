package lua

import "sort"

// oracle is the ledger in Go, as plainly as it can be said.
type oracle struct {
	rpm, tpm, parallel, budget map[string]int64 // by scope; absent: no limit
	minutes                    map[string]*minute
	open                       map[string]*reserved
	charged                    map[string]int64 // by rid, what the last record of it must say
	scopesOf                   map[string][]string
}

// minute is the sliding minute of a scope: cells by second, never cleaned up.
type minute struct {
	cells map[int64]*cell
	last  int64 // ms, 0: never
}

type cell struct{ n, t, at int64 }

// reserved is a reservation and what it asked for.
type reserved struct {
	rid            string
	state          byte // o, x
	settle         SettleArgs
	scopes         []string
	seconds        map[string]int64 // its cell in each counted minute
	tokens, prompt int64
	hold, base     int64
	out, price     int64
	tops           [][2]int64 // second, tokens
	deadline       int64
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

func (m *oracle) spentBy(scope string) (n int64) {
	for rid, cost := range m.charged {
		if has(m.scopesOf[rid], scope) {
			n += cost
		}
	}
	return n
}

// left is what a scope may still reserve; ok is false without a budget.
func (m *oracle) left(scope string) (n int64, ok bool) {
	limit, ok := m.budget[scope]
	return limit - m.spentBy(scope) - m.reservedBy(scope), ok
}

func has(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// counted is the minute of a scope with a limit on it, nil without one.
func (m *oracle) counted(scope string) *minute {
	_, r := m.rpm[scope]
	_, t := m.tpm[scope]
	if !r && !t {
		return nil
	}
	if m.minutes[scope] == nil {
		m.minutes[scope] = &minute{cells: map[int64]*cell{}}
	}
	return m.minutes[scope]
}

// fresh is true when nothing in it counts at now: the clock went on, or back, by more than a minute.
func (u *minute) fresh(now int64) bool {
	return u.last == 0 || now-u.last >= 60000 || u.last-now > 60000
}

func (u *minute) sums(now int64) (n, t int64) {
	if u.fresh(now) {
		return 0, 0
	}
	now = max(now, u.last)
	for _, c := range u.cells {
		if c.at+60000 > now {
			n, t = n+c.n, t+c.t
		}
	}
	return n, t
}

// touch makes it ready for something at `at`, and returns the cell.
func (u *minute) touch(now, at int64) *cell {
	if u.fresh(now) {
		u.cells, u.last = map[int64]*cell{}, 0
	}
	at = max(at, u.last)
	u.last = at
	c := u.cells[at/1000]
	if c == nil {
		c = &cell{}
		u.cells[at/1000] = c
	}
	c.at = max(c.at, at)
	return c
}

// verdict is what a request must be told at now, and the tokens it then holds.
func (m *oracle) verdict(scopes []string, a AdmitArgs, now int64) (verdict, tokens int64) {
	for _, s := range scopes {
		if limit, ok := m.rpm[s]; ok {
			if n, _ := m.counted(s).sums(now); n >= limit {
				return 7, 0
			}
		}
	}
	tokens = a.Prompt + a.Usual
	if a.Cap > 0 {
		tokens = a.Prompt + min(a.Cap, a.Usual)
	}
	for _, s := range scopes {
		limit, ok := m.tpm[s]
		if !ok {
			continue
		}
		_, t := m.counted(s).sums(now)
		switch {
		case a.Cap > 0 && (a.Prompt+a.Cap > limit || tokens > limit-t), a.Cap == 0 && t >= limit:
			return 8, 0
		case a.Cap == 0:
			tokens = min(tokens, limit-t)
		}
	}
	for _, s := range scopes {
		if limit, ok := m.parallel[s]; ok && m.running(s) >= limit {
			return 9, 0
		}
	}
	least := a.HoldNUSD
	if a.Tranche.Bound > 0 {
		least += nusdOf(1, a.Tranche.PricePico)
	}
	for _, s := range scopes {
		if left, ok := m.left(s); ok && least > left {
			return 11, 0
		}
	}
	return 1, tokens
}

// reserve notes an admission.
func (m *oracle) reserve(scopes []string, a AdmitArgs, tokens, now int64) *reserved {
	r := &reserved{rid: a.RID, state: 'o', scopes: scopes, seconds: map[string]int64{}, tokens: tokens, prompt: min(a.Prompt, tokens),
		hold: a.HoldNUSD, base: a.HoldNUSD, price: a.Tranche.PricePico, deadline: now + 25000}
	if a.Tranche.Bound > 0 {
		r.out = min(max(a.Usual, a.Tranche.Least, 1), a.Tranche.Bound)
		r.out = min(r.out, m.fits(r))
		r.hold = r.base + nusdOf(r.out, r.price)
	}
	for _, s := range scopes {
		if u := m.counted(s); u != nil {
			c := u.touch(now, now)
			c.n++
			if _, limited := m.tpm[s]; limited {
				c.t += tokens
			}
			r.seconds[s] = u.last / 1000
		}
	}
	m.open[a.RID], m.scopesOf[a.RID] = r, scopes
	return r
}

// fits is how many tokens of output the budgets have room for beside what others hold.
func (m *oracle) fits(r *reserved) int64 {
	n := int64(1) << 40
	for _, s := range r.scopes {
		left, ok := m.left(s)
		if !ok || r.price == 0 {
			continue
		}
		if m.open[r.rid] != nil {
			left += r.hold
		}
		n = min(n, (left-r.base)*1000/r.price)
	}
	return n
}

func (m *oracle) extend(r *reserved, total, now int64) int64 {
	granted := min(total, m.fits(r))
	if granted <= r.out {
		return r.out
	}
	r.out, r.hold = granted, r.base+nusdOf(granted, r.price)
	add := granted - (r.tokens - r.prompt)
	if add <= 0 {
		return granted
	}
	r.tokens += add
	second := now / 1000
	for _, s := range r.scopes {
		if _, limited := m.tpm[s]; limited && !m.minutes[s].fresh(now) {
			second = max(second, m.minutes[s].last/1000)
		}
	}
	for _, s := range r.scopes {
		if _, limited := m.tpm[s]; limited {
			u := m.minutes[s]
			at, last := max(now, second*1000), u.last
			if u.fresh(now) {
				last = 0
			}
			c := u.touch(now, at)
			if last > at { // within this second already
				u.last = last
			}
			c.t += add
		}
	}
	for len(r.tops) > 0 && second-r.tops[0][0] > 61 {
		r.tops = r.tops[1:]
	}
	if n := len(r.tops); n > 0 && r.tops[n-1][0] == second {
		r.tops[n-1][1] += add
	} else {
		r.tops = append(r.tops, [2]int64{second, add})
	}
	return granted
}

// end takes a reservation out and corrects the minutes by what it used.
func (m *oracle) end(r *reserved, s SettleArgs) {
	m.charged[r.rid] = s.CostNUSD
	delete(m.open, r.rid)
	by := s.Prompt + s.Completion - r.tokens
	for _, scope := range r.scopes {
		u := m.minutes[scope]
		if u == nil {
			continue
		}
		if _, limited := m.tpm[scope]; limited {
			move := func(second, n int64) {
				if c := u.cells[second]; c != nil {
					c.t += n
				}
			}
			left := by
			if left > 0 && len(r.tops) > 0 {
				move(r.tops[len(r.tops)-1][0], left)
				left = 0
			}
			for i := len(r.tops) - 1; i >= 0 && left < 0; i-- {
				n := min(r.tops[i][1], -left)
				move(r.tops[i][0], -n)
				left += n
			}
			move(r.seconds[scope], left)
		}
		if c := u.cells[r.seconds[scope]]; c != nil && !s.Keep && c.n > 0 {
			c.n--
		}
	}
}

// lapsed is the open reservations due at now, in the order in which they are settled.
func (m *oracle) lapsed(now int64) (due []*reserved) {
	for _, r := range m.open {
		if r.state == 'o' && r.deadline <= now {
			due = append(due, r)
		}
	}
	sort.Slice(due, func(i, j int) bool {
		return due[i].deadline < due[j].deadline || due[i].deadline == due[j].deadline && due[i].rid < due[j].rid
	})
	return due
}

func (m *oracle) lapse(r *reserved) {
	r.state = 'x'
	m.charged[r.rid] = r.hold
}

// nusdOf is the price of so many tokens, rounded up.
func nusdOf(tokens, pico int64) int64 { return (tokens*pico + 999) / 1000 }
