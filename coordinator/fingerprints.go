package coordinator

import (
	"encoding/base64"
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// PromptParts is what an engine's prefix cache would see of a request, as slices of its body; nothing is kept.
type PromptParts struct {
	Model string
	Salt  string // keeps prompts apart that may not share a cache; "" for none
	Tools []byte // stands before the messages in the engine's prompt; nil for none
	Lead  []byte // a system prompt that is no message; nil for none
	Text  []byte // what follows it: the messages, or the prompt
	// Ends are where messages end, ascending; none where there are no messages.
	Ends   []MessageEnd
	Tokens int64 // estimate for Tools, Lead and Text
}

// MessageEnd is where a message ends.
type MessageEnd struct {
	At     int  // offset in Text
	Answer bool // the model wrote it
}

// Prefix is the fingerprints of a prompt's beginnings. The zero value matches nothing.
type Prefix struct {
	Bucket int // 0 to 15, the same for all prompts that may share a fingerprint
	Prints []Fingerprint
}

// Fingerprint is one beginning of a prompt. Tokens is how much of the prompt is warm on an engine that got a prompt with
// this beginning: the beginning, and the answer behind it, which that engine wrote. It may have written another one, or not
// have kept it: then it is wrong by the length of an answer.
type Fingerprint struct {
	Hash   uint64
	Tokens int64
}

const (
	maxFingerprints = 12
	messageEnds     = 4    // the last ones: where the next turn of a conversation goes on
	firstBlock      = 2048 // bytes; the others end at doubles of it
	headBytes       = 1024 // of Lead and Text: a shorter prompt has no fingerprints, and this much names the bucket
)

// Fingerprints names up to 12 beginnings of a prompt, shortest first: those that end with one of its last 4 messages, and
// those that end at 2 KiB and its doubles. Two prompts of one model, with the same tools and salt, have the fingerprint
// of every such beginning in common that is the same in both, whatever follows.
func Fingerprints(p PromptParts) Prefix {
	lead, length := len(p.Lead), len(p.Lead)+len(p.Text)
	if length < headBytes {
		return Prefix{}
	}
	h := xxh3.New()
	for _, part := range [][]byte{[]byte(p.Model), []byte(p.Salt), p.Tools} { // with lengths: no two lists look alike
		var length [8]byte
		binary.LittleEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
	from := 0
	upTo := func(at int) uint64 { // Lead and Text are read as one
		h.Write(p.Lead[min(from, lead):min(at, lead)])
		h.Write(p.Text[max(from-lead, 0):max(at-lead, 0)])
		from = at
		return h.Sum64()
	}
	prefix := Prefix{Bucket: int(upTo(headBytes) % 16)}
	last := p.Ends[max(0, len(p.Ends)-messageEnds):]
	ends := make([]int, len(last))
	for i, end := range last {
		ends[i] = lead + end.At
	}
	for _, at := range beginnings(length, ends) {
		warm := at
		for i, end := range last {
			if i > 0 && end.Answer && ends[i-1] == warm { // of several items of an answer, all
				warm = min(ends[i], length)
			}
		}
		share := float64(len(p.Tools)+warm) / float64(len(p.Tools)+length)
		prefix.Prints = append(prefix.Prints, Fingerprint{Hash: upTo(at), Tokens: int64(share * float64(p.Tokens))})
	}
	return prefix
}

// beginnings is where they end, ascending, each once, from headBytes on; ends are the last messages'.
func beginnings(length int, ends []int) []int {
	at := make([]int, 0, maxFingerprints)
	blocks := 0
	if length >= firstBlock {
		blocks = bits.Len(uint(length / firstBlock))
	}
	room := maxFingerprints - len(ends)
	for i := max(0, blocks-room); i < blocks; i++ { // of a very long prompt the long ones
		block := firstBlock << i
		for len(ends) > 0 && ends[0] <= block {
			at, ends = appendEnd(at, ends[0], length), ends[1:]
		}
		at = appendEnd(at, block, length)
	}
	for _, end := range ends {
		at = appendEnd(at, end, length)
	}
	return at
}

func appendEnd(at []int, end, length int) []int {
	if end < headBytes || end > length || len(at) > 0 && end <= at[len(at)-1] {
		return at
	}
	return append(at, end)
}

// name is the fingerprint as it stands in Redis.
func (f Fingerprint) name() string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], f.Hash)
	return base64.RawURLEncoding.EncodeToString(b[:])
}
