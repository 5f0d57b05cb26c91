package gateway

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/scan"
	"github.com/headgate/headgate/pipeline"
)

// defaultOutputTokens bounds an answer for which neither the client nor the catalogue nor an engine says anything.
const defaultOutputTokens = 4096

// usualOutputTokens is the length of an answer before anything was learned.
const usualOutputTokens = 256

// bytesPerToken turns a prompt's bytes into an estimate of tokens before anything was learned.
const bytesPerToken = 4

// decide asks the ledger, the cache and placement in one flush, and decides in fixed order: identity, model, limits,
// budget, cache, placement. A key this replica has not seen pass is admitted alone first, so that a flood of made-up
// keys takes no slots.
func (r *request) decide() *refusal {
	started := time.Now()
	defer func() { r.redis += time.Since(started) }()
	hint, seen := r.g.deps.Ledger.Seen(r.key.hash)
	if !seen {
		if no := r.introduce(); no != nil {
			return no
		}
		hint = coordinator.Hint{Tenant: r.key.tenant, Team: r.admission.Team}
	}
	r.hint, r.key.tenant = hint, hint.Tenant
	var admitted *pipeline.Handle[coordinator.Admission]
	if seen {
		admitted = r.declareAdmission()
	}
	cached := r.declareCache()
	holder := r.declarePrevious()
	leader := r.joinFlight()
	var placed *pipeline.Handle[coordinator.Place]
	if leader == nil {
		placed = r.declarePlacement()
	}

	if seen {
		if no := r.admitted(admitted); no != nil {
			return no
		}
	}
	if r.hit = r.cached(cached); r.hit != nil {
		return nil
	}
	if leader != nil { // an equal request is in flight here
		var no *refusal
		if r.hit, no = r.followFlight(leader); r.hit != nil || no != nil {
			return no
		}
		return r.placedBy(r.declarePlacement()) // it had nothing to share: one more wait
	}
	if r.scan.Previous != "" && placed == nil { // one more wait: this replica does not remember the response
		if no := r.findHolder(holder, r.scan.Previous, "previous_response_id"); no != nil {
			return no
		}
		placed = r.declarePlacement()
	}
	return r.placedBy(placed)
}

// introduce admits a key this replica has not seen: in the tenant its shape names, and at the same time it is looked for
// among the imported keys, which may have any shape and win.
func (r *request) introduce() *refusal {
	alias := r.g.deps.Ledger.Alias(r.batch, r.key.hash)
	var guess *pipeline.Handle[coordinator.Admission]
	guessed := r.key.tenant
	if guessed != "" {
		guess = r.declareAdmission()
	}
	tenant, err := alias.Wait(r.ctx)
	switch {
	case err != nil && guess == nil:
		return r.withoutRedis(err)
	case err == nil && tenant != "" && tenant != guessed:
		r.giveBack(guess)
		r.key.tenant = tenant
		return r.admitted(r.declareAdmission())
	case guess == nil:
		return unauthorized()
	}
	return r.admitted(guess)
}

// giveBack returns what a wrong guess of the tenant may have reserved there.
func (r *request) giveBack(guess *pipeline.Handle[coordinator.Admission]) {
	if guess == nil {
		return
	}
	a, err := guess.Wait(r.ctx)
	if err == nil && a.Verdict != coordinator.Admitted {
		return
	}
	post := r.g.deps.Pipeline.Post()
	r.g.deps.Ledger.Settle(post, coordinator.Settlement{Tenant: r.key.tenant, RID: r.record.RID, Claim: a.Claim, AdmittedAt: a.AdmittedAt})
	post.Send()
}

// declareAdmission asks the ledger.
func (r *request) declareAdmission() *pipeline.Handle[coordinator.Admission] {
	r.record.Tenant = r.key.tenant
	r.asked = r.known
	return r.g.deps.Ledger.Admit(r.batch, r.admissionRequest())
}

