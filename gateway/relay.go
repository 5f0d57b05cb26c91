package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// maxWholeAnswer bounds what is held of an answer that is not streamed, so that it can still be repeated elsewhere;
// a larger one is passed on as it comes.
const maxWholeAnswer = 32 << 20

var taps = sync.Pool{New: func() any { return sse.NewTap(sse.Options{}) }}

// relayStream passes an event stream on as it comes. Until its first data event the client is sent nothing, so the
// attempt can still be repeated.
func (r *request) relayStream(b *cluster.Backend, reply *upstreamReply) attemptEnd {
	tap := taps.Get().(*sse.Tap)
	defer taps.Put(tap)
	tap.Reset(r.streamOptions())
	reply.SetReadBy(time.Now().Add(r.g.cfg.FirstTokenTimeout))

	var held []byte // what came before the first data event
	present := true // the client is there
	out := func(p []byte) {
		switch {
		case !r.begun:
			held = append(held, p...)
		case present:
			present = r.write(reply, p)
		}
	}
	var err error
	for present {
		var chunk []byte
		if chunk, err = reply.Next(); err != nil {
			break
		}
		r.lastAt = time.Now()
		tap.Feed(chunk, out)
		if !r.begun && tap.Started() {
			if tap.Seen().Failed {
				return r.afterFirstError(tap.Seen())
			}
			r.firstAt = r.lastAt
			r.keepResponse(tap.Seen().ResponseID)
			r.beginAnswer(reply.Status, r.answerFields(string(reply.ContentType()), string(reply.Get("content-encoding"))), -1)
			out(held)
			reply.SetReadBy(time.Time{})
			reply.SetSilence(r.g.cfg.StreamSilence)
		}
	}
	if !r.begun {
		return r.afterBody(b, err)
	}
	r.endStream(tap, out, err)
	return attemptEnd{kind: answered}
}

// streamOptions says how the stream is to be read.
func (r *request) streamOptions() sse.Options {
	return sse.Options{Shape: r.route.shape, Strip: !r.scan.IncludeUsage, Choices: int(min(r.scan.N*r.scan.Prompts, 1<<20))}
}

// afterFirstError: a stream whose first event is an error has shown nothing of an answer.
func (r *request) afterFirstError(seen sse.End) attemptEnd {
	r.g.deps.Log.Warn().Bytes("error", seen.ErrorBody).Str("backend", r.record.Backend).Str("rid", r.record.RID).Msg("attempt failed")
	return attemptEnd{failed, refusalOf(protocol.UpstreamError())}
}

// endStream says how a stream that had begun ended, tells the client if it did not end well, and takes its usage.
func (r *request) endStream(tap *sse.Tap, out func([]byte), err error) {
	var seen sse.End
	if err == io.EOF {
		seen = tap.Close(out)
	} else {
		seen = tap.End()
	}
	r.served = true
	r.usage = r.streamUsage(seen)
	switch {
	case r.record.Outcome == coordinator.OutcomeClientGone: // found out while writing
	case seen.Finished(): // whatever the connection did then
	case errors.Is(context.Cause(r.ctx), errShutdown):
		r.breakOff(seen, protocol.Shutdown())
	case r.ctx.Err() != nil || errors.Is(err, errUpstreamAborted):
		r.record.Outcome = coordinator.OutcomeClientGone
	case seen.Failed: // the engine's own error event went to the client
		r.record.Outcome = coordinator.OutcomeUpstreamError
		r.record.ErrorCode = protocol.CodeUpstreamError
	case errors.Is(err, errUpstreamSilent):
		r.breakOff(seen, protocol.Timeout("The model server fell silent."))
	default:
		r.breakOff(seen, protocol.StreamTruncated())
	}
}

// breakOff ends a stream with an error event and no [DONE], so that it is not taken for a whole answer.
func (r *request) breakOff(seen sse.End, e protocol.Error) {
	r.record.Outcome = outcomeOf(e.Code)
	r.record.ErrorCode = e.Code
	event := sse.AppendBreak(nil, seen, e)
	if r.x.Write(event) == nil {
		r.record.ResponseBytes += int64(len(event))
	}
}

