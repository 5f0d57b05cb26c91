package coordinator

import (
	"github.com/redis/rueidis"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// Allowed is whose key it is and which model lists bind it; a model must be on every list.
type Allowed struct {
	Verdict           Verdict // Admitted for a valid key
	KeyID, Team, User string
	Lists             []string // comma-separated patterns, * for one or more characters
}

// Models declares the look-up of a key's model lists. It counts no request.
func (l *Ledger) Models(b *pipeline.Batch, tenant, keyHash string) *pipeline.Handle[Allowed] {
	return lua.Allowed(b, l.cfg.Store, TenantRoot(tenant), keyHash, func(r lua.AllowedReply) Allowed {
		return Allowed{Verdict: Verdict(r.Verdict), KeyID: r.Key, Team: r.Team, User: r.User, Lists: r.Lists}
	})
}

// Alias declares the look-up of the tenant of an imported key; "" is none.
func (l *Ledger) Alias(b *pipeline.Batch, keyHash string) *pipeline.Handle[string] {
	return pipeline.Declare(b, pipeline.Command{Store: l.cfg.Store, Name: "GET", Key: Alias(keyHash)},
		func(m rueidis.RedisMessage) (string, error) {
			if m.IsNil() {
				return "", nil
			}
			return m.ToString()
		})
}
