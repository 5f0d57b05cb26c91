package coordinator

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/redis/rueidis"
	"github.com/rs/zerolog"
)

// LedgerConfig says for whom the ledger reserves, and where.
type LedgerConfig struct {
	Replica  string // new at each start of the process
	Store    *pipeline.Store
	Pipeline *pipeline.Pipeline
	Log      zerolog.Logger
	Clock    func() time.Time // of what is remembered here; nil: time.Now. Redis' clock decides everything else
	SpoolDir string           // where settlements wait that Redis did not acknowledge; "": in memory only
	Serve    bool             // AdmitLocally may let requests in while Redis cannot be asked
	Replicas func() int       // how many live, as last seen; nil: 1. Read by AdmitLocally
}

// Ledger lets requests in against limits and budgets that hold for the whole fleet, and replaces what they held by what
// they used. Redis decides; the ledger remembers only what it must do again. It is safe for concurrent use.
//
// Invariants:
//
//	L1. An admission reserves in all scopes of a request or in none; one refused changes nothing.
//	L2. A request is charged once, however often its settlement is sent.
//	L3. A settlement Redis did not acknowledge is sent again every second, in order, also by the next process here; one
//	    that was acknowledged shortly before Redis failed is repeated when it is back.
//	L4. A reservation is renewed from its admission until its settlement is acknowledged; it is charged at its hold when
//	    its replica is gone.
//	L5. A refusal is repeated from memory for a second at most, never past its reset, and nothing is ever let in from it.
//	L6. What is remembered of keys, refusals and look-ups is bounded, whatever comes in.
type Ledger struct {
	cfg       LedgerConfig
	open      openBook
	seen      seenKeys
	refusals  refusals
	lookups   lookups
	walks     walks
	unsettled unsettled
	acked     acked
	local     local
	health    health
	breaker   breaker // for admissions
	primaries primaries
	wake      chan struct{} // to Run: a tenant's set is to be written
}

// NewLedger starts nothing; Run does.
func NewLedger(cfg LedgerConfig) *Ledger {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &Ledger{
		cfg:       cfg,
		open:      openBook{tenants: map[string]*tenantBook{}},
		health:    health{log: cfg.Log},
		wake:      make(chan struct{}, 1),
		unsettled: unsettled{spool: spool{dir: cfg.SpoolDir, name: SafeID(cfg.Replica)}},
	}
}

// ErrNotAsked is why an admission failed that surely was not applied: Redis has been away for a moment, and nobody asked
// it. There is nothing to settle.
var ErrNotAsked = fmt.Errorf("%w: not asked", pipeline.ErrUnavailable)

// Admit declares the decision on b. When the handle fails, the admission may have been applied: the request is settled
// without a claim and at no cost, or, if it goes on all the same, with its real figures.
func (l *Ledger) Admit(b *pipeline.Batch, r Request) *pipeline.Handle[Admission] {
	now := l.cfg.Clock()
	if h := l.refused(&r, now); h != nil {
		return h
	}
	_, seen := l.Seen(r.KeyHash)
	var flooded bool
	if !seen {
		var reset time.Duration
		if reset, flooded = l.lookups.begin(r.Tenant, now); reset > 0 {
			return flooding(reset)
		}
	} else if l.open.unannounced(r.Tenant, now) {
		// Only for a key that passed before: made-up keys must not write made-up tenants. For the first use of a key,
		// Run writes it right after the admission.
		l.declareAnnouncement(b, []string{r.Tenant})
	}
	if !l.breaker.closed(r.Tenant, now) {
		return notAsked()
	}
	return l.ask(b, &r, flooded)
}

// refused is a refusal of a moment ago; nil: there is none. Like the two below it is apart from Admit because an Admission is
// wide: what Admit would hold of them on its stack, every connection would keep.
//
//go:noinline
func (l *Ledger) refused(r *Request, now time.Time) *pipeline.Handle[Admission] {
	if a, ok := l.refusals.recall(r, now); ok {
		return pipeline.Resolved(*a, nil)
	}
	return nil
}

