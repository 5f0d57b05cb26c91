package coordinator

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/scripts/lua"
)

// localMax is how many pairs of key and model are remembered for the time Redis is away.
const localMax = 50_000

// local lets requests in while Redis cannot be asked (HG_ON_REDIS_DOWN=serve): those of a key and model that passed here
// before, against the limits they had then, divided by the replicas last seen, and against nothing but what this replica
// let in itself. The zero value remembers nothing.
type local struct {
	mu     sync.Mutex
	passed map[passedKey]passed
	scopes map[string]*localScope // by tenant and scope
	open   map[string]localHold   // by rid
}

type passedKey struct{ tenant, keyHash, model string }

// passed is what an admission said of a key and model.
type passed struct {
	admission Admission
	scopes    []string // as in the claim: scope:id:second:period[,period…]
}

// localScope is the limits of one scope as last seen, -1: none, and what this replica let in since.
type localScope struct {
	rpm, tpm, parallel, left int64
	cells                    map[int64][2]int64 // by second: requests, tokens
	running, held            int64
}

type localHold struct {
	scopes []*localScope
	nusd   int64
}

// remember notes an admission by Redis. The scopes' limits are as fresh as its reply; what this replica let in on its own is
// on its way to Redis then.
func (c *local) remember(r *Request, a *Admission, detail string) {
	scopes := scopesOf(a.Claim)
	if scopes == "" || detail == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passLocked(passedKey{r.Tenant, r.KeyHash, r.Model}, a, scopes)
	c.limitLocked(r.Tenant, detail)
}

// scopesOf is the scopes of a claim; "" for a text that is none.
//
//go:noinline
func scopesOf(text string) string {
	claim, err := lua.ParseClaim(text)
	if err != nil {
		return ""
	}
	return claim.Scopes
}

//go:noinline
func (c *local) passLocked(key passedKey, a *Admission, scopes string) {
	if c.passed == nil || len(c.passed) >= localMax {
		c.passed, c.scopes = map[passedKey]passed{}, map[string]*localScope{}
	}
	if c.open == nil {
		c.open = map[string]localHold{}
	}
	c.passed[key] = passed{*a, strings.Split(scopes, ";")}
}

// limitLocked notes what is left of each scope's limits.
func (c *local) limitLocked(tenant, detail string) {
	for scope := range strings.SplitSeq(detail, ";") {
		f := strings.Split(scope, " ")
		if len(f) != 5 {
			continue
		}
		s := c.scopeLocked(tenant, f[0])
		for i, n := range []*int64{&s.rpm, &s.tpm, &s.parallel, &s.left} {
			*n = -1
			if v, err := strconv.ParseInt(f[i+1], 10, 64); err == nil {
				*n = max(v, 0)
			}
		}
		s.held = 0
	}
}

func (c *local) scopeLocked(tenant, name string) *localScope {
	s := c.scopes[tenant+" "+name]
	if s == nil {
		s = &localScope{rpm: -1, tpm: -1, parallel: -1, left: -1, cells: map[int64][2]int64{}}
		c.scopes[tenant+" "+name] = s
	}
	return s
}

// AdmitLocally decides without Redis; false: this request must be refused, nothing is known of its key and model here. A
// request let in is settled as NeverAdmitted. Its hold is all it could cost: there are no top-ups without Redis.
func (l *Ledger) AdmitLocally(r Request) (Admission, bool) {
	if !l.cfg.Serve {
		return Admission{}, false
	}
	share := int64(1)
	if l.cfg.Replicas != nil {
		share = max(int64(l.cfg.Replicas()), 1)
	}
	return l.local.admit(r, l.cfg.Clock(), share, lua.ClaimText(l.cfg.Replica), lua.ClaimText(l.label(&r)))
}

func (c *local) admit(r Request, now time.Time, share int64, owner, label string) (Admission, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.passed[passedKey{r.Tenant, r.KeyHash, r.Model}]
	if !ok || !r.Known {
		return Admission{}, false
	}
	prompt, tokens, hold := localUse(r)
	a := p.admission
	a.Requests, a.Tokens = Window{Limit: -1}, Window{Limit: -1}
	a.Local, a.AdmittedAt, a.HeldTokens, a.HeldNUSD, a.HeldOutput, a.Claim = true, time.Time{}, 0, 0, 0, ""
	var scopes []*localScope
	var names []string
	for _, text := range p.scopes {
		name, periods := scopeOf(text)
		s := c.scopeLocked(r.Tenant, name)
		s.forget(now)
		if v, limit, reset := s.refuses(share, tokens, hold, r.Priced, now); v != Admitted {
			a.Verdict, a.Limit, a.Reset = v, limit, reset
			a.Scope, a.ScopeID, _ = strings.Cut(name, ":")
			return a, true
		}
		scopes, names = append(scopes, s), append(names, name+":0:"+periodsAt(periods, now))
	}
	for _, s := range scopes {
		cell := s.cells[now.Unix()]
		s.cells[now.Unix()] = [2]int64{cell[0] + 1, cell[1] + tokens}
		s.running++
		s.held += hold
	}
	c.open[r.RID] = localHold{scopes, hold}
	a.Verdict, a.AdmittedAt, a.HeldTokens, a.HeldNUSD = Admitted, now, tokens, hold
	a.Claim = lua.Claim{Owner: owner, AtMS: now.UnixMilli(), Tokens: tokens, Prompt: prompt, HoldNUSD: hold, Scopes: strings.Join(names, ";"),
		Key: a.KeyID, Team: a.Team, User: a.User, Label: label}.String()
	return a, true
}

