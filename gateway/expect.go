package gateway

import (
	"time"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// vet is for clients that wait for 100 Continue before they send the body: whether their key is valid is found out
// first, so that a body nobody will read is not asked for. That is one more wait for Redis (two for an imported key),
// and none for a key that passed here before. It counts no request and reserves nothing. The front sends 100 Continue
// with the first read of the body.
func (r *request) vet() *refusal {
	if len(r.x.Header("Expect")) == 0 || r.x.BodyLength() == 0 {
		return nil
	}
	if _, seen := r.g.deps.Ledger.Seen(r.key.hash); seen {
		return nil
	}
	started := time.Now()
	defer func() { r.redis += time.Since(started) }()
	alias := r.g.deps.Ledger.Alias(r.batch, r.key.hash)
	var asShaped *pipeline.Handle[coordinator.Allowed]
	if r.key.tenant != "" {
		asShaped = r.g.deps.Ledger.Models(r.batch, r.key.tenant, r.key.hash)
	}
	tenant, err := alias.Wait(r.ctx)
	switch {
	case err != nil && asShaped == nil:
		return r.withoutRedis(err)
	case err == nil && tenant != "" && tenant != r.key.tenant: // an imported key of any shape; the alias wins
		return r.vetted(r.g.deps.Ledger.Models(r.batch, tenant, r.key.hash))
	case asShaped == nil:
		return unauthorized()
	}
	return r.vetted(asShaped)
}

func (r *request) vetted(h *pipeline.Handle[coordinator.Allowed]) *refusal {
	allowed, err := h.Wait(r.ctx)
	if err != nil {
		return r.withoutRedis(err)
	}
	if allowed.Verdict != coordinator.Admitted {
		return refusalOfVerdict(coordinator.Admission{Verdict: allowed.Verdict}, "")
	}
	return nil
}