//go:noinline
func flooding(reset time.Duration) *pipeline.Handle[Admission] {
	return pipeline.Resolved(floodRefusal(reset), nil)
}

//go:noinline
func notAsked() *pipeline.Handle[Admission] { return pipeline.Resolved(Admission{}, ErrNotAsked) }

func (l *Ledger) ask(b *pipeline.Batch, r *Request, flooded bool) *pipeline.Handle[Admission] {
	h := lua.Admit(b, l.cfg.Store, TenantRoot(r.Tenant), l.admitArgs(r), func(reply *lua.AdmitReply, a *Admission) {
		l.decided(r, reply, a)
	})
	h.Then(func(_ Admission, err error) {
		if flooded {
			l.lookups.done(r.Tenant)
		}
		l.breaker.asked(r.Tenant, err, l.cfg.Clock())
	})
	return h
}

// label is the fixed part of the usage record of a request that is lost.
func (l *Ledger) label(r *Request) string {
	w := line{dst: make([]byte, 0, 256)} // most take less
	w.text("request_id", r.RequestID)
	w.text("rid", r.RID)
	w.text("replica", l.cfg.Replica)
	w.text("tenant", r.Tenant)
	w.text("end_user", r.EndUser)
	w.list("tags", r.Tags)
	w.text("route", r.Route)
	w.text("model", r.Model)
	w.raw("stream", strconv.FormatBool(r.Stream))
	return string(w.dst)
}

func (l *Ledger) admitArgs(r *Request) *lua.AdmitArgs {
	a := &lua.AdmitArgs{
		RID: r.RID, KeyHash: r.KeyHash, Owner: lua.ClaimText(l.cfg.Replica), Model: r.Model, Known: r.Known, Priced: r.Priced,
		PromptBytes: r.bytes(), Choices: r.Choices,
		Prompt: max(r.PromptTokens, 0), Cap: max(r.OutputCap, 0), Usual: max(r.OutputUsual, 0),
		HoldNUSD: min(max(r.HoldNUSD, 0), maxNUSD), Label: lua.ClaimText(l.label(r)),
		EndUser: SafeID(r.EndUser), Tags: tagNames(r.Tags), Detail: l.cfg.Serve,
	}
	if r.InTranches() {
		a.HoldNUSD = min(max(r.PromptHoldNUSD, 0), maxNUSD)
		a.Tranche = lua.Tranche{Bound: r.OutputBound, PricePico: max(r.OutputPricePico, 0), Least: max(r.TrancheLeast, 0)}
	}
	return a
}

// maxTags is how many tags of a request count.
const maxTags = 8

// tagNames is tags as they stand in key names.
func tagNames(tags []string) string {
	if len(tags) == 0 {
		return ""
	}
	names := make([]string, 0, maxTags)
	for _, t := range tags[:min(len(tags), maxTags)] {
		if t != "" {
			names = append(names, SafeID(t))
		}
	}
	return strings.Join(names, ",")
}

// maxNUSD is the most money one figure may say, 9 million USD: doubles count whole nano-dollars to there.
const maxNUSD = 9_000_000_000_000_000

// decided writes down the reply, and what it means for this replica. It runs on the goroutine that received the reply.
func (l *Ledger) decided(r *Request, reply *lua.AdmitReply, a *Admission) {
	a.decide(reply)
	now := l.cfg.Clock()
	switch a.Verdict {
	case Admitted:
		if l.cfg.Serve {
			l.local.remember(r, a, reply.Detail)
		}
		l.seen.put(r.KeyHash, a.Hint(r.Tenant))
		if l.open.add(r.Tenant, r.RID, reserved{r.KeyHash, r.Model, r.lessonBytes(), r.Choices}, now) {
			l.poke()
		}
	case KeyUnknown:
		l.lookups.failed(r.Tenant, now)
		l.refusals.remember(r, "", a, now)
	case KeyDisabled:
		l.refusals.remember(r, "", a, now)
	case RequestsExceeded, BudgetExceeded:
		if reply.Lasting {
			l.refusals.remember(r, r.Model, a, now)
		}
	}
}

