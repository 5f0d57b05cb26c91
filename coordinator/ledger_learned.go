package coordinator

import "github.com/headgate/headgate/scripts/lua"

// leastLesson is the bytes of prompt below which nothing is learned from a request: what a chat template adds would
// weigh more than the text.
const leastLesson = 200

// bytesPerToken is how many bytes of text a token is taken for before anything was learned.
const bytesPerToken = 4

// bytes is the prompt's weight in bytes: an image weighs what as many tokens of text do.
func (r Request) bytes() int64 {
	return max(r.PromptBytes, 0) + bytesPerToken*max(r.ImageTokens, 0)
}

// lessonBytes is the bytes whose tokens the engine will tell; 0 for a prompt with images, which it counts with the text.
func (r Request) lessonBytes() int64 {
	if r.ImageTokens > 0 {
		return 0
	}
	return r.PromptBytes
}

// lesson is what the real usage of a request teaches: bytes per token of its model, and the length of an answer for its
// key and model. Estimates, short prompts and what this replica did not admit itself teach nothing. Money never rests on it.
func (l *Ledger) lesson(s Settlement) lua.Sample {
	if !s.Real || !s.KeepRequest || s.Prompt <= 0 || s.Completion <= 0 {
		return lua.Sample{}
	}
	r, ok := l.open.get(s.Tenant, s.RID)
	if !ok || r.promptBytes < leastLesson {
		return lua.Sample{}
	}
	return lua.Sample{PromptBytes: r.promptBytes, Model: r.model, Choices: r.choices}
}
