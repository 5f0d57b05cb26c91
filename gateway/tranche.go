package gateway

import (
	"sync/atomic"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol/sse"
	"github.com/headgate/headgate/pipeline"
)

// leastTranche is the first tranche of a stream at least, in tokens: two seconds at 64 tokens a second, so that a top-up is
// back before the hold is used up.
const leastTranche = 128

// tranche is what the hold of a stream covers, and how it grows in the background. The zero value covers nothing and never
// grows: for what is not held in tranches.
type tranche struct {
	bound   int64        // tokens, the most the answers may have; 0: no tranches
	granted atomic.Int64 // tokens the hold covers
	credit  atomic.Int64 // tokens beyond these that pass although nothing holds them: the reservation went with a primary
	refused atomic.Bool  // the last top-up was answered and granted nothing more
	busy    atomic.Bool  // a top-up is under way
}

// topUp keeps the hold ahead of the stream. It is false when the hold is used up and there is no more to be had: the
// stream has to end. Nobody waits for Redis here.
func (r *request) topUp(seen sse.End) (covered bool) {
	t := &r.tranche
	if t.bound == 0 {
		return true
	}
	used := r.outputSeen(seen)
	granted, credit := t.granted.Load(), t.credit.Load()
	if used >= granted+credit && t.refused.Load() {
		return false
	}
	if granted+credit >= t.bound || used < (granted+credit)/2 || t.refused.Load() || !t.busy.CompareAndSwap(false, true) {
		return true
	}
	total := min(t.bound, max(2*(granted+credit), used+leastTranche))
	post := r.g.deps.Pipeline.Post()
	post.With(func(b *pipeline.Batch) {
		r.g.deps.Ledger.Extend(b, r.key.tenant, r.record.RID, total).Then(func(g coordinator.Granted, err error) {
			switch {
			case err != nil: // it asks again
			case g.Tokens == 0:
				// Nobody refused: Redis does not know the reservation, or took this replica for dead. The stream goes on, asks
				// again later, and is charged in full.
				t.credit.Store(total - granted)
			default:
				t.refused.Store(g.Tokens <= granted)
				t.granted.Store(max(granted, g.Tokens))
				t.credit.Store(0)
			}
			t.busy.Store(false)
		})
	})
	post.Send()
	return true
}

// outputSeen is how many tokens of output have passed, as far as can be told before the engine says it.
func (r *request) outputSeen(seen sse.End) int64 {
	if seen.Usage.Completion > 0 { // an engine that counts on every chunk
		return seen.Usage.Completion
	}
	return max(int64(seen.Texts), r.tokensIn(seen.TextBytes))
}

// heldNUSD is the money that was held when the request ended.
func (r *request) heldNUSD() int64 {
	if r.tranche.bound == 0 {
		return r.admission.HeldNUSD
	}
	prompt := r.hold(0)
	return prompt + r.model.HoldNUSD(0, r.tranche.granted.Load())
}
