package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// PlaceQuery is a request for whose backends somebody asks: one that is not placed by it.
type PlaceQuery struct {
	Store        *pipeline.Store
	Pool, Model  string
	MU, OutputMU int64 // thousandths of a model unit
	PromptTokens int64
	Open         *OpenRequest // one that waits: what it asked for is weighed; nil: the figures above are
}

// Outlook is what placement would weigh now.
type Outlook struct {
	Explanation
	MU     int64    // of the request that was weighed
	Others []string // backends of the pool that do not serve the model
}

// Split is the parts of a score.
func (e Explanation) Split(w Weighed) (backlog, external, uncached, output time.Duration) {
	if w.RateMU <= 0 {
		return 0, 0, 0, 0
	}
	seconds := func(mu int64) time.Duration {
		return time.Duration(float64(mu) / float64(w.RateMU) * float64(time.Second))
	}
	backlog, external, uncached = seconds(w.BacklogMU), seconds(w.External*e.MeanMU), seconds(w.UncachedMU)
	return backlog, external, uncached, max(w.Score-backlog-external-uncached, 0).Round(time.Millisecond)
}

// WeighNow looks at what placement would weigh for a request now, over the backends the fleet knows in the pool, in order of
// their names: the ring, which decides between equals, is the replicas' own.
func WeighNow(ctx context.Context, q PlaceQuery) (Outlook, error) {
	r := reads{store: q.Store}
	ids := r.list("SMEMBERS", BackendIndex(q.Pool))
	if err := r.wait(ctx); err != nil {
		return Outlook{}, err
	}
	now, err := NewDirectory(q.Store).now(ctx)
	if err != nil {
		return Outlook{}, err
	}
	slices.Sort(*ids)
	backends, err := readBackends(ctx, &r, q.Pool, *ids, now)
	if err != nil {
		return Outlook{}, err
	}
	args := lua.PlaceArgs{MU: q.MU, OutputMU: q.OutputMU, Model: q.Model, Prompt: lua.Prompt{Tokens: q.PromptTokens}}
	if q.Open != nil && q.Open.askKnown {
		args = q.Open.asked
	}
	out := Outlook{MU: args.MU}
	for _, b := range backends {
		if q.Model != "" && len(b.Models) > 0 && !slices.Contains(b.Models, q.Model) {
			out.Others = append(out.Others, b.ID)
		} else if len(args.Candidates) < maxCandidates {
			args.Candidates = append(args.Candidates, lua.Slots{Backend: b.ID, Slots: int(b.Slots), Tag: lua.TagOf(b.ID)})
		}
	}
	if len(args.Candidates) == 0 {
		return out, nil
	}
	var batch pipeline.Batch
	out.Explanation, err = lua.Weigh(&batch, q.Store, PoolRoot(q.Pool), args, func(reply lua.WeighReply) Explanation {
		return explanationOf(reply, func(i int) string { return args.Candidates[i].Backend })
	}).Wait(ctx)
	return out, err
}

// PoolServing is the pool with a backend that lists the model; "" when the fleet knows none.
func PoolServing(s Status, model string) string {
	for _, p := range s.Pools {
		for _, b := range p.Backends {
			if slices.Contains(b.Models, model) {
				return p.Name
			}
		}
	}
	return ""
}
