package gateway

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/scan"
)

// attemptEnd is how one attempt ended.
type attemptEnd struct {
	kind attemptKind
	no   *refusal // what the client is told if nothing else is tried; nil when it was answered
}

// attemptKind decides what may follow. The zero value is not an end.
type attemptKind int

const (
	answered attemptKind = iota + 1 // the client got an answer, or as much of it as there was
	failed                          // nothing was sent, by the backend's fault: another may be tried
	overfull                        // the engine refused it for the cap that was written: sent once more there, without
	final                           // nothing was sent, and nothing else may be tried: a timeout, a client that left
)

// forward makes attempts until one answers or nothing is left to try. Repeating is decided here and nowhere else. // I2
func (r *request) forward() {
	for {
		end := r.attempt()
		if end.kind == answered {
			return
		}
		if end.kind == failed && r.record.Attempts < r.g.cfg.Attempts && r.ctx.Err() == nil && r.moveOn() {
			continue
		}
		r.counted = true // an engine was asked: the request stays counted, nothing else
		r.refuse(end.no)
		return
	}
}

// moveOn gets a slot on another backend; the slot of the failed one goes back in the same script.
func (r *request) moveOn() bool {
	failedOn := r.place.Backend
	rest := r.backends[:0:0]
	for _, b := range r.backends {
		if b.ID != failedOn && b.Usable() {
			rest = append(rest, b)
		}
	}
	r.backends = rest
	return r.placeAgain(failedOn) == nil
}

// placeAgain asks for a slot for the next attempt, and waits for it like the first time.
func (r *request) placeAgain(not string) *refusal {
	started := time.Now()
	no := r.placedBy(r.askFor(r.ask.Attempt+1, not))
	r.redis += time.Since(started)
	if no == nil {
		no = r.queue()
	}
	return no
}

// attempt sends the request to the backend placement chose and relays its answer.
func (r *request) attempt() attemptEnd {
	if r.placed && r.alone == "" && r.g.deps.Placement.Stale(r.ask.Pool) { // the fleet may have given the slot to somebody else
		if no := r.placeAgain(""); no != nil {
			return attemptEnd{final, no}
		}
	}
	b := r.find(r.place.Backend)
	if b == nil {
		return attemptEnd{failed, r.noBackend()}
	}
	r.backend = b
	r.record.Attempts++
	r.record.Backend = b.ID
	end := r.send(b)
	if end.kind == overfull { // no other attempt: the engine did nothing yet
		r.uncapped = true
		end = r.send(b)
	}
	return end
}

// send is one exchange with the backend.
func (r *request) send(b *cluster.Backend) attemptEnd {
	reply, fault := r.headOf(b)
	if fault != nil {
		return r.afterFault(b, fault)
	}
	defer reply.Close(true)
	switch {
	case reply.Status >= 500, reply.Status >= 300 && reply.Status < 400: // an engine has nothing to redirect to
		reply.Abort()
		return r.afterStatus(b, reply.Status)
	case reply.Status < 300 && isType(reply.ContentType(), "text/event-stream"):
		return r.relayStream(b, reply)
	}
	return r.relayWhole(b, reply)
}

// headOf sends the request and returns with the head of the answer.
//
//go:noinline
func (r *request) headOf(b *cluster.Backend) (*upstreamReply, *upstreamFault) {
	r.sentAt = time.Now()
	return r.g.upstream.Do(r.ctx, r.call(b))
}

//go:noinline
func (r *request) noBackend() *refusal { return refusalOf(protocol.NoBackend(r.model.Name)) }

// find is the backend of that id as Consul knows it now: a grant may name one that was no candidate.
func (r *request) find(id string) *cluster.Backend {
	for _, b := range r.backends {
		if b.ID == id {
			return b
		}
	}
	if pool, ok := r.g.deps.Cluster.Pool(r.model.Pool); ok {
		for _, b := range pool.Backends {
			if b.ID == id {
				return b
			}
		}
	}
	return nil
}

// passed are the client's fields an engine may see; everything else stays here, credentials above all.
var passed = [...]string{"Content-Type", "Accept", "User-Agent", "Traceparent", "Tracestate", "Anthropic-Version", "Anthropic-Beta"}

// call is the request as the engine gets it: the client's bytes with a few values spliced in, and headers of our own.
func (r *request) call(b *cluster.Backend) upstreamCall {
	want := scan.Want{Model: r.model.Name, IncludeUsage: true}
	want.MaxTokens = r.ownCap(b)
	priority := r.enginePriority(b)
	want.Priority, want.CacheSalt = &priority, r.salt(r.admission.Isolate, r.admission.Team)
	parts, length := scan.Splice(nil, r.body, r.scan.Edits(nil, want))
	header := make([]headerField, 0, len(passed)+1)
	for _, name := range passed {
		for _, v := range r.x.Header(name) {
			header = append(header, headerField{name, v})
		}
	}
	id := r.record.RequestID + "-" + r.record.RID[:8] + "-" + strconv.Itoa(r.record.Attempts)
	return upstreamCall{
		Addr:    b.Addr,
		Scheme:  b.Scheme,
		Host:    b.Host,
		Method:  r.route.method,
		Path:    b.BasePath + r.target(),
		Header:  append(header, headerField{"X-Request-Id", id}),
		Body:    parts,
		BodyLen: length,
		HeadBy:  r.patience(),
	}
}

