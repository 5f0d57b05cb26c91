package coordinator

import (
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// Finding is what this replica, as one of a backend's readers, found of its health.
type Finding struct {
	Backend string
	Place   string // host:port where it was asked
	Readers int    // how many replicas look at it: 1 or 2
	Unwell  bool   // false: it is well again
}

// OutOfUse is a backend that all its readers found unwell at a place: nobody in the fleet gives it a request.
type OutOfUse struct{ Backend, Place string }

// Findings declares what this replica found of backends of a pool (at most 64). The result is who is out of use there. A
// finding counts for 5 s.
func (p *Placement) Findings(b *pipeline.Batch, pool string, found ...Finding) *pipeline.Handle[[]OutOfUse] {
	fs := make([]lua.Finding, 0, len(found))
	for _, f := range found[:min(len(found), maxReadings)] {
		fs = append(fs, lua.Finding{Backend: SafeID(f.Backend), Place: f.Place, Readers: f.Readers, Unwell: f.Unwell})
	}
	return lua.Unwell(b, p.cfg.Store, PoolRoot(pool), p.cfg.Replica, fs, func(out []lua.OutOfUse) []OutOfUse {
		all := make([]OutOfUse, len(out))
		for i, o := range out {
			all[i] = OutOfUse{Backend: p.backendID(pool, o.Backend), Place: o.Place}
		}
		return all
	})
}
