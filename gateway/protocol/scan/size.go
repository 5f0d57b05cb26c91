package scan

import "bytes"

// How PromptBytes is counted: a token is at least one byte, so the bytes of everything that can become prompt bound its
// tokens. A string counts the bytes between its quotes as written (an escape is never shorter than what it stands for);
// any other value counts as it stands, a null nothing; a token id counts one. Inside a message the values of all
// members count, and messageBytes for the template's marks around it. What stands under an image_url and begins with
// data: is an image and counts in Images instead.
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
	for s.c.Enter(); s.c.Item(); {
		s.message()
		if o.Messages == 0 {
			o.FirstMessageEnd = s.c.I
		}
		o.MessageEnds[o.Messages%len(o.MessageEnds)] = s.c.I
		o.Messages++
	}
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
		if string(s.c.Key) == "content" && s.c.Peek() == '[' {
			for s.c.Enter(); s.c.Item(); {
				s.part()
			}
			continue
		}
		s.raw()
	}
}

// part reads one piece of a message's content.
func (s *scanner) part() {
	if s.c.Peek() != '{' {
		s.raw()
		return
	}
	for s.c.Enter(); s.c.Member(); {
		if string(s.c.Key) == "image_url" && s.c.Peek() != 'n' {
			s.image()
			continue
		}
		s.raw()
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
	if s.c.Peek() != '[' {
		s.raw()
		return
	}
	for s.c.Enter(); s.c.Item(); {
		switch s.c.Peek() {
		case '[':
			s.tokens()
		case '{':
			s.message()
		default:
			s.item()
		}
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
