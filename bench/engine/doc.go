// Package engine is a simulated inference engine that speaks vLLM's HTTP: the same routes, bodies, event streams, errors
// and metric names, with the timing of continuous batching instead of a model. It is what `headgate dev` and `headgate sim`
// serve, and what tests and benchmarks put behind the gateway.
//
// One goroutine steps the batch; a step takes
//
//	step_ms = max(W, a·T) + c·K + o
//
// with T tokens in the step (one per decoding sequence plus a chunk of waiting prompts), K thousands of context tokens held
// by decoding sequences, and W, a, c, o from a Profile. Text is hashed in blocks of 16 tokens (4 bytes each) into an LRU
// prefix cache, so a repeated prompt, and the next turn of a conversation, costs only what is new.
//
// Beside chat and completions there are Responses (kept in memory, continued, made in the background, cancelled), Messages,
// embeddings, rerank, score, transcriptions and tokenizing, as far as clients can tell.
//
// The same seed, prompt and parameters give the same text and the same length.
//
// Invariants:
//
//	I1. Never more sequences run at once than Slots; the others wait in arrival order (by priority first, where enabled).
//	I2. A client that leaves frees its slot at the next step, and the request counts as finished_reason="abort".
//	I3. Usage equals what was generated: completion_tokens is the number of tokens sampled, the end token included.
//	I4. KV blocks are neither lost nor counted twice: with nothing running, none is in use.
//	I5. Every generation request is in Seen, with what became of it.
package engine
