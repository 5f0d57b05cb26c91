package coordinator

import (
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// Extend declares that the hold of a stream shall cover total tokens of output. It sets a total and never adds, so it
// is safe to repeat; what the budgets have no room for is not granted, and nothing is granted to a request that is not
// open here. An error means that it may have been applied: the stream goes on with what it holds and asks again.
func (l *Ledger) Extend(b *pipeline.Batch, tenant, rid string, total int64) *pipeline.Handle[Granted] {
	r, ok := l.open.get(tenant, rid)
	if !ok || total <= 0 {
		return pipeline.Resolved(Granted{}, nil)
	}
	args := lua.ExtendArgs{RID: rid, KeyHash: r.keyHash, Total: min(total, maxOutput)}
	return lua.Extend(b, l.cfg.Store, TenantRoot(tenant), args, func(reply lua.ExtendReply) Granted {
		return Granted{Tokens: reply.Granted}
	})
}

// maxOutput bounds a total: no answer is longer, and its price stays exact.
const maxOutput = 100_000_000
