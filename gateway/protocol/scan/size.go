package scan

import "bytes"

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
		s.message()
		s.endMessage()
	}
	s.orderEnds()
}

// endMessage notes where the message that was just read ends.
func (s *scanner) endMessage() {
	o := &s.out
	if o.Messages == 0 {
		o.FirstMessageEnd = s.c.I
	}
	o.MessageEnds[o.Messages%len(o.MessageEnds)] = s.c.I
	o.Messages++
}

func (s *scanner) orderEnds() {
	o := &s.out
	if n := len(o.MessageEnds); o.Messages > n { // the oldest of the ring first
		ring := o.MessageEnds
		for k := range o.MessageEnds {
			o.MessageEnds[k] = ring[(o.Messages+k)%n]
		}
	}
}

func (s *scanner) message() {
	s.out.PromptBytes += messageBytes
	if s.c.Peek() != '{' {
		s.raw()
		return
	}
	for s.c.Enter(); s.c.Member(); {
		if isContent(s.c.Key) && s.c.Peek() == '[' {
			s.parts()
			continue
		}
		s.raw()
	}
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
			s.message()
			if s.out.Route == Responses {
				s.endMessage()
			}
		default:
			s.item()
		}
	}
	s.orderEnds()
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
