package scan

import (
	"strconv"

	"github.com/headgate/headgate/gateway/protocol/lex"
)

// Edit replaces a range of the body; an empty range inserts.
type Edit struct {
	At   Span
	With []byte
}

// Want says what the engine is to read instead. The zero value changes nothing.
type Want struct {
	Model        string // the pool's name of the model; empty = the client's
	IncludeUsage bool   // streams only: an engine refuses stream_options without stream
	MaxTokens    int64  // cap per choice; 0 = the client's
	Priority     *int64 // of the engine's scheduler; nil = the client's
	CacheSalt    string // keeps the engine's prefix cache apart; empty = the client's
}

// Edits appends to dst what makes the body say what is wanted, sorted and without overlap, for Splice. What the body
// says already is not edited, and what the route has no field for is left out.
//
// A cap replaces each cap the client gave (for chat max_tokens and max_completion_tokens, for completions max_tokens, for
// responses max_output_tokens); without one the first of them is added. A messages body and a form get none. A priority is
// added to the same three, and replaced wherever the client gave one; a salt is added to every body that is JSON.
func (b *Body) Edits(dst []Edit, want Want) []Edit {
	first := len(dst)
	var added []byte // new members, put in front of all others
	if want.Model != "" && want.Model != b.Model {
		dst = append(dst, Edit{b.ModelAt, b.spell(want.Model)})
	}
	if want.MaxTokens > 0 && b.Route.addsCap() {
		dst, added = b.cap(dst, added, want.MaxTokens)
	}
	if want.IncludeUsage && b.Stream && !b.IncludeUsage && b.Route.hasStreamOptions() {
		dst, added = b.includeUsage(dst, added)
	}
	if p := want.Priority; p != nil && *p != b.Priority {
		switch number := strconv.AppendInt(nil, *p, 10); {
		case b.PriorityAt.Present():
			dst = append(dst, Edit{b.PriorityAt, number})
		case b.Route.addsCap():
			added = append(append(append(added, `"priority":`...), number...), ',')
		}
	}
	if want.CacheSalt != "" && want.CacheSalt != b.CacheSalt && b.Route != Audio {
		switch salt := lex.AppendQuoted(nil, want.CacheSalt); {
		case b.CacheSaltAt.Present():
			dst = append(dst, Edit{b.CacheSaltAt, salt})
		default:
			added = append(append(append(added, `"cache_salt":`...), salt...), ',')
		}
	}
	if len(added) > 0 {
		if b.Empty {
			added = added[:len(added)-1]
		}
		dst = append(dst, Edit{Span{b.InsertAt, b.InsertAt}, added})
	}
	for i := first + 1; i < len(dst); i++ { // at most seven
		for k := i; k > first && dst[k].At.From < dst[k-1].At.From; k-- {
			dst[k], dst[k-1] = dst[k-1], dst[k]
		}
	}
	return dst
}

// spell writes a model's name as it stands in the body.
func (b *Body) spell(model string) []byte {
	if b.Route == Audio {
		return []byte(model)
	}
	return lex.AppendQuoted(nil, model)
}

func (b *Body) cap(dst []Edit, added []byte, tokens int64) ([]Edit, []byte) {
	limits, n := b.limits()
	declared := false
	for _, l := range limits[:n] {
		declared = declared || l.value >= 0
	}
	placed := declared
	for _, l := range limits[:n] {
		if !l.at.Present() || declared && l.value < 0 { // a null beside a cap may stay
			continue
		}
		if l.value != tokens {
			dst = append(dst, Edit{l.at, strconv.AppendInt(nil, tokens, 10)})
		}
		placed = true
	}
	if !placed {
		added = append(append(append(added, '"'), limits[0].name...), `":`...)
		added = strconv.AppendInt(added, tokens, 10)
		added = append(added, ',')
	}
	return dst, added
}

func (b *Body) includeUsage(dst []Edit, added []byte) ([]Edit, []byte) {
	switch at := b.StreamOptionsAt; {
	case !at.Present():
		return dst, append(added, `"stream_options":{"include_usage":true},`...)
	case b.IncludeUsageAt.Present():
		return append(dst, Edit{b.IncludeUsageAt, []byte("true")}), added
	case b.StreamOptionsEmpty: // null or {}
		return append(dst, Edit{at, []byte(`{"include_usage":true}`)}), added
	default:
		return append(dst, Edit{Span{at.From + 1, at.From + 1}, []byte(`"include_usage":true,`)}), added
	}
}

// Splice appends to dst the pieces whose concatenation is the edited body, for one gathered write: the untouched parts
// are slices of body, not copies. length is their sum.
func Splice(dst [][]byte, body []byte, edits []Edit) (parts [][]byte, length int64) {
	from := 0
	for _, e := range edits {
		dst, length = appendPart(dst, body[from:e.At.From], length)
		dst, length = appendPart(dst, e.With, length)
		from = e.At.To
	}
	return appendPart(dst, body[from:], length)
}

func appendPart(dst [][]byte, part []byte, length int64) ([][]byte, int64) {
	if len(part) == 0 {
		return dst, length
	}
	return append(dst, part), length + int64(len(part))
}
