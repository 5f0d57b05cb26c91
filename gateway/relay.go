package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// maxUnsent bounds what is held of a stream before its first event: beyond it the answer begins without one.
const maxUnsent = 1 << 20

// keepAliveEvery is how long an engine may be quiet before the client is sent a comment, so that nothing between the two
// takes the connection for dead. Proxies close idle connections after 30 to 60 s.
const keepAliveEvery = 15 * time.Second

var keepAlive = []byte(": keep-alive\n\n")

// endGrace is how long the end of the body may take once the stream has said it is over.
const endGrace = time.Second

var taps = sync.Pool{New: func() any { return sse.NewTap(sse.Options{}) }}

// stream is one event stream on its way to the client.
type stream struct {
	r       *request
	reply   *upstreamReply
	answer  plainAnswer
	tap     *sse.Tap
	held    []byte // what came before the answer began
	gone    bool   // the client is
	running bool   // the engine has begun to generate: from now on it may not be silent for long
	events  int    // when r.lastAt was set
}

// relayStream passes an event stream on as it comes. Until its first data event the client is sent nothing, so the
// attempt can still be repeated; HeadBy goes on to bound that wait.
func (r *request) relayStream(b *cluster.Backend, reply *upstreamReply) attemptEnd {
	s := &stream{r: r, reply: reply, tap: taps.Get().(*sse.Tap)}
	defer taps.Put(s.tap)
	s.tap.Reset(r.streamOptions())
	err := s.answer.open(reply)
	for err == nil {
		if err = s.more(); err == errUpstreamQuiet {
			err = s.comfort()
		}
	}
	if !r.begun {
		return r.afterBody(b, err)
	}
	s.end(err)
	return attemptEnd{kind: answered}
}

// more passes on one read, and from then on all there are.
func (s *stream) more() error {
	if s.running && !s.answer.packed() {
		return s.reply.Each(s.take)
	}
	chunk, err := s.answer.Next()
	if err == nil {
		err = s.take(chunk)
	}
	return err
}

// take passes on what one read brought. An error ends the stream. It is not inlined, nor is end: with their locals beside
// relayStream's a stream that waits for its next token would keep a stack of 16 KiB instead of 8.
//
//go:noinline
func (s *stream) take(chunk []byte) error {
	r, now := s.r, time.Now()
	r.collect(chunk)
	s.tap.Feed(chunk, s.out)
	seen := s.tap.Seen()
	if !r.begun {
		if seen.Fruitless { // it has shown nothing of an answer
			return fmt.Errorf("the first event is an error: %s", seen.ErrorBody)
		}
		if !s.tap.Generating() && len(s.held) <= maxUnsent { // that a response was taken in is no answer yet
			return nil
		}
		s.begin(now)
	}
	if !s.running && s.tap.Generating() {
		s.running = true
		s.reply.SetReadBy(time.Time{})
		s.reply.SetSilence(r.g.cfg.StreamSilence)
	}
	switch {
	case seen.Done:
		r.lastAt = now
		s.reply.SetReadBy(now.Add(endGrace))
	case seen.Events != s.events || seen.Unfinished > 0:
		r.lastAt, s.events = now, seen.Events
	case s.running && now.Sub(r.lastAt) > r.g.cfg.StreamSilence: // comments are no answer
		return errUpstreamSilent
	}
	switch {
	case s.gone:
		return errUpstreamAborted
	case !r.topUp(seen):
		return errBudgetEnded
	}
	return nil
}

// errBudgetEnded ends a stream whose hold is used up and cannot grow.
var errBudgetEnded = errors.New("the budget is used up")

// out hands on what may be sent.
func (s *stream) out(p []byte) {
	switch {
	case !s.r.begun:
		s.held = append(s.held, p...)
	case !s.gone:
		s.gone = !s.r.write(s.reply, p)
	}
}

// begin sends the head and what was held.
func (s *stream) begin(now time.Time) {
	r := s.r
	r.firstAt, r.lastAt = now, now
	r.keepResponse(s.tap.Seen().ResponseID)
	r.beginAnswer(s.reply.Status, r.answerFields(string(s.reply.ContentType()), s.answer.encoding), -1)
	s.reply.forgetHead()
	s.out(s.held)
	s.held = nil
	if !s.answer.packed() {
		s.reply.SetWake(r.g.keepAlive)
	}
}

