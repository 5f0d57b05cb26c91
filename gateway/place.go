package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/pipeline"
)

// declarePlacement asks for a slot on one of the backends that could serve the request now: on the holder of the response
// it continues, if it continues one. nil: on none.
func (r *request) declarePlacement() *pipeline.Handle[coordinator.Place] {
	pool, served := r.g.deps.Cluster.Pool(r.model.Pool)
	switch {
	case !r.known || !served:
		return nil
	case r.scan.Previous == "":
		r.backends = pool.CandidatesFor(r.model.Name, r.affinity(), cluster.MaxCandidates)
	case r.holder != nil && r.holder.Usable():
		r.backends = []*cluster.Backend{r.holder}
	}
	return r.askFor(1, "")
}

// firstCheck bounds how long a request waits for the first look at a backend.
const firstCheck = time.Second

// await holds a request that nobody could serve while a backend that is registered, or has moved, is looked at for the first
// time: where one takes another's place, what comes between the two is not refused.
func (r *request) await() {
	var late <-chan time.Time
	for undecided := r.g.deps.Cluster.Undecided(); undecided != nil && !r.servable(); undecided = r.g.deps.Cluster.Undecided() {
		if late == nil {
			late = time.After(firstCheck)
		}
		select {
		case <-undecided:
		case <-late:
			return
		case <-r.ctx.Done():
			return
		}
	}
}

func (r *request) servable() bool {
	r.resolve() // its model may be known by now
	pool, served := r.g.deps.Cluster.Pool(r.model.Pool)
	return r.known && served && len(pool.CandidatesFor(r.model.Name, 0, 1)) > 0
}

// askFor declares one wish for a slot; nil when no backend is left to ask for.
func (r *request) askFor(attempt int, not string) *pipeline.Handle[coordinator.Place] {
	candidates := make([]coordinator.Candidate, 0, len(r.backends))
	for _, b := range r.backends {
		candidates = append(candidates, coordinator.Candidate{ID: b.ID, Slots: b.Slots})
	}
	if len(candidates) == 0 {
		return nil
	}
	units := r.model.UnitsOrDefault()
	r.ask = coordinator.Ask{
		RID:        r.record.RID,
		Attempt:    attempt,
		Pool:       r.model.Pool,
		Tenant:     r.key.tenant,
		Model:      r.model.Name,
		MU:         r.units(r.promptEstimate(), 0, r.usualOutput()),
		Candidates: candidates,
		Not:        not,
		Only:       r.holder != nil,
		Wait:       true,

		Class:        queueClass(r.hint.Priority),
		OutputMU:     units.Request + units.Completion*r.usualOutput(),
		PromptTokens: r.promptEstimate(),
		WarmMU:       units.Prompt, // whatever it is weighed at: the engine computes nothing of it
		Prefix:       r.prefix(),
	}
	r.placed = true
	r.record.Candidates = len(candidates)
	return r.g.deps.Placement.Place(&r.batch, r.ask)
}

// placedBy is placement's part: a slot, a place in the queue, or no.
func (r *request) placedBy(h *pipeline.Handle[coordinator.Place]) *refusal {
	if h == nil {
		return refusalOf(protocol.NoBackend(r.model.Name))
	}
	place, err := h.Wait(r.ctx)
	if err != nil {
		if r.placeAlone(err) {
			return nil
		}
		return r.withoutRedis(err)
	}
	r.place = place
	r.record.PrefixMatched, r.record.Expected = place.Matched, place.Expected
	switch place.State {
	case coordinator.QueueFull:
		return refusalOf(protocol.QueueFull())
	case coordinator.NoBackend:
		return refusalOf(protocol.NoBackend(r.model.Name))
	}
	return nil
}

// queue waits for a grant when no slot was free. Its refusals give everything back.
func (r *request) queue() *refusal {
	if r.place.State != coordinator.Queued {
		return nil
	}
	since := time.Now()
	if r.queueUntil.IsZero() {
		r.queueUntil = since.Add(r.g.cfg.QueueWait)
	}
	ctx, cancel := context.WithDeadline(r.ctx, r.queueUntil)
	defer cancel()
	stop := context.AfterFunc(r.g.closing, cancel) // a drain ends the wait early
	defer stop()
	place, err := r.g.deps.Placement.Await(ctx, r.ask)
	r.record.QueueMS += time.Since(since).Milliseconds()
	switch {
	case err == nil:
		r.place, r.record.PrefixMatched = place, place.Matched
		return nil
	case r.ctx.Err() != nil:
		return r.left()
	case r.g.closing.Err() != nil:
		return refusalOf(protocol.Shutdown())
	case errors.Is(err, coordinator.ErrPlaceAgain): // Redis lost the place in the queue, not the request
		return r.placeAgain("")
	}
	return refusalOf(protocol.StayedBusy())
}

// maxAffinity is how much of a prompt's beginning is looked at where it is not a message, in bytes: prompts that differ
// early share little, and those that share so much share a home.
const maxAffinity = 2 << 10

// affinity is the same for requests that begin alike, so that they meet the same warm prefix: the model, and the system
// prompt, first message or beginning of the prompt.
func (r *request) affinity() uint64 {
	at := r.scan.Opening()
	if r.scan.FirstMessageEnd == 0 {
		at.To = min(at.To, at.From+maxAffinity)
	}
	if !at.Present() {
		at.To = min(len(r.body), maxAffinity)
	}
	return xxh3.HashSeed(r.body[at.From:at.To], xxh3.HashString(r.model.Name))
}

// enginePriority is what a backend that schedules by priority is told: the request's class in the queue, or the client's own
// number where that puts it further back, as no client may pass others by its own word. Another backend refuses any number
// but 0, so that is what it is told.
func (r *request) enginePriority(b *cluster.Backend) int64 {
	if !b.Priority {
		return 0
	}
	return max(int64(queueClass(r.admission.Priority)), r.scan.Priority)
}

// defaultClass is the place in the queue of a key whose policy sets no priority: in the middle, so that a policy can put
// others before it and behind it.
const defaultClass = 5

func queueClass(priority int) int {
	if priority < 0 {
		return defaultClass
	}
	return priority
}

// prefix names the beginnings of the prompt that a backend may still have computed. It is made once: another attempt may
// come when the prompt is gone.
func (r *request) prefix() coordinator.Prefix {
	if !r.printed {
		parts := coordinator.PromptParts{Model: r.model.Name, Salt: r.scan.CacheSalt, Tokens: r.promptEstimate()}
		if own := r.salt(r.hint.IsolatePrefix, r.hint.Team); own != "" {
			parts.Salt = own
		}
		parts.Tools = r.body[r.scan.ToolsAt.From:r.scan.ToolsAt.To]
		if at := r.scan.MessagesAt; at.Present() {
			parts.Text = r.body[at.From:at.To]
			parts.Lead = r.body[r.scan.SystemAt.From:r.scan.SystemAt.To]
			ends := [len(r.scan.MessageEnds)]coordinator.MessageEnd{}
			parts.Ends = ends[:0]
			for i, end := range r.scan.MessageEnds[:min(r.scan.Messages, len(r.scan.MessageEnds))] {
				parts.Ends = append(parts.Ends, coordinator.MessageEnd{At: end - at.From, Answer: r.scan.Answers[i]})
			}
		} else if at := r.scan.Opening(); at.Present() {
			parts.Text = r.body[at.From:at.To]
		}
		r.prints, r.printed = coordinator.Fingerprints(parts), true
	}
	return r.prints
}
