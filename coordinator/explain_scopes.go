package coordinator

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/headgate/headgate/pipeline"
)

// Kinds of scopes that are no records of the directory.
const (
	kindEndUser Kind = "enduser"
	kindTag     Kind = "tag"
)

// ScopeState is one scope of a request and its figures now.
type ScopeState struct {
	Scope    string // scope:id, as in key names
	RedisKey string // of the policy
	Found    bool   // a policy is there; without one the scope limits nothing and counts nothing
	Disabled bool
	Expired  bool
	Models   string // the list; "": all, ",": none
	Faults   []string

	RPM, TPM, Parallel *LimitState // nil: no limit
	Budgets            []Spent
	BudgetEnds         []time.Time // of each; zero: never
}

// LimitState is one limit now.
type LimitState struct {
	Limit, Used int64
	Reset       time.Duration // until something of it comes back; 0: nothing is used, or nobody knows
}

// Left is never below 0.
func (l LimitState) Left() int64 { return max(l.Limit-l.Used, 0) }

// ScopesOf is the scopes a request has, as scope:id, in the order in which admissions look at them.
func ScopesOf(r RecordLine) []string {
	var scopes []string
	add := func(kind Kind, id string) {
		if name := string(kind) + ":" + SafeID(id); id != "" && !slices.Contains(scopes, name) {
			scopes = append(scopes, name)
		}
	}
	add(KindKey, r.KeyID)
	add(KindUser, r.User)
	add(KindTeam, r.Team)
	if r.Tenant != "" {
		scopes = append(scopes, string(KindTenant)+":"+r.Tenant)
	}
	add(kindEndUser, r.EndUser)
	for _, tag := range r.Tags[:min(len(r.Tags), maxTags)] {
		add(kindTag, tag)
	}
	return scopes
}

// ReadScopes reads the policies and the figures of some scopes of a tenant, as they are now.
func ReadScopes(ctx context.Context, store *pipeline.Store, tenant string, scopes []string) ([]ScopeState, error) {
	d := NewDirectory(store)
	now, err := d.now(ctx)
	if err != nil {
		return nil, err
	}
	r := reads{store: store}
	entries := make([]Entry, len(scopes))
	policies, minutes, running := make([]*map[string]string, len(scopes)), make([]*map[string]string, len(scopes)), make([]*string, len(scopes))
	for i, scope := range scopes {
		kind, id, _ := strings.Cut(scope, ":")
		entries[i] = Entry{Ref: Ref{Kind: Kind(kind), Tenant: tenant, ID: id}}
		if Kind(kind) == KindKey {
			e, err := d.findKey(ctx, entries[i].Ref)
			if err == nil {
				entries[i] = e
			}
		}
		policies[i] = r.hash(entries[i].policyKey())
		minutes[i], running[i] = r.hash(TenantRoot(tenant)+":rate:"+scope), r.text("HGET", Parallel(tenant), scope)
	}
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	states := make([]ScopeState, len(scopes))
	for i, scope := range scopes {
		entries[i].Fields = *policies[i]
		states[i] = scopeState(scope, entries[i], *minutes[i], *running[i], now)
		if !states[i].Found {
			continue
		}
		if states[i].Budgets, err = d.Spent(ctx, entries[i]); err != nil {
			return nil, err
		}
		for _, b := range states[i].Budgets {
			states[i].BudgetEnds = append(states[i].BudgetEnds, periodEnd(b.Period))
		}
	}
	return states, nil
}

// policyKey is the name of the hash a scope's policy is in; ids stand in it as in key names.
func (e Entry) policyKey() string {
	switch e.Kind {
	case KindTenant:
		return TenantRoot(e.Tenant)
	case KindKey:
		return KeyRecord(e.Tenant, e.hash)
	}
	return TenantRoot(e.Tenant) + ":" + string(e.Kind) + ":" + e.ID
}

func scopeState(scope string, e Entry, minute map[string]string, running string, now time.Time) ScopeState {
	s := ScopeState{Scope: scope, RedisKey: e.policyKey(), Found: len(e.Fields) > 0, Models: e.Fields["models"], Expired: e.Expired(now),
		Disabled: e.Fields["disabled"] != "" && e.Fields["disabled"] != "0"}
	if !s.Found {
		return s
	}
	if list, there := e.Fields["models"]; there && strings.Trim(list, ", ") == "" {
		s.Models = "," // names none
	}
	if e.Kind != kindEndUser && e.Kind != kindTag {
		s.Faults = e.Faults()
	}
	requests, tokens, reset := minuteNow(minute, now)
	limit := func(field string, used int64, reset time.Duration) *LimitState {
		n, err := strconv.ParseInt(e.Fields[field], 10, 64)
		if err != nil {
			return nil
		}
		return &LimitState{Limit: n, Used: used, Reset: reset}
	}
	n, _ := strconv.ParseInt(running, 10, 64)
	s.RPM, s.TPM, s.Parallel = limit("rpm", requests, reset), limit("tpm", tokens, reset), limit("parallel", n, 0)
	return s
}

