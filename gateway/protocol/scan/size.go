package scan

import (
	"bytes"

	"github.com/headgate/headgate/gateway/protocol/lex"
)

// How PromptBytes is counted: a token is at least one byte, so the bytes of everything that can become prompt bound its
// tokens. A string counts the bytes between its quotes as written (an escape is never shorter than what it stands for);
// any other value counts as it stands, a null nothing; a token id counts one. Inside a message the values of all
// members count, and messageBytes for the template's marks around it; so for what an engine makes a message of: an input
// of Responses that is text, instructions, the system of Messages. What stands under an image_url and begins with
// data:, or is the data of an image source of Messages, is an image and counts in Images instead.
const messageBytes = 8

// messages reads the field messages.
func (s *scanner) messages() {
	o := &s.out
	switch s.c.Peek() {
	case 'n':
		s.c.Skip()
		return
	case '[':
	default:
		s.refuse("messages", "must be a list", s.c.I)
		return
	}
	if o.Route == Responses { // there it is not the conversation
		s.raw()
		return
	}
	for s.c.Enter(); s.c.Item(); {
		s.endMessage(s.message())
	}
	s.orderEnds()
}

// endMessage notes where the message that was just read ends, and what message said of it.
func (s *scanner) endMessage(author int) {
	o := &s.out
	if o.Messages == 0 {
		o.FirstMessageEnd = s.c.I
	}
	at := o.Messages % len(o.MessageEnds)
	o.MessageEnds[at], s.authors[at] = s.c.I, author
	o.Messages++
}

// orderEnds sorts the last ends, and looks whose messages they are.
func (s *scanner) orderEnds() {
	o := &s.out
	ring := o.MessageEnds
	for k := range min(o.Messages, len(ring)) {
		at := k
		if o.Messages > len(ring) { // the oldest first
			at = (o.Messages + k) % len(ring)
		}
		o.MessageEnds[k] = ring[at]
		author := s.authors[at]
		o.Answers[k] = author == theModel || author > 0 && s.says(author, "assistant")
	}
}

const theModel = -1

// message reads one. The author is the offset of the role, theModel if the message is of a type the model alone writes, or
// 0 where nothing tells.
func (s *scanner) message() (author int) {
	s.out.PromptBytes += messageBytes
	if s.c.Peek() != '{' {
		s.raw()
		return 0
	}
	generated := false
	for s.c.Enter(); s.c.Member(); {
		switch key := s.c.Key; {
		case isContent(key) && s.c.Peek() == '[':
			s.parts()
			continue
		case string(key) == "role", mayMean(key, 'r') && escaped(key, "role"):
			author = s.c.I
		case s.out.Route == Responses && (string(key) == "type" || mayMean(key, 't') && escaped(key, "type")):
			generated = s.says(s.c.I, "function_call") || s.says(s.c.I, "reasoning")
		}
		s.raw()
	}
	if generated {
		return theModel
	}
	return author
}

// says reports whether the value that begins there is this string.
func (s *scanner) says(at int, word string) bool {
	if at+2 >= len(s.c.B) || s.c.B[at] != '"' || s.c.B[at+1] != word[0] && s.c.B[at+1] != '\\' {
		return false
	}
	end := lex.String(s.c.B, at)
	return end > 0 && (string(s.c.B[at+1:end-1]) == word || escaped(s.c.B[at+1:end-1], word))
}

// mayMean: a key that begins so may be a name of four letters written with escapes. Few are looked at closer.
func mayMean(key []byte, first byte) bool {
	return len(key) > 4 && (key[0] == first || key[0] == '\\')
}

// escaped reports whether a string as written, with escapes, is the word.
func escaped(raw []byte, word string) bool {
	if len(raw) <= len(word) || len(raw) > 6*len(word) || bytes.IndexByte(raw, '\\') < 0 {
		return false
	}
	var room [6 * maxNameBytes]byte
	decoded, how := lex.AppendUnquoted(room[:0], raw)
	return how == lex.Clean && string(decoded) == word
}

