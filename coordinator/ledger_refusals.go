package coordinator

import (
	"sync"
	"time"
)

const (
	// rememberFor bounds how long a change of a policy may go unseen by a key that is being refused.
	rememberFor = time.Second
	// refusalsMax bounds each of the two generations; what does not fit is asked of Redis again.
	refusalsMax = 20_000
)

// refusals repeats refusals that cannot have ended yet, so that a client that keeps trying does not cost Redis a script
// each time: unknown and disabled keys, requests per minute at 0, spent money at its limit. Never running requests,
// tokens or holds: those may be free the next moment. // L5
type refusals struct {
	mu           sync.Mutex
	turned       time.Time // when young was started
	young, older map[refusalKey]refusal
}

// refusalKey says what a refusal is about. model is "" where the model does not matter: an unknown key stays unknown,
// but a key at its limit must still be told that it may not use some other model. scope and id are set where it was an end
// user or a tag that refused: the key's other requests do not name them.
type refusalKey struct{ tenant, keyHash, model, scope, id string }

type refusal struct {
	admission Admission
	at, until time.Time
}

// recall returns a refusal of before as it stands now; it is the caller's.
func (f *refusals) recall(r *Request, now time.Time) (a *Admission, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.young)+len(f.older) == 0 {
		return nil, false
	}
	a, ok = f.of(r, "", "", now)
	if !ok && r.EndUser != "" {
		a, ok = f.of(r, "enduser", SafeID(r.EndUser), now)
	}
	for i := 0; !ok && i < min(len(r.Tags), maxTags); i++ {
		a, ok = f.of(r, "tag", SafeID(r.Tags[i]), now)
	}
	return a, ok
}

// of is the refusal by a scope, as it stands now.
func (f *refusals) of(r *Request, scope, id string, now time.Time) (*Admission, bool) {
	for _, model := range [2]string{"", r.Model} {
		key := refusalKey{r.Tenant, r.KeyHash, model, scope, id}
		for _, m := range [2]map[refusalKey]refusal{f.young, f.older} {
			if e, ok := m[key]; ok && now.Before(e.until) && e.admission.concerns(r, model) {
				a := e.admission
				a.age(now.Sub(e.at))
				return &a, true
			}
		}
	}
	return nil, false
}

// concerns is false where r may pass although a like request was refused: its model is known no more, or it is free and only
// money was spent.
func (a *Admission) concerns(r *Request, model string) bool {
	return (model == "" || r.Known) && (a.Verdict != BudgetExceeded || r.HoldNUSD > 0)
}

// remember keeps a refusal until its reset, for a second at most.
func (f *refusals) remember(r *Request, model string, a *Admission, now time.Time) {
	keep := rememberFor
	if a.Reset > 0 {
		keep = min(keep, a.Reset)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.young == nil || now.Sub(f.turned) >= rememberFor {
		// What stands in the older generation was noted a second ago or earlier: it is over.
		f.young, f.older, f.turned = map[refusalKey]refusal{}, f.young, now
	}
	if len(f.young) < refusalsMax {
		key := refusalKey{r.Tenant, r.KeyHash, model, "", ""}
		if a.Scope == "enduser" || a.Scope == "tag" {
			key.scope, key.id = a.Scope, a.ScopeID
		}
		f.young[key] = refusal{admission: *a, at: now, until: now.Add(keep)}
	}
}

// age makes a what it is d after it was given.
func (a *Admission) age(d time.Duration) {
	for _, reset := range []*time.Duration{&a.Reset, &a.Requests.Reset, &a.Tokens.Reset} {
		if *reset > 0 {
			*reset = max(*reset-d, time.Millisecond)
		}
	}
}
