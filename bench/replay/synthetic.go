package main

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/zeebo/xxh3"
)

// chat is a made multi-turn chat: conversations begin by chance, share one of a few system prompts, and each turn's
// prompt is all that was said before plus a new question, some seconds after the answer to the last could be read.
func chat(seed uint64, conversations int) workload {
	rnd := rand.New(rand.NewPCG(seed, 2))
	w := workload{name: "chat", block: 64, prefixes: true}
	start := 0.0
	for c := range conversations {
		start += rnd.ExpFloat64() * 400
		at, length := start, []int{400, 1200, 2400}[rnd.IntN(3)]
		ends := []messageEnd{{at: length}}
		system, own := uint64(length), xxh3.HashSeed([]byte("chat"), uint64(c))
		for range 2 + rnd.IntN(10) {
			length += clampedLog(rnd, 120, 1.1, 8, 6000) // a question; now and then with something pasted
			ends = append(ends, messageEnd{at: length})
			r := request{atMS: at, prompt: length, output: clampedLog(rnd, 220, 0.8, 8, 1500)}
			r.chain = named(system, own, ends[0].at, length+r.output, w.block)
			r.ends = slices.Clone(ends)
			w.requests = append(w.requests, r)
			length += r.output
			ends = append(ends, messageEnd{length, true})
			at += float64(r.output)*25 + 1000 + rnd.ExpFloat64()*12_000
			if length > 30_000 {
				break
			}
		}
	}
	return w.ordered().fingerprinted()
}

// documents is a made workload of questions about shared documents: a few are asked about often, most seldom, and the
// document stands before the question.
func documents(seed uint64, questions int) workload {
	rnd := rand.New(rand.NewPCG(seed, 3))
	w := workload{name: "documents", block: 64, prefixes: true}
	const many = 400
	popular := rand.NewZipf(rnd, 1.1, 8, many-1)
	length := make([]int, many)
	for i := range length {
		length[i] = clampedLog(rnd, 9000, 0.7, 1500, 60_000)
	}
	at := 0.0
	for q := range questions {
		at += rnd.ExpFloat64() * 250
		d := popular.Uint64()
		r := request{atMS: at, prompt: length[d] + clampedLog(rnd, 60, 0.8, 8, 400), output: clampedLog(rnd, 180, 0.8, 8, 1200)}
		r.chain = named(d+1<<20, xxh3.HashSeed([]byte("question"), uint64(q)), length[d], r.prompt+r.output, w.block)
		r.ends = []messageEnd{{at: length[d]}, {at: r.prompt}}
		w.requests = append(w.requests, r)
	}
	return w.fingerprinted()
}

// named is the chain of a text whose first tokens are shared and whose others are one conversation's own.
func named(shared, own uint64, sharedTokens, tokens, block int) []uint64 {
	chain := make([]uint64, tokens/block)
	for i := range chain {
		whose := own
		if (i+1)*block <= sharedTokens {
			whose = shared
		}
		chain[i] = xxh3.HashSeed([]byte{byte(i), byte(i >> 8), byte(i >> 16)}, whose)
	}
	return chain
}

// clampedLog is a log-normal length.
func clampedLog(rnd *rand.Rand, median, sigma float64, least, most int) int {
	return min(max(int(median*math.Exp(rnd.NormFloat64()*sigma)), least), most)
}

func (w workload) ordered() workload {
	slices.SortStableFunc(w.requests, func(a, b request) int {
		switch {
		case a.atMS < b.atMS:
			return -1
		case a.atMS > b.atMS:
			return 1
		}
		return 0
	})
	return w
}
