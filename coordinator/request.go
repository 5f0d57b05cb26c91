// Package coordinator is what the fleet shares through Redis: the ledger (admission, settlement), placement (slots,
// queue), the response cache, the directory of keys and policies, and the beat of each replica. One file per owner;
// keys.go names every key.
package coordinator

import "time"

// Request is what the owners need to know of one client request, before Redis was asked.
type Request struct {
	RID       string // 32 hex digits, the request's own id
	RequestID string // the label the client sees
	Tenant    string // from the shape of the key
	KeyHash   string // SHA-256 of the whole key as sent, hex
	Model     string // public name, an alias already replaced by its target
	Route     string
	Known     bool // in the catalogue or seen in Consul
	Priced    bool // a price is known
	Stream    bool
	EndUser   string
	Tags      []string

	PromptTokens int64 // estimate of the prompt, for token limits
	OutputCap    int64 // declared cap × choices; 0: none declared
	OutputUsual  int64 // usual length of an answer, for token limits
	HoldNUSD     int64 // money to hold: the prompt at its bound and the output at its cap

	// PromptBytes is all that can become prompt. Above 0 the ledger estimates from what it has learned, and PromptTokens and
	// OutputUsual are not read.
	PromptBytes int64
	ImageTokens int64 // tokens of the prompt's images at most; they come on top of PromptBytes, and nothing is learned from them
	Choices     int64 // answers asked for; 0 is 1

	// A stream whose output is held in tranches: OutputBound above 0. HoldNUSD is then not read.
	OutputBound     int64 // tokens, the most the answers may have together
	OutputPricePico int64 // pico-dollars per token of output
	PromptHoldNUSD  int64 // money for the prompt at its bound
	TrancheLeast    int64 // tokens of the first tranche at least: two seconds of the stream
}

// InTranches is true for a stream whose output is held piece by piece.
func (r Request) InTranches() bool { return r.Stream && r.OutputBound > 0 }

// Verdict is the outcome of an admission. The zero value is not an outcome.
type Verdict int

// Verdicts, in the order in which they are checked.
const (
	Admitted Verdict = iota + 1
	KeyUnknown
	KeyDisabled
	KeyExpired
	ModelNotAllowed
	ModelNotFound
	RequestsExceeded
	TokensExceeded
	ParallelExceeded
	PriceMissing
	BudgetExceeded
	PolicyUnreadable // a record that cannot be read refuses
	AlreadySettled   // this rid was settled before it was admitted
)

// Admission is the ledger's answer.
type Admission struct {
	Verdict Verdict

	// Identity; empty for an unknown key.
	KeyID, KeyName, Team, User string

	// Claim is the reservation as Redis filed it. It goes back unread with the settlement.
	Claim      string
	AdmittedAt time.Time // Redis' clock
	HeldTokens int64
	HeldNUSD   int64
	Budgeted   bool  // some scope has a budget: the output must be bounded
	HeldOutput int64 // tokens of output held, for a stream in tranches; 0 for all others

	// What was learned, for a request with PromptBytes; 0: unknown.
	BytesPerTokenMilli int64 // thousandths of bytes per token of prompt, for the model
	UsualOutput        int64 // tokens of one answer, for key and model

	Tags     []string // of the key's policy, beyond those of the request
	Priority int      // of the first scope that sets it, 0 to 9; -1: none
	Isolate  bool     // some scope wants the prefix cache kept apart
	Local    bool     // let in without Redis: AdmitLocally

	// Refusal: the first scope that refused.
	Scope, ScopeID string
	Limit          int64 // requests, tokens, running requests or nano-dollars
	Remaining      int64
	Reset          time.Duration // until the refusal may end; 0: never by itself

	// The tightest request and token limit of an admitted or refused request, for the headers; Limit < 0: none.
	Requests, Tokens Window
}

// Window is the state of one sliding minute after this request.
type Window struct {
	Limit, Remaining int64
	Reset            time.Duration
}

// Settlement replaces a hold by the real figures.
type Settlement struct {
	Tenant, RID, Claim string
	AdmittedAt         time.Time // zero: the admission's reply was lost
	KeepRequest        bool      // the request stays counted
	Prompt, Cached     int64     // tokens
	Completion         int64     // tokens
	CostNUSD           int64
	Record             []byte // the usage record, one JSON object
	Real               bool   // the tokens are the engine's own figures of one whole answer: they are learned from
	NeverAdmitted      bool   // let in without Redis: charged in full whatever its age
}

// Granted is what the hold of a stream covers.
type Granted struct {
	Tokens int64 // of output, in all; 0: not open any more, or not held in tranches
}

// Ask is one wish for a slot.
type Ask struct {
	RID        string
	Attempt    int // 1, 2, …; a later attempt gives back what an earlier one holds
	Pool       string
	Tenant     string
	Model      string
	MU         int64       // thousandths of a model unit: all of the request, nothing of it cached
	Candidates []Candidate // in ring order: of equals the first is taken
	Not        string      // backend of the attempt before, "" for none
	Only       bool        // its one candidate is the only backend that will do, also after a wait; Not is "" then
	Wait       bool        // join the queue when no slot is free

	// Zero where they are not known.
	Class        int   // priority in the queue, 0 to 9, lower first
	OutputMU     int64 // the part of MU that is no work on the prompt: output, and what any request counts; the rest is the prompt's
	PromptTokens int64
	WarmMU       int64 // thousandths of a model unit saved by each prompt token that is warm
	Prefix       Prefix
}

// Candidate is a backend in order of preference.
type Candidate struct {
	ID    string
	Slots int
}

// PlaceState is the outcome of an Ask. The zero value is not an outcome.
type PlaceState int

// Outcomes of an Ask.
const (
	Placed    PlaceState = iota + 1
	Queued               // wait with Placement.Await
	QueueFull            // also when Wait was false and no slot was free
	NoBackend            // no candidate can take it, now or later
)

// Place is placement's answer.
type Place struct {
	State   PlaceState
	Backend string // when Placed
	Ahead   int64  // waiting requests whose turn is first, when Queued

	// When Placed at once.
	Matched  int64         // prompt tokens that are warm there
	Expected time.Duration // until its prompt is computed, as far as the fleet knows
}

// Release says what a request gives back, and how it went. Only Pool, RID and Attempt must be known.
type Release struct {
	Pool, RID string
	Attempt   int // what a later one holds stays

	Unused     bool          // it was never sent to the backend
	Answered   bool          // the backend gave a first token, or an answer
	TTFT       time.Duration // from sending to the first token of a stream; 0: not known
	Completion int64         // tokens generated
}