// admissionRequest says what the request would use at most.
func (r *request) admissionRequest() coordinator.Request {
	bound, _ := r.outputBound()
	declared, _, _ := r.scan.OutputCap()
	ask := coordinator.Request{
		RID:          r.record.RID,
		RequestID:    r.record.RequestID,
		Tenant:       r.key.tenant,
		KeyHash:      r.key.hash,
		Model:        r.model.Name,
		Route:        r.record.Route,
		Known:        r.known,
		Priced:       r.model.Priced || r.route.free,
		Stream:       r.scan.Stream,
		EndUser:      r.scan.User,
		Tags:         r.record.Tags,
		PromptTokens: r.promptEstimate(),
		OutputCap:    declared,
		OutputUsual:  r.usualOutput(),
		HoldNUSD:     r.hold(bound),
	}
	if r.route.kind.Generates() {
		ask.Choices = r.choices()
		if r.promptIsText() {
			ask.PromptBytes, ask.ImageTokens = r.scan.PromptBytes, r.imageTokens()
		}
		if r.scan.Stream && !r.scan.Background { // held as it comes: nobody's budget is frozen by a large cap
			ask.OutputBound, ask.OutputPricePico = bound, r.model.Price.Completion
			ask.PromptHoldNUSD, ask.TrancheLeast = r.hold(0), leastTranche
		}
	}
	return ask
}

// hold is the money set aside: the prompt at its bound and the answers at theirs.
func (r *request) hold(output int64) int64 {
	if r.route.free {
		return 0
	}
	prompt := r.scan.PromptBytes + r.model.TemplateTokens + r.imageTokens()
	if r.scan.Previous != "" { // what was said before is in the engine, not in the body
		prompt = max(prompt, r.contextWindow())
	}
	return r.model.HoldNUSD(prompt, output)
}

// promptIsText reports whether the prompt is what the body says, so that bytes and tokens can be compared: it is not where
// a response is continued or a sound is heard.
func (r *request) promptIsText() bool { return r.scan.Previous == "" && r.route.kind != scan.Audio }

// outputBound is the most tokens the answers may have together: the client's cap, else per choice the route's, the
// catalogue's, or the shortest context of the pool's engines. It stays the same for one request.
func (r *request) outputBound() (total, perChoice int64) {
	if total, declared, _ := r.scan.OutputCap(); declared {
		return total, 0
	}
	if r.unsaid == 0 {
		r.unsaid = cmp.Or(r.scan.DefaultCap(), r.model.MaxOutputTokens, r.shortestContext(), defaultOutputTokens)
	}
	return r.unsaid * r.choices(), r.unsaid
}

func (r *request) shortestContext() int64 {
	if pool, served := r.g.deps.Cluster.Pool(r.model.Pool); served {
		return pool.ShortestContext(r.model.Name)
	}
	return 0
}

// longestOutput is the most tokens a hold can cover, by the ledger's own limit.
const longestOutput = 1_000_000_000

// streamBound is how far the hold of a stream may grow: an engine that nobody told a cap may go on beyond outputBound.
func (r *request) streamBound() int64 {
	total, perChoice := r.outputBound()
	if perChoice > 0 {
		return longestOutput
	}
	return total
}

// usualOutput is how long the answers would be before anything was learned.
func (r *request) usualOutput() int64 {
	if !r.route.kind.Generates() {
		return 0
	}
	return usualOutputTokens * r.choices()
}

func (r *request) choices() int64 {
	n, _ := r.scan.Choices()
	return n
}

func (r *request) promptEstimate() int64 {
	if r.route.free {
		return 0
	}
	text := r.scan.PromptBytes / bytesPerToken
	if learned := r.admission.BytesPerTokenMilli; learned > 0 {
		text = r.scan.PromptBytes * 1000 / learned
	}
	return max(1, text+r.imageTokens())
}

// imageTokens is the most tokens the prompt's images may become.
func (r *request) imageTokens() int64 { return r.scan.Images * r.model.ImageTokens }

// admitted is the ledger's part of the decision. A reply that did not come may have been applied: r.asked makes end
// settle it at zero.
func (r *request) admitted(h *pipeline.Handle[coordinator.Admission]) *refusal {
	a, err := h.Wait(r.ctx)
	if err != nil {
		r.asked = r.asked && !errors.Is(err, coordinator.ErrNotAsked)
		known := false
		if a, known = r.admitAlone(err); !known {
			return r.withoutRedis(err)
		}
	}
	r.admission = a
	r.record.KeyID, r.record.Team, r.record.User = a.KeyID, a.Team, a.User
	if a.Verdict == coordinator.Admitted {
		r.record.Tags = append(r.record.Tags, a.Tags...)
		if a.HeldOutput > 0 {
			r.tranche.bound = r.streamBound()
			r.tranche.granted.Store(a.HeldOutput)
		}
		return nil
	}
	r.asked = false // a refusal reserved nothing
	if a.Verdict == coordinator.PolicyUnreadable {
		r.g.unreadable.warn(r.g.deps.Log, r.key.tenant, a, time.Now())
	}
	if a.KeyID == "" {
		r.record.Tenant = "" // a made-up key belongs to nobody
	}
	return refusalOfVerdict(a, r.scan.Model)
}

