package coordinator

import (
	"github.com/headgate/headgate/scripts/lua"
)

// Refusal is what said no to a request, for whoever asks why.
type Refusal struct {
	By  string // scope:id; "" when no record did
	For string // rpm, tpm, parallel, budget: the figures count; models, disabled, expires_at, price, record: they are 0

	Limit, Remaining int64 // requests, tokens, running requests or nano-dollars
	ResetMS          int64 // until it may end; 0: never by itself
}

// refusedFor names the field of a policy that a verdict is about; a verdict that is none of these has no Refusal.
var refusedFor = map[Verdict]string{
	KeyDisabled: "disabled", KeyExpired: "expires_at", ModelNotAllowed: "models", RequestsExceeded: "rpm", TokensExceeded: "tpm",
	ParallelExceeded: "parallel", PriceMissing: "price", BudgetExceeded: "budget", PolicyUnreadable: "record",
}

// RefusalOf is what a said no to; nil when it did not, or no policy did.
func RefusalOf(a Admission) *Refusal {
	what := refusedFor[a.Verdict]
	if what == "" {
		return nil
	}
	r := &Refusal{For: what}
	if a.Scope != "" {
		r.By = a.Scope + ":" + a.ScopeID
	}
	switch a.Verdict {
	case RequestsExceeded, TokensExceeded, ParallelExceeded, BudgetExceeded:
		r.Limit, r.Remaining, r.ResetMS = a.Limit, max(a.Remaining, 0), a.Reset.Milliseconds()
	}
	return r
}

// ChargedBy is the spend counters of a claim, as <scope>:<id>:<period>; nil for a claim that cannot be read.
func ChargedBy(claim string) []string { return lua.ChargedBy(claim) }

// HeldWith is the tokens of a claim whose hold has grown to cover so many tokens of output; 0 for a claim that cannot be read.
func HeldWith(claim string, output int64) int64 {
	c, err := lua.ParseClaim(claim)
	if err != nil {
		return 0
	}
	return max(c.Tokens, c.Prompt+output)
}

// refusal writes the member of that name.
func (w *line) refusal(r *Refusal) {
	if r == nil {
		w.raw("refusal", "null")
		return
	}
	o := line{dst: []byte{'{'}}
	o.text("by", r.By)
	o.text("for", r.For)
	o.number("limit", r.Limit)
	o.number("remaining", r.Remaining)
	o.number("reset_ms", r.ResetMS)
	w.raw("refusal", string(append(o.dst, '}')))
}