func (l *Ledger) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// decide makes a what the reply says. Field by field: a literal would lie on the stack once more.
func (a *Admission) decide(r *lua.AdmitReply) {
	a.Verdict, a.Priority, a.Isolate, a.Budgeted, a.Tags = Verdict(r.Verdict), int(r.Priority), r.Isolate, r.Budgeted, r.Tags
	a.KeyID, a.KeyName, a.Team, a.User = r.Key, r.Name, r.Team, r.User
	a.Claim, a.HeldTokens, a.HeldNUSD, a.HeldOutput = r.Claim, r.HeldTokens, r.HeldNUSD, r.HeldOutput
	a.BytesPerTokenMilli, a.UsualOutput = r.BytesPerToken, r.UsualOutput
	a.Scope, a.ScopeID, a.Limit, a.Remaining, a.Reset = r.Scope, r.ScopeID, r.Limit, r.Remaining, millisOf(r.ResetMS)
	a.Requests, a.Tokens = windowOf(r.Requests), windowOf(r.Tokens)
	if a.Verdict == Admitted {
		a.AdmittedAt = time.UnixMilli(r.AtMS)
	}
}

func windowOf(m lua.Minute) Window {
	return Window{Limit: m.Limit, Remaining: m.Remaining, Reset: millisOf(m.ResetMS)}
}

func millisOf(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// Settle declares the settlement on p. It is safe to repeat: the same request is charged once. What Redis does not
// acknowledge is kept and sent again by Run. // L2, L3
func (l *Ledger) Settle(p *pipeline.Post, s Settlement) {
	if s.NeverAdmitted {
		l.local.done(s.RID, s.CostNUSD)
	}
	p.With(func(b *pipeline.Batch) {
		l.declareSettlement(b, s).Then(func(done lua.Settled, err error) {
			if err != nil {
				l.keep(s, err)
				return
			}
			l.settled(s, done)
		})
	})
}

func (l *Ledger) declareSettlement(b *pipeline.Batch, s Settlement) *pipeline.Handle[lua.Settled] {
	return lua.Settle(b, l.cfg.Store, TenantRoot(s.Tenant), lua.SettleArgs{
		RID: s.RID, Claim: s.Claim, Keep: s.KeepRequest, Prompt: max(s.Prompt, 0), Cached: max(s.Cached, 0),
		Completion: max(s.Completion, 0), CostNUSD: min(max(s.CostNUSD, 0), maxNUSD), Record: s.Record, Never: s.NeverAdmitted,
		Learn: l.lesson(s),
	})
}

// settled forgets an acknowledged settlement.
func (l *Ledger) settled(s Settlement, done lua.Settled) {
	now := l.cfg.Clock()
	l.open.remove(s.Tenant, s.RID)
	l.acked.add(s, now, l.health.isBad() || l.primaries.isHidden())
	l.health.ok(s.Tenant, now)
	switch done {
	case lua.Recharged:
		if s.NeverAdmitted { // as was to be: nobody could be asked
			return
		}
		l.cfg.Log.Warn().Str("tenant", s.Tenant).Str("rid", s.RID).Msg("the admission was lost with a primary; charged in full")
	case lua.Doubtful:
		l.cfg.Log.Error().Str("tenant", s.Tenant).Str("rid", s.RID).Int64("cost_nusd", s.CostNUSD).Msg("settlement filed as doubtful, not charged")
	}
}

// Open is how many requests this replica has admitted whose settlement is not acknowledged yet.
func (l *Ledger) Open() int { return l.open.count() }

// declareAnnouncement names tenants in which this replica has reservations: whoever clears it looks there.
func (l *Ledger) declareAnnouncement(b *pipeline.Batch, tenants []string) *pipeline.Handle[bool] {
	return pipeline.Declare(b, pipeline.Command{Store: l.cfg.Store, Name: "SADD", Key: ReplicaTenants(l.cfg.Replica), Args: tenants},
		func(rueidis.RedisMessage) (bool, error) {
			l.open.announced(tenants, l.cfg.Clock())
			return true, nil
		})
}
