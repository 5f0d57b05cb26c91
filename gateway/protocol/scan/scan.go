package scan

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/lex"
)

// MaxNameBytes is how long model and user may be, as written: both end up in records and counters' names.
const MaxNameBytes = 1024

// Scan reads the body once. A fault is returned instead of what was read so far.
func Scan(body []byte, route Route) (Body, *Fault) {
	s := scanner{c: lex.Cursor{B: body}}
	s.out = Body{Route: route, MaxTokens: -1, MaxCompletionTokens: -1, MaxOutputTokens: -1, N: 1, BestOf: 1, Prompts: 1}
	if !utf8.Valid(body) { // I1
		return Body{}, malformed("is not valid UTF-8", firstInvalid(body))
	}
	s.object()
	if s.fault == nil && !s.c.End() {
		s.fault = malformed(s.c.Why, s.c.I)
	}
	if s.fault == nil && !s.seen.has(fieldModel) {
		s.fault = &Fault{Code: protocol.CodeInvalidField, Field: "model", Message: "The field model is missing.", Offset: s.out.InsertAt}
	}
	if s.fault != nil {
		return Body{}, s.fault
	}
	if route == Tokens {
		s.out.PromptBytes, s.out.Images = 0, 0
	}
	return s.out, nil
}

type scanner struct {
	c     lex.Cursor
	out   Body
	seen  fieldSet
	fault *Fault

	authors [4]int // of the messages whose ends out holds
}

func (s *scanner) object() {
	s.c.Start()
	if s.c.Peek() != '{' {
		s.fault = malformed("must be a JSON object", s.c.I)
		return
	}
	s.out.InsertAt = s.c.I + 1
	s.out.Empty = true
	for s.c.Enter(); s.fault == nil && s.c.Member(); {
		s.out.Empty = false
		f, escaped := s.name()
		if f = f.actedOn(s.out.Route); f == fieldNone {
			s.other()
			continue
		}
		if escaped { // I2
			s.refuse(f.String(), "is written with escapes", s.c.I)
			return
		}
		if s.seen.has(f) { // I2
			s.refuse(f.String(), "appears more than once", s.c.I)
			return
		}
		s.seen.add(f)
		s.member(f)
	}
}

// other steps over a field the gateway does not know. Where the answer is not generated text, APIs differ in what they
// call their input, so all of it counts.
func (s *scanner) other() {
	if s.out.Route == Embeddings {
		s.raw()
		return
	}
	s.c.Skip()
}

// name tells which field the cursor's key means, also if it is written with escapes.
func (s *scanner) name() (f field, escaped bool) {
	key := s.c.Key
	if bytes.IndexByte(key, '\\') < 0 {
		return fieldOf(key), false
	}
	var room [maxNameBytes]byte
	if len(key) > 6*maxNameBytes { // longer than any name of ours could be written
		return fieldNone, true
	}
	decoded, how := lex.AppendUnquoted(room[:0], key)
	if how == lex.Malformed {
		s.fault = malformed("has a malformed escape in a field name", s.c.I)
		return fieldNone, true
	}
	return fieldOf(decoded), true
}

// member reads the value of a known field, which ends behind it.
func (s *scanner) member(f field) {
	from := s.c.I
	o := &s.out
	switch f {
	case fieldModel:
		o.Model = s.text(f)
		if s.ok() && o.Model == "" {
			s.refuse("model", "must be a non-empty string", from)
		}
		o.ModelAt = s.since(from)
	case fieldUser:
		o.User = s.text(f)
	case fieldStream:
		o.Stream = s.bool(f.String())
		o.StreamAt = s.since(from)
	case fieldStreamOptions:
		s.streamOptions()
		o.StreamOptionsAt = s.since(from)
	case fieldMaxTokens:
		o.MaxTokens = s.int(f, 0, math.MaxInt64, -1)
		o.MaxTokensAt = s.since(from)
	case fieldMaxCompletionTokens:
		o.MaxCompletionTokens = s.int(f, 0, math.MaxInt64, -1)
		o.MaxCompletionTokensAt = s.since(from)
	case fieldMaxOutputTokens:
		o.MaxOutputTokens = s.int(f, 0, math.MaxInt64, -1)
		o.MaxOutputTokensAt = s.since(from)
	case fieldN:
		o.N = s.int(f, 1, math.MaxInt32, 1)
	case fieldBestOf:
		o.BestOf = s.int(f, 1, math.MaxInt32, 1)
	case fieldPriority:
		o.Priority = s.int(f, math.MinInt64+1, math.MaxInt64, 0)
		o.PriorityAt = s.since(from)
	case fieldCacheSalt:
		o.CacheSalt = s.text(f)
		o.CacheSaltAt = s.since(from)
	case fieldTools, fieldFunctions:
		s.raw()
		o.ToolsAt = s.since(from)
	case fieldMessages:
		s.messages()
		if o.Route != Responses {
			o.MessagesAt = s.since(from)
		}
	case fieldPrompt:
		s.prompt()
		o.PromptAt = s.since(from)
	case fieldInput:
		s.input()
		o.PromptAt = s.since(from)
		if o.Route == Responses {
			o.MessagesAt = o.PromptAt
		}
	case fieldSystem, fieldInstructions:
		null := s.c.Peek() == 'n'
		s.raw()
		if !null && (o.Route == Messages || o.Route == Responses) {
			o.SystemAt = s.since(from)
			o.PromptBytes += messageBytes // the engine makes a message of it
		}
	case fieldPreviousResponseID:
		o.Previous = s.text(f)
	case fieldBackground:
		o.Background = s.bool(f.String())
	case fieldStore:
		o.Unstored = s.c.Peek() == 'f'
		s.bool(f.String())
	case fieldRequestID:
		s.refuse(f.String(), "is not taken: it would name the response, and another's may have that name", from)
	default: // all of it can become prompt
		s.raw()
	}
}