// isContent: what a message says, and in Responses what a tool put out.
func isContent(key []byte) bool { return string(key) == "content" || string(key) == "output" }

func (s *scanner) parts() {
	for s.c.Enter(); s.c.Item(); {
		s.part()
	}
}

// part reads one piece of a message's content. A tool's result holds pieces of its own; lex.MaxDepth bounds how deep.
func (s *scanner) part() {
	if s.c.Peek() != '{' {
		s.raw()
		return
	}
	for s.c.Enter(); s.c.Member(); {
		switch next := s.c.Peek(); {
		case string(s.c.Key) == "image_url" && next != 'n':
			s.image()
		case string(s.c.Key) == "source" && next == '{':
			s.source()
		case string(s.c.Key) == "content" && next == '[':
			s.parts()
		default:
			s.raw()
		}
	}
}

// source reads where a piece of Messages has its bytes from. Only the data of an image are no text.
func (s *scanner) source() {
	var kind, media, data []byte // as written, with the quotes
	before := s.out.PromptBytes
	for s.c.Enter(); s.c.Member(); {
		key, from := string(s.c.Key), s.c.I
		s.raw()
		switch value := s.c.B[from:s.c.I]; key {
		case "type":
			kind = value
		case "media_type":
			media = value
		case "data":
			data = value
		}
	}
	if !s.ok() || !bytes.HasPrefix(media, []byte(`"image/`)) && string(kind) != `"url"` {
		return
	}
	s.out.Images++
	if string(kind) == `"base64"` && len(data) > 0 && data[0] == '"' {
		s.out.PromptBytes = max(before, s.out.PromptBytes-int64(len(data)-2))
	}
}

// image reads a URL, or an object that holds one as url.
func (s *scanner) image() {
	s.out.Images++
	if s.c.Peek() != '{' {
		s.url()
		return
	}
	for s.c.Enter(); s.c.Member(); {
		if string(s.c.Key) == "url" {
			s.url()
		} else {
			s.raw()
		}
	}
}

func (s *scanner) url() {
	if s.c.Peek() == '"' && bytes.HasPrefix(s.c.B[s.c.I+1:], []byte("data:")) {
		s.c.Skip()
		return
	}
	s.raw()
}

// raw counts the value as text.
func (s *scanner) raw() {
	c := s.c.Peek()
	from := s.c.Skip()
	switch n := int64(s.c.I - from); c {
	case 'n':
	case '"':
		s.out.PromptBytes += n - 2
	default:
		s.out.PromptBytes += n
	}
}

// prompt reads a string, a list of token ids, or a list of either, and counts how many prompts it is. Mixed lists are
// the engine's to refuse.
func (s *scanner) prompt() {
	if s.c.Peek() != '[' {
		s.raw()
		return
	}
	var lists int64
	var ids bool
	for s.c.Enter(); s.c.Item(); {
		switch s.c.Peek() {
		case '[':
			s.tokens()
			lists++
		case '"':
			s.raw()
			lists++
		default:
			s.item()
			ids = true
		}
	}
	if ids {
		lists++
	}
	s.out.Prompts = max(lists, 1)
}

// input reads what embeddings and responses take: a string, token ids, lists of them, or messages.
func (s *scanner) input() {
	if c := s.c.Peek(); c != '[' {
		s.raw()
		if s.out.Route == Responses && c != 'n' {
			s.out.PromptBytes += messageBytes
		}
		return
	}
	for s.c.Enter(); s.c.Item(); {
		switch s.c.Peek() {
		case '[':
			s.tokens()
		case '{':
			if author := s.message(); s.out.Route == Responses {
				s.endMessage(author)
			}
		default:
			s.item()
		}
	}
	if s.out.Route == Responses {
		s.orderEnds()
	}
}

func (s *scanner) tokens() {
	for s.c.Enter(); s.c.Item(); {
		s.item()
	}
}

// item counts a token id as one, anything else as text.
func (s *scanner) item() {
	if c := s.c.Peek(); c >= '0' && c <= '9' {
		s.c.Skip()
		s.out.PromptBytes++
		return
	}
	s.raw()
}
