package scan

// Route says what the body was posted to: which fields the engine reads there, and what its answer consists of.
type Route uint8

const (
	Chat Route = iota // also the zero value
	Completions
	Responses
	Messages
	Embeddings // and rerank, score: a prompt, and an answer without tokens
	Tokens     // tokenize, detokenize: not even a prompt, for nothing is computed
	Audio      // a form: see Multipart
)

// Generates reports whether answers of the route consist of tokens.
func (r Route) Generates() bool { return r != Embeddings && r != Tokens }

// completionsCap is what the protocol gives a completion whose body names no cap.
const completionsCap = 16

// DefaultCap is how many tokens an answer may have by the route's own rule if the body names no cap; 0: as many as the
// context has room for.
func (b *Body) DefaultCap() int64 {
	if b.Route == Completions && !b.MaxTokensAt.Present() {
		return completionsCap
	}
	return 0
}

// limit is a field that bounds an answer, and its value, -1 where absent or null.
type limit struct {
	name  string
	at    Span
	value int64
}

// limits are the n fields the engine reads as a cap on this route; the first is the one to add where none is. What it
// ignores bounds nothing: who believed it would let an endless answer in under a small hold. // I8
func (b *Body) limits() (l [2]limit, n int) {
	maxTokens := limit{"max_tokens", b.MaxTokensAt, b.MaxTokens}
	switch b.Route {
	case Chat:
		return [2]limit{maxTokens, {"max_completion_tokens", b.MaxCompletionTokensAt, b.MaxCompletionTokens}}, 2
	case Completions, Messages:
		return [2]limit{maxTokens}, 1
	case Responses:
		return [2]limit{{"max_output_tokens", b.MaxOutputTokensAt, b.MaxOutputTokens}}, 1
	}
	return l, 0
}

// addsCap reports whether a cap may be written into a body without one. Messages demands a cap of its clients: the
// engine's answer to a body without one stays the engine's.
func (r Route) addsCap() bool { return r == Chat || r == Completions || r == Responses }

// hasStreamOptions reports whether usage in a stream is asked for by stream_options.
func (r Route) hasStreamOptions() bool { return r == Chat || r == Completions }
