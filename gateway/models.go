package gateway

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/coordinator"
)

// listModels answers /v1/models: the models this key may use, by public name. It counts as no request.
func (r *request) listModels() {
	started := time.Now()
	tenant := r.key.tenant
	if hint, seen := r.g.deps.Ledger.Seen(r.key.hash); seen {
		tenant = hint.Tenant
	} else if alias, err := r.g.deps.Ledger.Alias(r.batch, r.key.hash).Wait(r.ctx); err == nil && alias != "" {
		tenant = alias
	}
	if tenant == "" {
		r.refuse(unauthorized())
		return
	}
	allowed, err := r.g.deps.Ledger.Models(r.batch, tenant, r.key.hash).Wait(r.ctx)
	r.redis = time.Since(started)
	switch {
	case err != nil:
		r.refuse(r.withoutRedis(err))
		return
	case allowed.Verdict != coordinator.Admitted:
		r.refuse(refusalOfVerdict(coordinator.Admission{Verdict: allowed.Verdict}, ""))
		return
	}
	r.record.Tenant, r.record.KeyID, r.record.Team, r.record.User = tenant, allowed.KeyID, allowed.Team, allowed.User
	body := modelList(r.modelNames(), allowed)
	r.record.ResponseBytes = int64(len(body))
	r.record.Status = 200
	r.begun = true
	r.x.Begin(200, append(r.fields(), headerField{"Content-Type", "application/json"}), int64(len(body)))
	if r.x.Write(body) != nil {
		r.record.Outcome = coordinator.OutcomeClientGone
	}
}

// modelNames is every public name: the catalogue's, and what is served without an entry there.
func (r *request) modelNames() []string {
	names := append(r.g.deps.Catalogue.Current().Names(), r.g.deps.Cluster.Models()...)
	slices.Sort(names)
	return slices.Compact(names)
}

func modelList(names []string, allowed coordinator.Allowed) []byte {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list", Data: []model{}}
	for _, name := range names {
		if mayUse(allowed.Lists, name) {
			list.Data = append(list.Data, model{ID: name, Object: "model", OwnedBy: "headgate"})
		}
	}
	body, _ := json.Marshal(list) // strings and numbers only
	return body
}

// mayUse is true when every list names the model; admit.lua decides the same for a request.
func mayUse(lists []string, model string) bool {
	for _, list := range lists {
		if !slices.ContainsFunc(strings.Split(list, ","), func(pattern string) bool {
			return matches(strings.TrimSpace(pattern), model)
		}) {
			return false
		}
	}
	return true
}

// matches is true when pattern is the name, with each * standing for one or more characters.
func matches(pattern, name string) bool {
	before, after, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, before)
	if !ok {
		return false
	}
	for i := 1; i <= len(rest); i++ {
		if matches(after, rest[i:]) {
			return true
		}
	}
	return false
}
