package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// maxWholeAnswer bounds what is held of an answer that is not streamed, so that it can still be repeated elsewhere;
// a larger one is passed on as it comes.
const maxWholeAnswer = 32 << 20

// relayWhole takes in an answer that is not streamed and passes it on in one piece. An engine's own 4xx passes too,
// byte for byte. HeadBy goes on to bound the wait for all of it.
func (r *request) relayWhole(b *cluster.Backend, reply *upstreamReply) attemptEnd {
	if r.scan.Stream { // its patience was for a first event; this is another answer than was asked for
		reply.SetReadBy(r.start.Add(r.g.cfg.RequestTimeout))
	}
	var a plainAnswer
	if err := a.open(reply); err != nil {
		return r.afterBody(b, err)
	}
	answer, err := a.readAtMost(maxWholeAnswer)
	if err != nil && err != io.EOF {
		return r.afterBody(b, err)
	}
	if reply.Status == 400 && err == io.EOF && r.ownCap(b) > 0 && tooLong(answer) {
		return attemptEnd{kind: overfull}
	}
	usage, known := protocol.UsageOf(answer)
	if err == io.EOF && !known && reply.Status < 300 {
		if fault := hollow(reply, &a, answer); fault != nil { // nothing was sent yet
			return r.afterBody(b, fault)
		}
	}
	r.lastAt = time.Now()
	r.firstAt = r.lastAt
	fields := r.answerFields(string(reply.ContentType()), a.encoding)
	length := int64(len(answer))
	if err == nil {
		length = a.length()
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
	if err == nil && present {
		usage, known, err = r.passRest(reply, &a, answer)
	}
	if reply.Status < 400 {
		r.wholeUsage(answer, usage, known, err)
	}
	return attemptEnd{kind: answered}
}

// tooLong reports whether an engine's refusal says that prompt and cap exceed its context. Then what its context leaves to
// the answer is less than the cap, which is held: without the cap the answer costs no more than that.
func tooLong(refusal []byte) bool {
	return bytes.Contains(refusal, []byte("context length")) || bytes.Contains(refusal, []byte("context size"))
}

// passRest passes on what is too large to be held, and looks for its usage as it goes by.
func (r *request) passRest(reply *upstreamReply, a *plainAnswer, answer []byte) (usage protocol.Usage, known bool, err error) {
	tap := taps.Get().(*sse.Tap)
	defer taps.Put(tap)
	tap.Reset(sse.Options{})
	out := func([]byte) {}
	tap.Feed([]byte("data: "), out) // to a tap a JSON body on one line is an event
	tap.Feed(onOneLine(answer), out)
	for present := true; err == nil && present; {
		var more []byte
		if more, err = a.Next(); err == nil {
			present = r.write(reply, more)
			tap.Feed(onOneLine(more), out)
		}
	}
	usage = tap.End().Usage
	return usage, usage.Source == protocol.Backend, err
}

// onOneLine takes the line ends out of JSON, in place: between its tokens they mean no more than a blank.
func onOneLine(b []byte) []byte {
	for _, end := range [...]byte{'\n', '\r'} {
		for rest := b; ; {
			i := bytes.IndexByte(rest, end)
			if i < 0 {
				break
			}
			rest[i] = ' '
			rest = rest[i+1:]
		}
	}
	return b
}

// wholeUsage takes the usage of an answer and keeps the answer for the cache if it is complete and good.
func (r *request) wholeUsage(answer []byte, usage protocol.Usage, known bool, err error) {
	r.served = true
	if err != io.EOF && r.record.Outcome != coordinator.OutcomeClientGone && r.broke(err) {
		r.x.Cut()
	}
	if !known {
		usage = r.wholeEstimate(answer)
	}
	r.usage = usage
	if known && len(answer) < maxWholeAnswer { // a larger one is not all there
		r.store = answer
	}
}

// wholeEstimate is the usage of an answer that tells none: of its length, where it consists of tokens. Where it does not
// (older engines rank without prompt_tokens) the total is the prompt's.
func (r *request) wholeEstimate(answer []byte) protocol.Usage {
	u := protocol.Usage{Prompt: r.promptEstimate(), Source: protocol.Estimated}
	if r.route.kind.Generates() {
		u.Completion = r.atMost(r.tokensIn(int64(len(answer))))
	} else if total, told := protocol.TotalOf(answer); told {
		u.Prompt, u.Source = total, protocol.Backend
	}
	return u
}

var errHollow = errors.New("a success without an answer")

// hollow says why an answer that calls itself a success is none: it is empty, it is an error, or it is JSON that was cut
// where the framing does not show it.
func hollow(reply *upstreamReply, a *plainAnswer, answer []byte) error {
	if len(answer) == 0 && reply.Status != 204 && !isType(reply.ContentType(), "text/plain") { // silence has an empty transcript
		return fmt.Errorf("%w: it is empty", errHollow)
	}
	if a.encoding != "" || !isType(reply.ContentType(), "application/json") {
		return nil
	}
	var got struct {
		Object string
		Error  json.RawMessage
	}
	if err := json.Unmarshal(answer, &got); err != nil && !json.Valid(answer) {
		return fmt.Errorf("%w: %w", errHollow, err)
	}
	failed := len(got.Error) > 0 && string(got.Error) != "null" && got.Object != "response" // a response may have failed and is one
	if failed || got.Object == "error" {
		return fmt.Errorf("%w: %.300s", errHollow, answer)
	}
	return nil
}

// isType compares a media type without its parameters.
func isType(contentType []byte, want string) bool {
	name, _, _ := bytes.Cut(contentType, []byte{';'})
	return engineEqualFold(bytes.TrimSpace(name), want)
}