func (r *request) withoutRedis(err error) *refusal {
	if r.ctx.Err() != nil {
		return r.left()
	}
	r.g.deps.Log.Debug().Err(err).Str("rid", r.record.RID).Msg("decision failed")
	return refusalOf(protocol.RedisUnavailable())
}

// declareCache declares the read of a stored answer, for the requests the model's catalogue entry lets be cached.
func (r *request) declareCache() *pipeline.Handle[*coordinator.Answer] {
	if !r.route.cache || r.model.Cache.TTL <= 0 {
		return nil
	}
	if r.hash = cacheHash(r.body, r.hint.Team, r.scan.User, r.record.Route, r.model.Name); r.hash == "" {
		return nil
	}
	r.record.Cache = coordinator.CacheMiss
	return r.g.deps.Cache.Lookup(r.batch, r.key.tenant, r.hash)
}

// joinFlight is the equal request to follow, if the catalogue wants equal requests to be sent once; nil where there is none,
// and then others follow this one.
func (r *request) joinFlight() (leader *flight) {
	if r.hash == "" || !r.model.Cache.Coalesce {
		return nil
	}
	r.flight = r.key.tenant + ":" + r.hash
	r.lead, leader = r.g.flights.join(r.flight)
	return leader
}

// cached is the cache's part: a late or broken entry is a miss, and one of another team is none of this request's.
func (r *request) cached(h *pipeline.Handle[*coordinator.Answer]) *coordinator.Answer {
	if h == nil {
		return nil
	}
	entry, err := h.Wait(r.ctx)
	if err != nil || entry == nil {
		return nil
	}
	if r.hint.Team != r.admission.Team {
		r.hash = "" // the team changed: neither served from there nor stored there
		return nil
	}
	return r.inForm(entry)
}

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

// askFor declares one wish for a slot; nil when no backend is left to ask for.
func (r *request) askFor(attempt int, not string) *pipeline.Handle[coordinator.Place] {
	candidates := make([]coordinator.Candidate, 0, len(r.backends))
	for _, b := range r.backends {
		candidates = append(candidates, coordinator.Candidate{ID: b.ID, Slots: b.Slots})
	}
	if len(candidates) == 0 {
		return nil
	}
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
		OutputMU:     r.model.UnitsOrDefault().Completion * r.usualOutput(),
		PromptTokens: r.promptEstimate(),
		WarmMU:       r.model.UnitsOrDefault().Prompt - r.model.UnitsOrDefault().Cached,
		Prefix:       r.prefix(),
	}
	r.placed = true
	return r.g.deps.Placement.Place(r.batch, r.ask)
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
	r.record.PrefixMatched = place.Matched
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
	backend, err := r.g.deps.Placement.Await(ctx, r.ask)
	r.record.QueueMS += time.Since(since).Milliseconds()
	switch {
	case err == nil:
		r.place = coordinator.Place{State: coordinator.Placed, Backend: backend}
		return nil
	case r.ctx.Err() != nil:
		return r.left()
	case r.g.closing.Err() != nil:
		return refusalOf(protocol.Shutdown())
	case errors.Is(err, coordinator.ErrPlaceAgain): // Redis lost the place in the queue, not the request
		return r.placeAgain("")
	}
	return refusalOf(protocol.QueueFull()) // waited as long as may be
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
	if r.prints == nil {
		parts := coordinator.PromptParts{Model: r.model.Name, Tokens: r.promptEstimate()}
		if at := r.scan.MessagesAt; at.Present() {
			parts.Text = r.body[at.From:at.To]
			for _, end := range r.scan.MessageEnds[:min(r.scan.Messages, len(r.scan.MessageEnds))] {
				parts.Ends = append(parts.Ends, end-at.From)
			}
		} else if at := r.scan.Opening(); at.Present() {
			parts.Text = r.body[at.From:at.To]
		}
		prints := coordinator.Fingerprints(parts)
		r.prints = &prints
	}
	return *r.prints
}

// units is the load of so many tokens in thousandths of a model unit.
func (r *request) units(prompt, cached, completion int64) int64 {
	u := r.model.UnitsOrDefault()
	return u.Request + u.Prompt*(prompt-cached) + u.Cached*cached + u.Completion*completion + u.Image*r.scan.Images
}
