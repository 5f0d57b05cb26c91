package gateway

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/pipeline"
)

// listModels answers /v1/models: the models this key may use, by public name. It counts as no request.
func (r *request) listModels() {
	allowed, no := r.recognise(nil)
	if no != nil {
		r.refuse(no)
		return
	}
	list := modelList{Object: "list", Data: []modelObject{}}
	for _, name := range r.modelNames() {
		if mayUse(allowed.Lists, name) {
			list.Data = append(list.Data, modelOf(name))
		}
	}
	r.answerJSON(list)
}

// showModel answers /v1/models/{id}. An alias shows its target. It counts as no request.
func (r *request) showModel() {
	allowed, no := r.recognise(nil)
	if no != nil {
		r.refuse(no)
		return
	}
	name := r.id
	if target, listed := r.g.deps.Catalogue.Current().Resolve(name); listed {
		name = target.Name
	}
	_, known := slices.BinarySearch(r.modelNames(), name)
	switch {
	case !mayUse(allowed.Lists, name):
		r.refuse(refusalOf(protocol.ModelNotAllowed(bounded(r.id))))
	case !known:
		r.refuse(refusalOf(protocol.ModelNotFound(bounded(r.id))))
	default:
		r.answerJSON(modelOf(name))
	}
}

// recognise finds whose key it is without counting a request. What the route needs besides is declared by also, which may
// be nil, in the same flush and once r.key.tenant is set: a second time if the key turns out to be another tenant's.
func (r *request) recognise(also func()) (coordinator.Allowed, *refusal) {
	started := time.Now()
	defer func() { r.redis += time.Since(started) }()
	declare := func() *pipeline.Handle[coordinator.Allowed] {
		if also != nil {
			also()
		}
		return r.g.deps.Ledger.Models(&r.batch, r.key.tenant, r.key.hash)
	}
	if hint, seen := r.g.deps.Ledger.Seen(r.key.hash); seen {
		r.key.tenant = hint.Tenant
		return r.recognised(declare())
	}
	alias := r.g.deps.Ledger.Alias(&r.batch, r.key.hash)
	var asShaped *pipeline.Handle[coordinator.Allowed]
	if r.key.tenant != "" {
		asShaped = declare()
	}
	tenant, err := alias.Wait(r.ctx)
	switch {
	case err != nil && asShaped == nil:
		return coordinator.Allowed{}, r.withoutRedis(err)
	case err == nil && tenant != "" && tenant != r.key.tenant: // an imported key of any shape; the alias wins
		r.key.tenant = tenant
		return r.recognised(declare())
	case asShaped == nil:
		return coordinator.Allowed{}, unauthorized()
	}
	return r.recognised(asShaped)
}

func (r *request) recognised(h *pipeline.Handle[coordinator.Allowed]) (coordinator.Allowed, *refusal) {
	allowed, err := h.Wait(r.ctx)
	switch {
	case err != nil:
		return allowed, r.withoutRedis(err)
	case allowed.Verdict != coordinator.Admitted:
		return allowed, refusalOfVerdict(coordinator.Admission{Verdict: allowed.Verdict}, "")
	}
	r.record.Tenant, r.record.KeyID, r.record.Team, r.record.User = r.key.tenant, allowed.KeyID, allowed.Team, allowed.User
	return allowed, nil
}

// answerJSON answers with what the gateway itself knows.
func (r *request) answerJSON(v any) {
	body, _ := json.Marshal(v) // strings and numbers only
	r.record.ResponseBytes = int64(len(body))
	r.record.Status = 200
	r.begun = true
	r.x.Begin(200, append(r.fields(), headerField{"Content-Type", "application/json"}), int64(len(body)))
	if r.x.Write(body) != nil {
		r.record.Outcome = coordinator.OutcomeClientGone
	}
}

// modelObject is a model as clients see it.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
}

func modelOf(name string) modelObject {
	return modelObject{ID: name, Object: "model", OwnedBy: "headgate"}
}

// modelNames is every public name, sorted: the catalogue's, and what is served without an entry there.
func (r *request) modelNames() []string {
	names := append(r.g.deps.Catalogue.Current().Names(), r.g.deps.Cluster.Models()...)
	slices.Sort(names)
	return slices.Compact(names)
}

// mayUse is true when every list names the model; models.part.lua decides the same for a request.
func mayUse(lists []string, model string) bool {
	for _, list := range lists {
		if !slices.ContainsFunc(strings.FieldsFunc(list, partsPatterns), func(pattern string) bool { return matches(pattern, model) }) {
			return false
		}
	}
	return true
}

// partsPatterns is true for commas and for what is white space to Lua.
func partsPatterns(c rune) bool { return c == ',' || c == ' ' || '\t' <= c && c <= '\r' }

// matches is true when pattern is the name, with each * standing for one or more characters. It never goes back in the name,
// whatever the pattern: what stands between two stars is taken where it comes first.
func matches(pattern, name string) bool {
	before, after, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, before)
	for ok {
		if before, after, star = strings.Cut(after, "*"); !star {
			return len(name) > len(before) && strings.HasSuffix(name, before)
		}
		if name == "" {
			return false
		}
		_, name, ok = strings.Cut(name[1:], before)
	}
	return false
}