// heldWhole is true under a budget, for an answer that is held whole; the hold of a stream grows with it.
func (r *request) heldWhole() bool { return r.admission.Budgeted && r.tranche.bound == 0 }

// ownCap is the cap per choice that the backend is told where the client names none: what is held. 0: none is told, as an
// engine whose context is no longer than that keeps to it by itself, and would refuse as much beside a prompt.
func (r *request) ownCap(b *cluster.Backend) int64 {
	if !r.heldWhole() || r.uncapped {
		return 0
	}
	_, perChoice := r.outputBound()
	if context := b.MaxModelLen(r.model.Name); context > 0 && context <= perChoice {
		return 0
	}
	return perChoice
}

// patience ends when the engine must have shown what it is waited for: a stream its first event, in each attempt; another
// answer its end, over all attempts.
func (r *request) patience() time.Time {
	if r.scan.Stream {
		return time.Now().Add(r.g.cfg.FirstTokenTimeout)
	}
	return r.start.Add(r.g.cfg.RequestTimeout)
}

// afterFault judges a call that got no response head.
func (r *request) afterFault(b *cluster.Backend, f *upstreamFault) attemptEnd {
	if r.ctx.Err() != nil || f.Kind == upstreamFaultCancelled {
		return attemptEnd{final, r.left()}
	}
	r.g.deps.Log.Warn().Err(f).Str("backend", b.ID).Str("rid", r.record.RID).Msg("attempt failed")
	switch f.Kind {
	case upstreamFaultTimeout:
		r.blame(b, coordinator.FailedSilent)
		return attemptEnd{final, refusalOf(protocol.Timeout("The model server did not begin to answer in time."))}
	case upstreamFaultShort:
		return attemptEnd{final, refusalOf(protocol.NoRoom("connection"))}
	case upstreamFaultConnect, upstreamFaultConnectTimeout:
		r.g.deps.Cluster.ReportFailure(b, cluster.ConnectFailed)
		r.blame(b, coordinator.FailedConnect)
	case upstreamFaultDied, upstreamFaultBad:
		r.blame(b, coordinator.FailedCut)
	}
	return attemptEnd{failed, refusalOf(protocol.UpstreamError())}
}

// afterStatus judges an engine's 5xx (or a redirect). A 503 means full, not down.
func (r *request) afterStatus(b *cluster.Backend, status int) attemptEnd {
	r.g.deps.Log.Warn().Int("status", status).Str("backend", b.ID).Str("rid", r.record.RID).Msg("attempt failed")
	switch status {
	case 503:
		return attemptEnd{failed, refusalOf(protocol.StayedBusy())}
	case 504:
		return attemptEnd{final, refusalOf(protocol.Timeout("The model server reported a timeout."))}
	}
	r.blame(b, coordinator.FailedStatus)
	return attemptEnd{failed, refusalOf(protocol.UpstreamError())}
}

// afterBody judges an answer that broke before the client was sent a byte.
func (r *request) afterBody(b *cluster.Backend, err error) attemptEnd {
	switch {
	case r.ctx.Err() != nil || errors.Is(err, errUpstreamAborted):
		return attemptEnd{final, r.left()}
	case errors.Is(err, errUpstreamSilent), errors.Is(err, context.DeadlineExceeded):
		r.blame(b, coordinator.FailedSilent)
		return attemptEnd{final, refusalOf(protocol.Timeout("The model server did not answer in time."))}
	}
	r.g.deps.Log.Warn().Err(err).Str("backend", b.ID).Str("rid", r.record.RID).Msg("attempt failed")
	r.blame(b, coordinator.FailedCut)
	return attemptEnd{failed, refusalOf(protocol.UpstreamError())}
}

// blame tells the fleet at once that a backend failed a request.
func (r *request) blame(b *cluster.Backend, why coordinator.Failure) {
	post := r.g.deps.Pipeline.Post()
	r.g.deps.Placement.Failed(post, b.Pool, b.ID, why)
	post.Send()
}

// answerFields are the fields of an answer that came from an engine or the cache.
func (r *request) answerFields(contentType, contentEncoding string) []headerField {
	fields := append(r.fields(), headerField{"Content-Type", contentType})
	if contentEncoding != "" {
		fields = append(fields, headerField{"Content-Encoding", contentEncoding})
	}
	if r.record.Backend != "" {
		fields = append(fields, headerField{"X-Headgate-Backend", r.record.Backend})
	}
	return append(fields, headerField{"X-Headgate-Queue-Ms", strconv.FormatInt(r.record.QueueMS, 10)})
}

// beginAnswer sends the head with the first bytes and gives the prompt back: from here on nothing is repeated. // I3
func (r *request) beginAnswer(status int, fields []headerField, length int64) {
	r.begun = true
	r.record.Status = status
	r.x.Begin(status, fields, length)
	r.freePrompt()
}

func (r *request) freePrompt() {
	if r.body != nil {
		r.g.prompts.put(r.body)
		r.body = nil
	}
}

// write passes bytes on; false means that the client is gone, and the engine is told at once. // I5
func (r *request) write(reply *upstreamReply, p []byte) bool {
	send := r.x.Write
	if reply.Ended() {
		send = r.x.WriteLast
	}
	r.record.ResponseBytes += int64(len(p))
	if send(p) == nil {
		return true
	}
	reply.Abort()
	r.record.Outcome = coordinator.OutcomeClientGone
	return false
}
