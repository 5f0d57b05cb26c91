package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// whole answers a request that is not streamed.
func (c *call) whole(g *generation) error {
	for !g.finished() && !g.background {
		if err := c.await(g); err != nil {
			return err
		}
	}
	c.firstToken()
	c.pause()
	body := g.body(c)
	c.w.Header().Set("Content-Type", contentType(body))
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.head(http.StatusOK)
	switch c.fault.Kind {
	case Cut, Reset, Garbage:
		c.w.Write(body[:len(body)/2])
		c.hangUp(c.fault.Kind == Reset)
		return errFault
	case HangStream:
		c.w.Write(body[:len(body)/2])
		http.NewResponseController(c.w).Flush()
		<-c.r.Context().Done()
		return errFault
	}
	if _, err := c.w.Write(body); err != nil {
		return errClientGone
	}
	return nil
}

func (c *call) wholeBody(g *generation) []byte {
	object := "text_completion"
	if g.chat {
		object = "chat.completion"
	}
	b := fmt.Appendf(nil, `{"id":%s,"object":"%s","created":%d,"model":%s,"choices":[`,
		quote(g.id), object, time.Now().Unix(), quote(g.model))
	output := 0
	for i, s := range g.seqs {
		output += s.length
		if i > 0 {
			b = append(b, ',')
		}
		text := s.answer()
		if s.call != nil {
			text = nil
		}
		if g.chat {
			b = fmt.Appendf(b, `{"index":%d,"message":{"role":"assistant","content":"%s","refusal":null,"tool_calls":%s},`, i, text, s.chatCalls())
		} else {
			b = fmt.Appendf(b, `{"index":%d,"text":"%s",`, i, text)
		}
		b = fmt.Appendf(b, `"logprobs":null,"finish_reason":"%s","stop_reason":null}`, s.finishReason())
	}
	b = append(b, ']')
	if c.fault.Kind != NoUsage {
		b = append(append(b, `,"usage":`...), c.usage(g, output)...)
	}
	return append(b, `,"prompt_logprobs":null}`...)
}

// finished reports whether all choices are complete.
func (g *generation) finished() bool {
	for _, s := range g.seqs {
		if !s.done.Load() {
			return false
		}
	}
	return true
}

// shown is how many of the tokens of a finished sequence have a text: the end token has none.
func (s *sequence) shown() int {
	if s.reason == "stop" {
		return s.length - 1
	}
	return s.length
}

// answer is the text of a finished sequence, or the arguments of its call.
func (s *sequence) answer() []byte {
	var text []byte
	for t := range s.shown() {
		text = append(text, s.piece(t)...)
	}
	return text
}

// contentType of an answer: plain text is asked for in audio only.
func contentType(body []byte) string {
	if len(body) > 0 && body[0] == '{' {
		return "application/json"
	}
	return "text/plain; charset=utf-8"
}

func quote(s string) []byte {
	b, _ := json.Marshal(s)
	return b
}
