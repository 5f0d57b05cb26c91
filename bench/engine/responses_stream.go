package engine

import "strconv"

// responseStream numbers the events of one Responses object; every stream of it has the same ones.
type responseStream struct {
	*eventStream
	kept  *response
	next  int // sequence_number
	after int // events up to this number are left out
}

// streamResponse streams the object from its beginning, whether it is being made or was. The first two events come at
// once, as vLLM's do: they are no sign of progress.
func (c *call) streamResponse(kept *response, after int) error {
	s := &responseStream{eventStream: newEventStream(c, kept.g), kept: kept, after: after}
	if err := s.begin(); err != nil {
		return err
	}
	for _, name := range []string{"response.created", "response.in_progress"} {
		if err := s.event(name, `"response":%s`, kept.object(c, "in_progress")); err != nil {
			return err
		}
	}
	if err := s.flush(); err != nil {
		return err
	}
	if err := s.followOne(s.step); err != nil {
		return err
	}
	if kept.cancelled.Load() {
		return s.flush()
	}
	return s.close(kept.g.seqs[0])
}

// step appends the events of the next token.
func (s *responseStream) step(q *sequence) error {
	if s.output == 0 {
		if err := s.event("response.output_item.added", `"output_index":0,"item":%s`, s.kept.item("in_progress", "")); err != nil {
			return err
		}
		if q.call == nil {
			if err := s.event("response.content_part.added", `"output_index":0,"item_id":%s,"content_index":0,"part":%s`, s.kept.itemID(), part("")); err != nil {
				return err
			}
		}
	}
	if s.output >= q.shown() {
		return nil
	}
	return s.delta(q)
}

func (s *responseStream) delta(q *sequence) error {
	if q.call != nil {
		return s.event("response.function_call_arguments.delta", `"output_index":0,"item_id":%s,"delta":%s`, s.kept.itemID(), quote(q.piece(s.output)))
	}
	return s.event("response.output_text.delta", `"output_index":0,"item_id":%s,"content_index":0,"delta":"%s","logprobs":[]`, s.kept.itemID(), q.piece(s.output))
}

// close sends what follows the last token. Usage stands in the last event alone.
func (s *responseStream) close(q *sequence) error {
	text := string(q.answer())
	if err := s.closePart(q, text); err != nil {
		return err
	}
	if err := s.event("response.output_item.done", `"output_index":0,"item":%s`, s.kept.item("completed", text)); err != nil {
		return err
	}
	if s.fault.Kind != NoDone {
		if err := s.event("response.completed", `"response":%s`, s.kept.object(s.call, "")); err != nil {
			return err
		}
	}
	return s.endNamed()
}

func (s *responseStream) closePart(q *sequence, text string) error {
	if q.call != nil {
		return s.event("response.function_call_arguments.done", `"output_index":0,"item_id":%s,"name":%s,"arguments":%s`, s.kept.itemID(), quote(q.call.name), quote(text))
	}
	if err := s.event("response.output_text.done", `"output_index":0,"item_id":%s,"content_index":0,"text":"%s","logprobs":[]`, s.kept.itemID(), text); err != nil {
		return err
	}
	return s.event("response.content_part.done", `"output_index":0,"item_id":%s,"content_index":0,"part":%s`, s.kept.itemID(), part(text))
}

// event appends the next event, unless the client has it.
func (s *responseStream) event(name, members string, values ...any) error {
	number := s.next
	s.next++
	if number <= s.after {
		return nil
	}
	return s.eventStream.event(name, `"sequence_number":`+strconv.Itoa(number)+`,`+members, values...)
}
