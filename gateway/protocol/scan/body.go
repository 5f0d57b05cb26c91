// Package scan reads what the gateway has to know from a request's body in one pass, without a tree and without an
// allocation per message, and edits the body by splicing. A field that two readers could read differently is refused.
//
// Invariants:
//
//	I1. A body is accepted only if it is one JSON object in valid UTF-8, nested at most lex.MaxDepth deep; escapes and
//	    control characters inside strings nobody reads here are the engine's to judge (TestHostileBodies, FuzzScan).
//	I2. A top-level field the gateway acts on appears once and is written without escapes, else the fault names it; so
//	    what is checked here is what the engine reads (TestRepeatedFields, TestEscapedNames, FuzzScan).
//	I3. Below the top level, repeated names pass, except in stream_options (TestRepeatedBelowTheTop).
//	I4. The body after the edits decodes to the body before them with exactly the wanted fields changed; every byte
//	    outside the edits is the client's (TestEditsChangeWhatTheySay, FuzzScan).
//	I5. PromptBytes is never less than the bytes of the texts in the messages, and image data is not in it
//	    (TestPromptBytes, TestPromptBytesCannotBeDodged).
//	I6. A body's scan allocates for Model and User only, however many messages it has (TestAllocations).
//	I7. Cap, choices and prompts multiply without overflow, or ok is false (TestOutputCap).
//	I8. Only the caps an engine reads on the route bound an answer (TestOnlyTheRoutesOwnCapsCount).
//	I9. A form is accepted only if it has one reading: its delimiters, part heads and the fields the gateway acts on
//	    mean the same to every reader, and its model is in the body as it is returned (TestHostileForms, FuzzMultipart).
//	I10. Whose a message is, is read as a reader does who takes the last of several names alike (TestAnswers, FuzzScan).
package scan

import (
	"math"

	"github.com/headgate/headgate/gateway/protocol"
)

// Span is a range of the body, from included, to not. The zero value means the field is absent.
type Span struct{ From, To int }

// Present reports whether the field is in the body.
func (s Span) Present() bool { return s.To > 0 }

// Body is what was found. It holds no part of the body's bytes, so the buffer may be reused while it is kept; its
// offsets are good only as long as the buffer is.
type Body struct {
	Route   Route
	Model   string // decoded, never empty
	ModelAt Span   // with the quotes

	Stream          bool
	StreamAt        Span
	IncludeUsage    bool // the client asked for usage in the stream
	IncludeUsageAt  Span // the value inside stream_options
	StreamOptionsAt Span // the value, null or an object
	// StreamOptionsEmpty: null, or an object without members.
	StreamOptionsEmpty bool

	// Caps on the answer in tokens per choice, -1 where absent or null.
	MaxTokens, MaxCompletionTokens, MaxOutputTokens       int64
	MaxTokensAt, MaxCompletionTokensAt, MaxOutputTokensAt Span

	N, BestOf   int64 // 1 where absent
	Prompts     int64 // of the field prompt; 1 where absent
	User        string
	Priority    int64 // the client's, 0 where absent
	PriorityAt  Span
	CacheSalt   string // decoded; "" where absent or null
	CacheSaltAt Span
	ToolsAt     Span // the value of tools or functions; of both, the later

	Images      int64 // image parts
	PromptBytes int64 // upper bound of the prompt's tokens without images and template: see size.go
	Messages    int   // of the field messages, or for Responses of a list in input

	MessagesAt      Span
	FirstMessageEnd int     // offset behind the first message; 0 without one
	MessageEnds     [4]int  // offsets behind the last min(4, Messages) messages, in order
	Answers         [4]bool // which of them end what the model wrote
	SystemAt        Span    // the value of system or instructions where it is not null
	PromptAt        Span    // the value of prompt, or of an input that is no list of messages

	// Responses only.
	Previous   string // previous_response_id, decoded; "" where absent or null
	Background bool   // the engine goes on without the client
	Unstored   bool   // store is false: nobody can ask for the response later

	InsertAt int  // right behind the opening brace
	Empty    bool // the object has no members
}

// Fault says why a body is refused.
type Fault struct {
	Code    string // protocol.CodeInvalidJSON or protocol.CodeInvalidField
	Field   string // of an invalid field, as in stream_options.include_usage
	Message string
	Offset  int // in bytes
}

// Reply is the fault as the client sees it.
func (f *Fault) Reply() protocol.Error {
	if f.Code == protocol.CodeInvalidField {
		return protocol.InvalidField(f.Field, f.Message)
	}
	return protocol.InvalidJSON(f.Message)
}

// Opening is where the prompt begins: what requests that share a prefix have in common. It is the system prompt where
// the route has a field for it, else the first message, else the prompt. The zero value: the body has none of them.
func (b *Body) Opening() Span {
	switch {
	case b.SystemAt.Present():
		return b.SystemAt
	case b.FirstMessageEnd > 0:
		return Span{b.MessagesAt.From, b.FirstMessageEnd}
	}
	return b.PromptAt
}

// Choices is how many answers the request asks for: the larger of n and best_of, for each prompt. It is at least 1;
// ok is false if it overflows.
func (b *Body) Choices() (n int64, ok bool) {
	return multiply(max(b.N, b.BestOf, 1), max(b.Prompts, 1))
}

// OutputCap is how many tokens the answers may have together. Of several caps the largest counts, since engines differ
// on which one wins. declared is false if the client gave none, then tokens is 0; on a route whose answers have no
// tokens it is true. ok is false if the product overflows.
func (b *Body) OutputCap() (tokens int64, declared, ok bool) {
	choices, ok := b.Choices()
	if !b.Route.Generates() {
		return 0, true, ok
	}
	most := int64(-1)
	limits, n := b.limits()
	for _, l := range limits[:n] {
		most = max(most, l.value)
	}
	if most < 0 {
		return 0, false, ok
	}
	if !ok {
		return 0, true, false
	}
	tokens, ok = multiply(most, choices)
	return tokens, true, ok
}

// multiply works for numbers that are not negative.
func multiply(a, b int64) (int64, bool) {
	if b > 0 && a > math.MaxInt64/b {
		return 0, false
	}
	return a * b, true
}
