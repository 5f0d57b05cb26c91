package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// messagesRequest is the body of /v1/messages: what differs from a chat.
type messagesRequest struct {
	requestBody
	System json.RawMessage `json:"system"`
}

// parseMessage reads a body of /v1/messages; vLLM turns it into a chat inside.
func parseMessage(e *Engine, _ *http.Request, body []byte) (*generation, *apiError) {
	var in messagesRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, badRequest("Invalid request body: "+err.Error(), "")
	}
	if in.MaxTokens == nil {
		return nil, badRequest("max_tokens: Field required", "max_tokens")
	}
	if len(in.Messages) == 0 {
		return nil, badRequest("messages must not be empty.", "messages")
	}
	if len(in.System) > 0 && string(in.System) != "null" {
		in.Messages = append([]message{{Role: "system", Content: in.System}}, in.Messages...)
	}
	g, err := e.newGeneration(&in.requestBody, "msg_")
	if err != nil {
		return nil, err
	}
	g.body, g.events = func(c *call) []byte { return c.messageBody(g) }, func(c *call) error { return c.streamMessage(g) }
	prompt, err := in.render()
	if err != nil {
		return nil, err
	}
	return g, e.addPrompt(g, &in.requestBody, prompt, 1)
}

func (c *call) messageBody(g *generation) []byte {
	s := g.seqs[0]
	b := fmt.Appendf(nil, `{"id":%s,"type":"message","role":"assistant","content":[%s],"model":%s,`+
		`"stop_reason":"%s","stop_sequence":null`, quote(g.id), s.block(false), quote(g.model), stopReason(s))
	if c.fault.Kind != NoUsage {
		b = fmt.Appendf(b, `,"usage":%s`, c.messageUsage(g, s.length))
	}
	return append(b, '}')
}

// messageUsage: vLLM's input_tokens is the whole prompt, cached or not.
func (c *call) messageUsage(g *generation, output int) string {
	return fmt.Sprintf(`{"input_tokens":%d,"output_tokens":%d}`, g.promptTokens, output) // I3
}

func stopReason(s *sequence) string {
	switch {
	case s.reason == "length":
		return "max_tokens"
	case s.call != nil:
		return "tool_use"
	}
	return "end_turn"
}

// streamMessage answers with stream: true. The first event comes with the first token.
func (c *call) streamMessage(g *generation) error {
	s := newEventStream(c, g)
	if err := s.begin(); err != nil {
		return err
	}
	err := s.followOne(func(q *sequence) error {
		if s.output == 0 {
			if err := s.openMessage(); err != nil {
				return err
			}
		}
		if s.output >= q.shown() {
			return nil
		}
		return s.event("content_block_delta", `"index":0,"delta":%s`, q.blockDelta(s.output))
	})
	if err != nil {
		return err
	}
	return s.closeMessage(g.seqs[0])
}

func (s *eventStream) openMessage() error {
	if err := s.event("message_start", `"message":{"id":%s,"type":"message","role":"assistant","content":[],"model":%s,"stop_reason":null,"stop_sequence":null,"usage":%s}`,
		quote(s.g.id), quote(s.g.model), s.messageUsage(s.g, 0)); err != nil {
		return err
	}
	return s.event("content_block_start", `"index":0,"content_block":%s`, s.g.seqs[0].block(true))
}

func (s *eventStream) closeMessage(q *sequence) error {
	if err := s.event("content_block_stop", `"index":0`); err != nil {
		return err
	}
	usage := ""
	if s.fault.Kind != NoUsage {
		usage = `,"usage":` + s.messageUsage(s.g, s.output)
	}
	if err := s.event("message_delta", `"delta":{"stop_reason":"%s","stop_sequence":null}%s`, stopReason(q), usage); err != nil {
		return err
	}
	if s.fault.Kind != NoDone {
		if err := s.event("message_stop", ""); err != nil {
			return err
		}
	}
	return s.endNamed()
}

// event appends an event of an API that names them; the name is also the data's type.
func (s *eventStream) event(name, members string, values ...any) error {
	if err := s.tick(); err != nil {
		return err
	}
	s.buf = fmt.Appendf(s.buf, `event: %s`+"\n"+`data: {"type":"%s"`, name, name)
	if members != "" {
		s.buf = fmt.Appendf(append(s.buf, ','), members, values...)
	}
	s.buf = append(s.buf, "}\n\n"...)
	return nil
}

// endNamed ends a stream without [DONE].
func (s *eventStream) endNamed() error {
	if s.fault.After >= s.events {
		if err := s.strike(); err != nil { // the answer was shorter than After
			return err
		}
	}
	return s.flush()
}