// localUse is what a request is taken to use: tokens by the figures nobody has learned, money at its bound.
func localUse(r Request) (prompt, tokens, hold int64) {
	prompt, usual := r.PromptTokens, r.OutputUsual
	if r.bytes() > 0 {
		prompt, usual = max(r.bytes()/bytesPerToken, 1), 256*max(r.Choices, 1)
	}
	if r.OutputCap > 0 {
		usual = min(usual, r.OutputCap)
	}
	hold = r.HoldNUSD
	if r.InTranches() {
		hold = r.PromptHoldNUSD + (min(r.OutputBound, maxOutput)*r.OutputPricePico+999)/1000
	}
	return max(prompt, 0), max(prompt, 0) + max(usual, 0), min(max(hold, 0), maxNUSD)
}

// refuses is Admitted, or which limit has no room.
func (s *localScope) refuses(share, tokens, hold int64, priced bool, now time.Time) (v Verdict, limit int64, reset time.Duration) {
	var n, t int64
	first := now.Unix()
	for second, cell := range s.cells {
		n, t, first = n+cell[0], t+cell[1], min(first, second)
	}
	reset = time.Unix(first+localCell, 0).Sub(now)
	switch {
	case s.rpm >= 0 && n+1 > s.rpm/share:
		return RequestsExceeded, s.rpm, reset
	case s.tpm >= 0 && t+tokens > s.tpm/share:
		return TokensExceeded, s.tpm, reset
	case s.parallel >= 0 && s.running+1 > s.parallel/share:
		return ParallelExceeded, s.parallel, time.Second
	case s.left >= 0 && !priced:
		return PriceMissing, s.left, 0
	case s.left >= 0 && s.held+hold > s.left/share:
		return BudgetExceeded, s.left, probeEvery
	}
	return Admitted, 0, 0
}

// localCell is how many seconds after its start a cell leaves the minute: all of it has been in for a minute then.
const localCell = 61

func (s *localScope) forget(now time.Time) {
	for second := range s.cells {
		if now.Unix()-second >= localCell {
			delete(s.cells, second)
		}
	}
}

// done ends what AdmitLocally let in. What it cost at most goes on counting until Redis has been heard of.
func (c *local) done(rid string, cost int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.open[rid]
	if !ok {
		return
	}
	delete(c.open, rid)
	for _, s := range h.scopes {
		s.running--
		s.held = max(s.held-h.nusd+cost, 0)
	}
}

// scopeOf takes one scope of a claim apart: scope:id and its periods.
func scopeOf(text string) (name, periods string) {
	i := strings.LastIndexByte(text, ':')
	name, periods = text[:max(i, 0)], text[i+1:]
	return name[:max(strings.LastIndexByte(name, ':'), 0)], periods
}

// periodsAt is the periods of the same kinds that hold now, as period.part.lua names them.
func periodsAt(names string, now time.Time) string {
	list := strings.Split(names, ",")
	for i, name := range list {
		list[i] = periodAt(name, now.UTC())
	}
	return strings.Join(list, ",")
}

func periodAt(name string, now time.Time) string {
	if spec, text, ok := strings.Cut(name, "@"); ok {
		start, err := strconv.ParseInt(text, 10, 64)
		n, e := strconv.ParseInt(spec[:len(spec)-1], 10, 64)
		unit := map[byte]int64{'s': 1, 'm': 60, 'h': 3600, 'd': 86400}[spec[len(spec)-1]]
		if err != nil || e != nil || n*unit <= 0 || now.Unix() < start {
			return name
		}
		return fmt.Sprintf("%s@%d", spec, start+(now.Unix()-start)/(n*unit)*n*unit)
	}
	switch {
	case name == "total":
		return name
	case strings.Contains(name, "W"):
		year, week := now.ISOWeek()
		return fmt.Sprintf("%04d-W%02d", year, week)
	case strings.Count(name, "-") == 2:
		return now.Format("2006-01-02")
	}
	return now.Format("2006-01")
}
