package gateway

import (
	"errors"
	"time"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/pipeline"
)

// decide asks the ledger, the cache and placement in one flush, and decides in fixed order: identity, model, limits,
// budget, cache, placement. A key this replica has not seen pass is admitted alone first, so that a flood of made-up
// keys takes no slots; one that an alias leads to exists, and is admitted with the rest.
func (r *request) decide() *refusal {
	started := time.Now()
	defer func() { r.redis += time.Since(started) }()
	hint, seen := r.g.deps.Ledger.Seen(r.key.hash)
	if !seen {
		led, no := r.introduce()
		if no != nil {
			return no
		}
		if hint, seen = r.admission.Hint(r.key.tenant), led; led {
			hint = coordinator.Hint{Tenant: r.key.tenant, Priority: -1} // nothing else is known of it
		}
	}
	r.hint, r.key.tenant = hint, hint.Tenant
	var admitted *pipeline.Handle[coordinator.Admission]
	if seen {
		admitted = r.declareAdmission()
	}
	cached := r.declareCache()
	holder := r.declarePrevious()
	leader := r.joinFlight()
	var placed *pipeline.Handle[coordinator.Place]
	if leader == nil {
		placed = r.declarePlacement()
	}

	if seen {
		if no := r.admitted(admitted); no != nil {
			return no
		}
	}
	if r.hint.Team != r.admission.Team { // not the hint's: nothing of that team is served, followed, or added to
		r.hash, cached = "", nil
		if leader != nil {
			return r.placedBy(r.declarePlacement()) // one more wait
		}
	}
	if r.hit = r.cached(cached); r.hit != nil {
		return nil
	}
	if leader != nil { // an equal request is in flight here
		var no *refusal
		if r.hit, no = r.followFlight(leader); r.hit != nil || no != nil {
			return no
		}
		return r.placedBy(r.declarePlacement()) // it had nothing to share: one more wait
	}
	if r.scan.Previous != "" && placed == nil { // one more wait: this replica does not remember the response
		if no := r.findHolder(holder, r.scan.Previous, "previous_response_id"); no != nil {
			return no
		}
		placed = r.declarePlacement()
	}
	return r.placedBy(placed)
}

// introduce admits a key this replica has not seen: in the tenant its shape names, and at the same time it is looked for
// among the imported keys, which may have any shape and win. led: an alias led to a tenant, and the key is still to be
// admitted there.
func (r *request) introduce() (led bool, no *refusal) {
	alias := r.g.deps.Ledger.Alias(&r.batch, r.key.hash)
	var guess *pipeline.Handle[coordinator.Admission]
	guessed := r.key.tenant
	if guessed != "" {
		guess = r.declareAdmission()
	}
	tenant, err := alias.Wait(r.ctx)
	switch {
	case err != nil && guess == nil:
		return false, r.withoutRedis(err)
	case err == nil && tenant != "" && tenant != guessed:
		r.giveBack(guess)
		r.key.tenant = tenant
		return true, nil
	case guess == nil:
		return false, unauthorized()
	}
	return false, r.admitted(guess)
}

// giveBack returns what a wrong guess of the tenant may have reserved there.
func (r *request) giveBack(guess *pipeline.Handle[coordinator.Admission]) {
	if guess == nil {
		return
	}
	a, err := guess.Wait(r.ctx)
	if err == nil && a.Verdict != coordinator.Admitted {
		return
	}
	post := r.g.deps.Pipeline.Post()
	r.g.deps.Ledger.Settle(post, coordinator.Settlement{Tenant: r.key.tenant, RID: r.record.RID, Claim: a.Claim, AdmittedAt: a.AdmittedAt})
	post.Send()
}

// declareAdmission asks the ledger.
func (r *request) declareAdmission() *pipeline.Handle[coordinator.Admission] {
	r.record.Tenant = r.key.tenant
	r.asked = r.known
	return r.g.deps.Ledger.Admit(&r.batch, r.admissionRequest())
}

// admitted is the ledger's part of the decision. A reply that did not come may have been applied: r.asked makes end
// settle it at zero.
func (r *request) admitted(h *pipeline.Handle[coordinator.Admission]) *refusal {
	a, err := h.Wait(r.ctx)
	if err != nil {
		r.asked = r.asked && !errors.Is(err, coordinator.ErrNotAsked)
		known := false
		if a, known = r.admitAlone(err); !known {
			return r.withoutRedis(err)
		}
	}
	r.admission = a
	r.record.KeyID, r.record.Team, r.record.User = a.KeyID, a.Team, a.User
	if a.Verdict == coordinator.Admitted {
		r.record.Tags = append(r.record.Tags, a.Tags...)
		if a.HeldOutput > 0 {
			r.tranche.bound = r.streamBound()
			r.tranche.granted.Store(a.HeldOutput)
		}
		return nil
	}
	r.asked = false // a refusal reserved nothing
	r.record.Refusal = coordinator.RefusalOf(a)
	if a.Verdict == coordinator.PolicyUnreadable {
		r.g.unreadable.warn(r.g.deps.Log, r.key.tenant, a, time.Now())
	}
	if a.KeyID == "" {
		r.record.Tenant = "" // a made-up key belongs to nobody
	}
	return refusalOfVerdict(a, r.scan.Model)
}

func (r *request) withoutRedis(err error) *refusal {
	if r.ctx.Err() != nil {
		return r.left()
	}
	r.g.deps.Log.Debug().Err(err).Str("rid", r.record.RID).Msg("decision failed")
	return refusalOf(protocol.RedisUnavailable())
}

// declareCache declares the read of a stored answer, for the requests the model's catalogue entry lets be cached.
func (r *request) declareCache() *pipeline.Handle[*coordinator.Answer] {
	if !r.route.cache || r.model.Cache.TTL <= 0 {
		return nil
	}
	if r.hash = cacheHash(r.body, r.hint.Team, r.scan.User, r.record.Route, r.model.Name); r.hash == "" {
		return nil
	}
	r.record.Cache = coordinator.CacheMiss
	return r.g.deps.Cache.Lookup(&r.batch, r.key.tenant, r.hash)
}

// joinFlight is the equal request to follow, if the catalogue wants equal requests to be sent once; nil where there is none,
// and then others follow this one.
func (r *request) joinFlight() (leader *flight) {
	if r.hash == "" || !r.model.Cache.Coalesce {
		return nil
	}
	r.flight = r.key.tenant + ":" + r.hash
	r.lead, leader = r.g.flights.join(r.flight)
	return leader
}

// cached is the cache's part: a late or broken entry is a miss.
func (r *request) cached(h *pipeline.Handle[*coordinator.Answer]) *coordinator.Answer {
	if h == nil {
		return nil
	}
	entry, err := h.Wait(r.ctx)
	if err != nil || entry == nil {
		return nil
	}
	return r.inForm(entry)
}
