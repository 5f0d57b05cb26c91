package gateway

import (
	"cmp"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol/scan"
)

// defaultOutputTokens bounds an answer for which neither the client nor the catalogue nor an engine says anything.
const defaultOutputTokens = 4096

// usualOutputTokens is the length of an answer before anything was learned.
const usualOutputTokens = 256

// bytesPerToken turns bytes of text into an estimate of tokens before anything was learned.
const bytesPerToken = 4

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
	return max(1, r.tokensIn(r.scan.PromptBytes)+r.imageTokens())
}

// tokensIn estimates how many tokens so many bytes of text are, rounded up: by what was learned of the model, else by the
// usual figure.
func (r *request) tokensIn(bytes int64) int64 {
	milli := r.admission.BytesPerTokenMilli
	if milli <= 0 {
		milli = bytesPerToken * 1000
	}
	return (bytes*1000 + milli - 1) / milli
}

// imageTokens is the most tokens the prompt's images may become.
func (r *request) imageTokens() int64 { return r.scan.Images * r.model.ImageTokens }

// units is the load of so many tokens in thousandths of a model unit.
func (r *request) units(prompt, cached, completion int64) int64 {
	u := r.model.UnitsOrDefault()
	return u.Request + u.Prompt*(prompt-cached) + u.Cached*cached + u.Completion*completion + u.Image*r.scan.Images
}
