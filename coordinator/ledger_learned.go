package coordinator

import "github.com/headgate/headgate/scripts/lua"

// leastLesson is the bytes of prompt below which nothing is learned from a request: what a chat template adds would
// weigh more than the text.
const leastLesson = 200

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
