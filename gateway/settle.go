package gateway

import (
	"time"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
)

// end runs once, whatever happened before. The books of a response that is made in the background close later.
func (r *request) end() {
	r.freePrompt()
	if !r.goesOn() {
		r.closeBooks()
		return
	}
	r.g.enter()
	go func() {
		defer r.g.leave()
		r.follow()
		r.closeBooks()
	}()
}

// closeBooks replaces the hold by the real figures, gives the slot back, stores a good answer, all on one post-call batch
// nobody waits for; then the usage record is written. // I1, I4
func (r *request) closeBooks() {
	r.figures()
	post := r.g.deps.Pipeline.Post()
	done := post.Send
	if r.hash != "" || r.lead != nil { // keep may be another owner, and take a while
		done = post.Owner()
	}
	r.freeAlone()
	var line []byte // the record, once it is complete
	if r.asked {
		r.account()
		line = r.line()
		r.settle(line, func(s coordinator.Settlement) { r.g.deps.Ledger.Settle(post, s) })
	}
	if r.placed {
		r.g.deps.Placement.Release(post, r.release())
	}
	r.keep(post)
	done()
	if line == nil {
		line = r.line()
	}
	r.g.deps.UsageLog.Write(line)
	if r.g.deps.Observe != nil {
		r.g.deps.Observe(&r.record)
	}
}

// figures completes the record.
func (r *request) figures() {
	now := time.Now()
	if r.route.free { // what an engine says of its tokens was charged before, or is none
		r.counted = r.counted || r.served
		r.served, r.usage = false, protocol.Usage{}
	}
	rec := &r.record
	rec.Duration = now.Sub(r.start)
	rec.RoundTrips = r.batch.RoundTrips()
	rec.RedisMS = float64(r.redis.Microseconds()) / 1000
	rec.UsageSource = r.usage.Source.String()
	rec.Prompt, rec.Cached, rec.Completion = r.usage.Prompt, r.usage.Cached, r.usage.Completion
	if r.served {
		rec.CostNUSD = r.model.CostNUSD(rec.Prompt, rec.Cached, rec.Completion)
		rec.MU = r.units(rec.Prompt, rec.Cached, rec.Completion)
		if r.admission.Budgeted {
			rec.OverNUSD = max(0, rec.CostNUSD-r.heldNUSD())
		}
	} else {
		rec.CostKnown = true // nothing was used: that costs nothing, whatever the price
	}
	if !r.firstAt.IsZero() {
		rec.TTFT = r.firstAt.Sub(r.start)
		if rec.Stream && rec.Completion > 1 {
			rec.TPOT = r.lastAt.Sub(r.firstAt) / time.Duration(rec.Completion-1)
		}
	}
}

// settle hands the real figures over. What was not served is given back; a request an engine was asked for stays counted.
func (r *request) settle(line []byte, hand func(coordinator.Settlement)) {
	s := coordinator.Settlement{
		Tenant:      r.key.tenant,
		RID:         r.record.RID,
		Claim:       r.admission.Claim,
		AdmittedAt:  r.admission.AdmittedAt,
		KeepRequest: r.served || r.counted,
		Record:      line,

		NeverAdmitted: r.admission.Local,
	}
	if r.served {
		s.Prompt, s.Cached, s.Completion = r.usage.Prompt, r.usage.Cached, r.usage.Completion
		s.CostNUSD = r.record.CostNUSD
		s.Real = r.record.Outcome == coordinator.OutcomeOK && r.usage.Source == protocol.Backend
	}
	hand(s)
}

// line is the record as JSON, for the log and for the ledger, which keeps it for a while.
func (r *request) line() []byte { return r.record.AppendJSON(make([]byte, 0, usualLine)) }

// usualLine is a little more than what most records take.
const usualLine = 1280

// account says in the record where the request is charged and what was held for it.
func (r *request) account() {
	r.record.HeldTokens, r.record.HeldNUSD = r.admission.HeldTokens, r.heldNUSD()
	if r.tranche.bound > 0 {
		r.record.HeldTokens = coordinator.HeldWith(r.admission.Claim, r.tranche.granted.Load())
	}
	if r.served || r.counted {
		r.record.Charged = coordinator.ChargedBy(r.admission.Claim)
	}
}

// release says what the slot was good for.
func (r *request) release() coordinator.Release {
	refused := r.begun && r.record.Outcome == coordinator.OutcomeRejected // by the engine, before it computed anything
	release := coordinator.Release{Pool: r.ask.Pool, RID: r.ask.RID, Attempt: r.ask.Attempt, Unused: r.backend == nil || refused,
		Answered: r.served || r.counted && r.begun, Completion: r.usage.Completion}
	if r.record.Stream && r.served {
		release.TTFT = r.firstAt.Sub(r.sentAt)
	}
	return release
}