// streamUsage is what the engine said, else an estimate from what was relayed. One event is at least one token, and a
// token rarely has more than bytesPerToken bytes.
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
		Completion: max(seen.Opening.Completion, int64(seen.Texts), (seen.TextBytes+bytesPerToken-1)/bytesPerToken),
		Source:     protocol.Estimated,
	}
}

// relayWhole takes in an answer that is not streamed and passes it on in one piece. An engine's own 4xx passes too,
// byte for byte.
func (r *request) relayWhole(b *cluster.Backend, reply *upstreamReply) attemptEnd {
	reply.SetReadBy(time.Now().Add(r.g.cfg.RequestTimeout))
	answer, err := readWhole(reply)
	if err != nil && err != io.EOF {
		return r.afterBody(b, err)
	}
	r.lastAt = time.Now()
	r.firstAt = r.lastAt
	encoding := string(reply.Get("content-encoding"))
	fields := r.answerFields(string(reply.ContentType()), encoding)
	length := int64(len(answer))
	if err == nil {
		length = reply.ContentLength()
	}
	if reply.Status >= 400 {
		r.counted = true
		r.record.Outcome = coordinator.OutcomeRejected
		r.record.ErrorCode = "upstream_" + strconv.Itoa(reply.Status)
		if v := reply.Get("retry-after"); v != nil {
			fields = append(fields, headerField{"Retry-After", string(v)})
		}
	}
	if reply.Status < 300 && r.route.kept {
		r.keepResponse(protocol.ResponseIDOf(answer))
	}
	r.beginAnswer(reply.Status, fields, length)
	present := r.write(reply, answer)
	for more := answer; err == nil && present; {
		if more, err = reply.Next(); err == nil {
			present = r.write(reply, more)
		}
	}
	if reply.Status < 400 {
		r.wholeUsage(answer, encoding, err)
	}
	return attemptEnd{kind: answered}
}

// readWhole reads an answer to its end (io.EOF), or as much as is held at most (nil).
func readWhole(reply *upstreamReply) (answer []byte, err error) {
	if n := reply.ContentLength(); n > 0 {
		answer = make([]byte, 0, min(n, maxWholeAnswer))
	}
	for len(answer) < maxWholeAnswer {
		chunk, err := reply.Next()
		if err != nil {
			return answer, err
		}
		answer = append(answer, chunk...)
	}
	return answer, nil
}

// wholeUsage takes the usage of an answer and keeps the answer for the cache if it is complete and good.
func (r *request) wholeUsage(answer []byte, encoding string, err error) {
	r.served = true
	usage, known := protocol.UsageOf(answer)
	switch {
	case err != io.EOF && r.record.Outcome != coordinator.OutcomeClientGone:
		r.record.Outcome = coordinator.OutcomeUpstreamTruncated
		r.record.ErrorCode = protocol.CodeStreamTruncated
	case encoding == "" && !known && hasError(answer): // an error inside a 200
		r.served, r.counted = false, true
		r.record.Outcome = coordinator.OutcomeUpstreamError
		r.record.ErrorCode = protocol.CodeUpstreamError
		return
	}
	if !known {
		usage = r.wholeEstimate(answer)
	}
	r.usage = usage
	if known && r.hash != "" && r.record.Outcome == coordinator.OutcomeOK && cacheable(answer, r.model.Cache.MaxBytes) {
		r.store = answer
	}
}

// wholeEstimate is the usage of an answer that tells none: of its length, where it consists of tokens. Where it does not
// (older engines rank without prompt_tokens) the total is the prompt's.
func (r *request) wholeEstimate(answer []byte) protocol.Usage {
	u := protocol.Usage{Prompt: r.promptEstimate(), Source: protocol.Estimated}
	if r.route.kind.Generates() {
		u.Completion = (int64(len(answer)) + bytesPerToken - 1) / bytesPerToken
	} else if total, told := protocol.TotalOf(answer); told {
		u.Prompt, u.Source = total, protocol.Backend
	}
	return u
}

func hasError(answer []byte) bool {
	var a struct{ Error json.RawMessage }
	return json.Unmarshal(answer, &a) == nil && len(a.Error) > 0 && string(a.Error) != "null"
}