var cellForm = regexp.MustCompile(`^(\d+) (\d+)$`)

// minuteNow is what of a sliding minute (minute.part.lua) counts at now, and when the first of it leaves.
func minuteNow(minute map[string]string, now time.Time) (requests, tokens int64, reset time.Duration) {
	for second, cell := range minute {
		m := cellForm.FindStringSubmatch(cell)
		if m == nil || second == "" || second[0] < '0' || second[0] > '9' {
			continue
		}
		n, _ := strconv.ParseInt(m[1], 10, 64)
		at, _ := strconv.ParseInt(m[2], 10, 64)
		left := time.UnixMilli(at).Add(time.Minute).Sub(now)
		if left <= 0 {
			continue
		}
		t, _ := strconv.ParseInt(minute["t"+second], 10, 64)
		requests, tokens = requests+n, tokens+t
		if reset == 0 || left < reset {
			reset = left
		}
	}
	return requests, tokens, reset
}

// WouldRefuse is what a request of so many tokens and nano-dollars would be refused by now, judged as admissions judge,
// in their order; nil: by nothing of this.
func WouldRefuse(scopes []ScopeState, model string, tokens, holdNUSD int64) *Refusal {
	for _, rule := range []func(ScopeState) *Refusal{
		func(s ScopeState) *Refusal {
			if len(s.Faults) > 0 && s.unreadable() {
				return &Refusal{For: "record"}
			}
			return nil
		},
		func(s ScopeState) *Refusal { return refusedIf(s.Disabled, Refusal{For: "disabled"}) },
		func(s ScopeState) *Refusal { return refusedIf(s.Expired, Refusal{For: "expires_at"}) },
		func(s ScopeState) *Refusal { return refusedIf(!listed(s.Models, model), Refusal{For: "models"}) },
		func(s ScopeState) *Refusal { return s.RPM.refuses("rpm", 1) },
		func(s ScopeState) *Refusal { return s.TPM.refuses("tpm", max(tokens, 1)) },
		func(s ScopeState) *Refusal { return s.Parallel.refuses("parallel", 1) },
		func(s ScopeState) *Refusal {
			for i, b := range s.Budgets {
				if b.LimitNUSD >= 0 && holdNUSD > b.LeftNUSD() {
					r := Refusal{For: "budget", Limit: b.LimitNUSD, Remaining: max(b.LeftNUSD(), 0)}
					if end := s.BudgetEnds[i]; !end.IsZero() && holdNUSD <= b.LimitNUSD {
						r.ResetMS = max(time.Until(end), 0).Milliseconds()
					}
					return &r
				}
			}
			return nil
		},
	} {
		for _, s := range scopes {
			if !s.Found {
				continue
			}
			if r := rule(s); r != nil {
				r.By = s.Scope
				return r
			}
		}
	}
	return nil
}

// Trouble is what else may keep requests out.
func (s ScopeState) Trouble() (all []string) {
	if s.Disabled {
		all = append(all, "disabled")
	}
	if s.Expired {
		all = append(all, "expired")
	}
	if s.Models != "" {
		all = append(all, "models "+s.Models)
	}
	return append(all, s.Faults...)
}

// TagsOf is the tags a key gives its requests.
func TagsOf(e Entry) []string {
	return strings.FieldsFunc(e.Fields["tags"], func(c rune) bool { return c == ',' || c == ' ' })
}

// unreadable is true when a fault is in a limit; other faults have no effect.
func (s ScopeState) unreadable() bool {
	return slices.ContainsFunc(s.Faults, func(f string) bool {
		name, _, _ := strings.Cut(f, ":")
		return slices.Contains([]string{"id", "rpm", "tpm", "parallel", "budget_usd", "period", "budgets", "priority"}, name)
	})
}

func refusedIf(yes bool, r Refusal) *Refusal {
	if yes {
		return &r
	}
	return nil
}

func (l *LimitState) refuses(what string, more int64) *Refusal {
	if l == nil || l.Used+more <= l.Limit {
		return nil
	}
	return &Refusal{For: what, Limit: l.Limit, Remaining: l.Left(), ResetMS: l.Reset.Milliseconds()}
}

// listed is true for a model on a list, as models.part.lua reads it; "" is no list.
func listed(list, model string) bool {
	if list == "" {
		return true
	}
	for _, name := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' || unicode.IsSpace(c) }) {
		form := "^" + strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, `.+`) + "$"
		if ok, err := regexp.MatchString(form, model); err == nil && ok {
			return true
		}
	}
	return false
}