func (s *scanner) streamOptions() {
	s.out.StreamOptionsEmpty = true
	switch s.c.Peek() {
	case 'n':
		s.c.Skip()
		return
	case '{':
	default:
		s.refuse("stream_options", "must be an object or null", s.c.I)
		return
	}
	const name = "stream_options.include_usage"
	for s.c.Enter(); s.ok() && s.c.Member(); {
		s.out.StreamOptionsEmpty = false
		plain := string(s.c.Key) == "include_usage"
		if !plain && bytes.IndexByte(s.c.Key, '\\') >= 0 && len(s.c.Key) <= 6*maxNameBytes {
			var room [maxNameBytes]byte
			if decoded, _ := lex.AppendUnquoted(room[:0], s.c.Key); string(decoded) == "include_usage" {
				s.refuse(name, "is written with escapes", s.c.I)
				return
			}
		}
		if !plain {
			s.c.Skip()
			continue
		}
		if s.out.IncludeUsageAt.Present() {
			s.refuse(name, "appears more than once", s.c.I)
			return
		}
		from := s.c.I
		s.out.IncludeUsage = s.bool(name)
		s.out.IncludeUsageAt = s.since(from)
	}
}

// bool reads true, false or null.
func (s *scanner) bool(name string) bool {
	c, from := s.c.Peek(), s.c.I
	s.c.Skip()
	if s.ok() && c != 't' && c != 'f' && c != 'n' {
		s.refuse(name, "must be true, false or null", from)
	}
	return c == 't'
}

// int reads a whole number within the bounds; null is absent.
func (s *scanner) int(f field, least, most, absent int64) int64 {
	from := s.c.I
	if s.c.Peek() == 'n' {
		s.c.Skip()
		return absent
	}
	n, ok := s.c.Int()
	if s.ok() && (!ok || n < least || n > most) {
		within := fmt.Sprintf(" from %d to %d", least, most)
		switch {
		case least == 0 && most == math.MaxInt64:
			within = ", 0 or more"
		case most == math.MaxInt64:
			within = ""
		}
		s.refuse(f.String(), "must be a whole number"+within+", or null", from)
	}
	return n
}

// text reads a string into memory of its own; only model must not be null.
func (s *scanner) text(f field) string {
	c, from := s.c.Peek(), s.c.I
	s.c.Skip()
	if !s.ok() || c == 'n' && f != fieldModel {
		return ""
	}
	if c != '"' {
		s.refuse(f.String(), "must be a string", from)
		return ""
	}
	raw := s.c.B[from+1 : s.c.I-1]
	if len(raw) > MaxNameBytes {
		s.refuse(f.String(), fmt.Sprintf("is longer than %d bytes", MaxNameBytes), from)
		return ""
	}
	var room [256]byte
	decoded, how := lex.AppendUnquoted(room[:0], raw)
	if how != lex.Clean {
		s.refuse(f.String(), "has a malformed escape or a control character", from)
	}
	return string(decoded)
}

func (s *scanner) ok() bool            { return s.fault == nil && s.c.Why == "" }
func (s *scanner) since(from int) Span { return Span{from, s.c.I} }

// refuse files a fault of a field, unless the text is broken before that matters.
func (s *scanner) refuse(name, why string, at int) {
	if s.ok() {
		s.fault = &Fault{Code: protocol.CodeInvalidField, Field: name, Message: "The field " + name + " " + why + ".", Offset: at}
	}
}

func malformed(why string, at int) *Fault {
	return &Fault{Code: protocol.CodeInvalidJSON, Message: fmt.Sprintf("The body cannot be read as JSON: %s (byte %d).", why, at), Offset: at}
}

func firstInvalid(b []byte) int {
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(b)
}
