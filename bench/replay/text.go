package main

import (
	"encoding/binary"

	"github.com/headgate/headgate/coordinator"
)

// tokenBytes is how much text a token stands for.
const tokenBytes = 4

// fingerprinted gives every request the fingerprints the gateway would make of a text that repeats where the chain does.
func (w workload) fingerprinted() workload {
	var text []byte
	for i := range w.requests {
		r := &w.requests[i]
		text = r.text(text[:0], w.block, uint64(i))
		parts := coordinator.PromptParts{Model: "m", Text: text, Tokens: int64(r.prompt)}
		for _, end := range r.ends { // the text repeats by whole blocks
			parts.Ends = append(parts.Ends, coordinator.MessageEnd{At: end.at / w.block * w.block * tokenBytes, Answer: end.answer})
		}
		r.prefix = coordinator.Fingerprints(parts)
	}
	return w
}

// text appends the prompt: each block is its name over and over, the rest is nobody else's.
func (r *request) text(to []byte, block int, serial uint64) []byte {
	for at := 0; at < r.prompt; at += block {
		name := serial | 1<<63
		if i := at / block; i < len(r.chain) && at+block <= r.prompt {
			name = r.chain[i]
		}
		for range min(block, r.prompt-at) * tokenBytes / 8 {
			to = binary.LittleEndian.AppendUint64(to, name)
		}
	}
	for len(to) < r.prompt*tokenBytes {
		to = append(to, 0)
	}
	return to
}