// comfort tells a client whose engine is quiet that the stream is alive. The comment stands between two events and changes
// none; where an event's end has not come it is left out.
func (s *stream) comfort() error {
	if s.tap.Seen().Unfinished == 0 {
		s.out(keepAlive)
	}
	if s.gone {
		return errUpstreamAborted
	}
	return nil
}

// streamOptions says how the stream is to be read.
func (r *request) streamOptions() sse.Options {
	return sse.Options{Shape: r.route.shape, Strip: !r.scan.IncludeUsage, Whole: true, Choices: int(min(r.scan.N*r.scan.Prompts, 1<<20))}
}

// end says how a stream that had begun ended, tells the client if it did not end well, and takes its usage. What was held
// of an event goes to the client only where the stream ended in order.
//
//go:noinline
func (s *stream) end(err error) {
	r, seen := s.r, s.tap.Seen()
	finished, failed, events := seen.Finished(), seen.Failed, seen.Events // as the client was shown
	if err == io.EOF {
		var rest []byte
		seen = s.tap.Close(func(p []byte) { rest = append(rest, p...) })
		if finished = seen.Finished(); finished && seen.Events > events { // only its blank line is missing
			s.out(rest)
		}
	} else {
		seen = s.tap.End()
	}
	r.served = true
	r.usage = r.streamUsage(seen)
	switch {
	case r.record.Outcome == coordinator.OutcomeClientGone: // found out while writing
	case finished: // whatever the connection did then
	case failed: // the engine's own error event went to the client
		r.record.Outcome = coordinator.OutcomeUpstreamError
		r.record.ErrorCode = protocol.CodeUpstreamError
	case r.broke(err):
		r.breakOff(seen)
	}
}

// broke files why an answer that had begun did not come to its end; it is false when nobody is left to be told.
func (r *request) broke(err error) (present bool) {
	r.record.ErrorCode = protocol.CodeStreamTruncated
	switch {
	case errors.Is(context.Cause(r.ctx), errShutdown):
		r.record.ErrorCode = protocol.CodeShutdown
	case r.ctx.Err() != nil || errors.Is(err, errUpstreamAborted):
		r.record.Outcome, r.record.ErrorCode = coordinator.OutcomeClientGone, ""
		return false
	case errors.Is(err, errUpstreamSilent):
		r.record.ErrorCode = protocol.CodeTimeout
	case errors.Is(err, errBudgetEnded):
		r.record.ErrorCode = protocol.CodeInsufficientQuota
	}
	r.record.Outcome = outcomeOf(r.record.ErrorCode)
	return true
}

// breakOff ends a stream with an error event and no [DONE], so that it is not taken for a whole answer.
func (r *request) breakOff(seen sse.End) {
	e := protocol.StreamTruncated()
	switch r.record.ErrorCode {
	case protocol.CodeShutdown:
		e = protocol.Shutdown()
	case protocol.CodeTimeout:
		e = protocol.Timeout("The model server fell silent.")
	case protocol.CodeInsufficientQuota:
		e = protocol.InsufficientQuota("The budget was used up while the answer was being made.")
	}
	event := sse.AppendBreak(nil, seen, e)
	if r.x.Write(event) == nil {
		r.record.ResponseBytes += int64(len(event))
	}
}

// streamUsage is what the engine said, else an estimate from what was relayed: one event is at least one token, and the text
// has as many as the model's texts had before.
func (r *request) streamUsage(seen sse.End) protocol.Usage {
	if seen.Usage.Source == protocol.Backend {
		return seen.Usage
	}
	prompt, cached := r.promptEstimate(), int64(0)
	if seen.Opening.Prompt > 0 { // a message that broke off: its prompt is known
		prompt, cached = seen.Opening.Prompt, seen.Opening.Cached
	}
	return protocol.Usage{
		Prompt:     prompt,
		Cached:     cached,
		Completion: r.atMost(max(seen.Opening.Completion, int64(seen.Texts), r.tokensIn(seen.TextBytes))),
		Source:     protocol.Estimated,
	}
}

// atMost bounds an estimate of output tokens: an engine that was told a cap has not made more.
func (r *request) atMost(tokens int64) int64 {
	total, perChoice := r.outputBound()
	if perChoice > 0 && !r.heldWhole() { // neither the client nor we told one
		return tokens
	}
	return min(tokens, total)
}
