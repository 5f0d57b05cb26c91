package engine

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// eventStream writes the events of one streamed answer. What belongs to one step goes out in one write.
type eventStream struct {
	*call
	g      *generation
	before []byte // of an event: up to the number of the choice
	buf    []byte
	events int   // data events so far, [DONE] not counted
	sent   []int // tokens per choice
	output int
}

// stream answers a request with stream: true. The head goes out before the first token is there, as vLLM's does.
func (c *call) stream(g *generation) error {
	object := "text_completion"
	if g.chat {
		object = "chat.completion.chunk"
	}
	s := newEventStream(c, g)
	s.before = fmt.Appendf(nil, `data: {"id":%s,"object":"%s","created":%d,"model":%s,"choices":[`,
		quote(g.id), object, time.Now().Unix(), quote(g.model))
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.follow(s.news); err != nil {
		return err
	}
	return s.end()
}

func newEventStream(c *call, g *generation) *eventStream {
	return &eventStream{call: c, g: g, sent: make([]int, len(g.seqs))}
}

// begin sends the head, before the first token is there.
func (s *eventStream) begin() error {
	s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s.head(http.StatusOK)
	return s.flush()
}

// follow sends what news appends, until the generation has ended.
func (s *eventStream) follow(news func() error) error {
	for done := false; !done; {
		if err := s.wait(); err != nil {
			return err
		}
		done = s.g.finished() // read before the counts, so that the last turn sees every token
		if err := news(); err != nil {
			return err
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}

// wait returns when there is news.
func (s *eventStream) wait() error {
	if !s.g.background {
		return s.await(s.g)
	}
	q, ctx := s.g.seqs[0], s.r.Context()
	if err := s.engine.poll(func() bool { return q.done.Load() || int(q.generated.Load()) > s.output || ctx.Err() != nil }); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errClientGone
	}
	return nil
}

// followOne is follow for an answer with one choice: token appends the events of its token number s.output.
func (s *eventStream) followOne(token func(q *sequence) error) error {
	q := s.g.seqs[0]
	return s.follow(func() error {
		for ; s.output < int(q.generated.Load()); s.output++ {
			if s.output == 0 {
				s.firstToken()
			}
			if err := token(q); err != nil {
				return err
			}
		}
		return nil
	})
}

// news appends the events of all tokens that have not been sent.
func (s *eventStream) news() error {
	if s.events == 0 && s.g.chat {
		ready := false
		for _, q := range s.g.seqs {
			ready = ready || q.generated.Load() > 0
		}
		if !ready {
			return nil
		}
		for i := range s.g.seqs {
			if err := s.role(i); err != nil {
				return err
			}
		}
	}
	for i, q := range s.g.seqs {
		for ; s.sent[i] < int(q.generated.Load()); s.sent[i]++ {
			if s.output == 0 {
				s.firstToken()
			}
			s.output++
			if err := s.token(i, q); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *eventStream) role(i int) error {
	if err := s.open(); err != nil {
		return err
	}
	s.buf = append(s.buf, `{"index":`...)
	s.buf = strconv.AppendInt(s.buf, int64(i), 10)
	s.buf = append(s.buf, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null`...)
	s.close()
	return nil
}

// token appends the event of the next token of choice i; the last one carries the reason.
func (s *eventStream) token(i int, q *sequence) error {
	if err := s.open(); err != nil {
		return err
	}
	s.buf = append(s.buf, `{"index":`...)
	s.buf = strconv.AppendInt(s.buf, int64(i), 10)
	last := s.sent[i] == q.length-1
	s.content(i, q, last)
	s.buf = append(s.buf, `,"logprobs":null,"finish_reason":`...)
	if last {
		s.buf = append(append(append(s.buf, '"'), q.finishReason()...), `","stop_reason":null,"token_ids":null}]`...)
	} else {
		s.buf = append(s.buf, `null,"token_ids":null}]`...)
	}
	s.close()
	return nil
}

// content is the token's text: none for the end token.
func (s *eventStream) content(i int, q *sequence, last bool) {
	end := last && q.reason == "stop"
	switch {
	case s.g.chat && end:
		s.buf = append(s.buf, `,"delta":{}`...)
	case s.g.chat && q.call != nil:
		s.buf = append(append(s.buf, `,"delta":`...), q.chatCallDelta(s.sent[i])...)
	case s.g.chat:
		s.buf = append(s.buf, `,"delta":{"content":"`...)
		s.buf = append(append(s.buf, tokenText(q.seed, s.sent[i])...), `"}`...)
	case end:
		s.buf = append(s.buf, `,"text":""`...)
	default:
		s.buf = append(s.buf, `,"text":"`...)
		s.buf = append(append(s.buf, tokenText(q.seed, s.sent[i])...), '"')
	}
}

// open begins an event, unless the fault strikes here.
func (s *eventStream) open() error {
	if err := s.tick(); err != nil {
		return err
	}
	s.buf = append(s.buf, s.before...)
	return nil
}

// tick is called before each event.
func (s *eventStream) tick() error {
	if s.events == s.fault.After {
		if err := s.strike(); err != nil {
			return err
		}
	}
	if s.fault.Kind == Slow {
		if err := s.flush(); err != nil {
			return err
		}
		if s.pause(); s.r.Context().Err() != nil {
			return errClientGone // what it would still say may fit into the connection
		}
	}
	s.events++
	return nil
}

func (s *eventStream) close() {
	if s.g.everyUsage && s.fault.Kind != NoUsage {
		s.buf = append(append(s.buf, `,"usage":`...), s.usage(s.g, s.output)...)
	}
	s.buf = append(s.buf, "}\n\n"...)
}

// end sends what follows the last token.
func (s *eventStream) end() error {
	if s.fault.After >= s.events {
		if err := s.strike(); err != nil { // the answer was shorter than After
			return err
		}
	}
	if s.g.includeUsage && s.fault.Kind != NoUsage {
		s.buf = append(append(s.buf, s.before...), `],"usage":`...)
		s.buf = append(append(s.buf, s.usage(s.g, s.output)...), ",\"system_fingerprint\":\"vllm-0.24.0-tp1-51a1a7ed\"}\n\n"...)
	}
	if s.fault.Kind != NoDone {
		s.buf = append(s.buf, "data: [DONE]\n\n"...)
	}
	return s.flush()
}

// strike plays a fault in mid-stream; nil when the stream goes on.
func (s *eventStream) strike() error {
	switch s.fault.Kind {
	case Cut, Reset, HangStream, ErrorEvent, Garbage:
	default:
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	s.pause()
	switch s.fault.Kind {
	case Cut:
		s.hangUp(false)
	case Reset:
		s.hangUp(true)
	case Garbage:
		s.hangUp(false, "zz\r\nthis is no chunk\r\n")
	case HangStream:
		for _, q := range s.g.seqs {
			q.stalled.Store(true)
		}
		<-s.r.Context().Done()
	case ErrorEvent:
		s.buf = appendErrorEvent(s.buf, s.r.URL.Path, &apiError{http.StatusInternalServerError,
			"InternalServerError", "EngineCore encountered an issue.", ""})
		s.flush()
	}
	return errFault
}

// appendErrorEvent writes an error in mid-stream as each API of vLLM does.
func appendErrorEvent(b []byte, path string, e *apiError) []byte {
	switch path {
	case messagesPath:
		return fmt.Appendf(b, "event: error\ndata: %s\n\n", e.messagesBody())
	case responsesPath:
		return fmt.Appendf(b, "event: unknown\ndata: %s\n\n", e.body())
	}
	return fmt.Appendf(b, "data: %s\n\ndata: [DONE]\n\n", e.body())
}

// flush sends what was appended. An empty one sends the head.
func (s *eventStream) flush() error {
	if len(s.buf) > 0 {
		if _, err := s.w.Write(s.buf); err != nil {
			return errClientGone
		}
		s.buf = s.buf[:0]
	}
	if err := http.NewResponseController(s.w).Flush(); err != nil {
		return errClientGone
	}
	return nil
}
