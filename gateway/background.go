package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
)

// A response that is made in the background goes on when its client has its first answer, or has left. Its books stay open
// as long: the slot is taken, the reservation is renewed, and at the end it is charged what it used. The engine is asked
// how far it is, because nobody else would tell.

const (
	followFirst = 250 * time.Millisecond // until the first question; each further one waits twice as long
	followMost  = 2 * time.Second        // between two questions
	followTries = 5                      // questions in a row without an answer after which the response is lost
	followWait  = 5 * time.Second        // for one answer
	// cancelWait is how long a replica that leaves gives an engine to say what a response it cancelled has used.
	cancelWait = time.Second
)

// goesOn reports whether the engine goes on with the response although the client has had its answer.
func (r *request) goesOn() bool {
	return r.scan.Background && r.served && r.response != "" && r.usage.Source != protocol.Backend
}

// follow returns when the engine is done with the response, and takes what it used. The whole-request limit holds for it
// too, and a replica that leaves does not stay for it: then the response is cancelled.
func (r *request) follow() {
	ctx, cancel := context.WithDeadline(context.Background(), r.start.Add(r.g.cfg.RequestTimeout))
	defer cancel()
	defer context.AfterFunc(r.g.cut, cancel)()
	if !r.scan.Stream { // what the first answer said is not the response's text
		r.usage = protocol.Usage{Prompt: r.promptEstimate(), Completion: r.usualOutput(), Source: protocol.Estimated}
	}
	for pause, failures := followFirst, 0; failures < followTries; pause = min(2*pause, followMost) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			r.cancelResponse()
			return
		}
		over, err := r.askProgress(ctx, "GET", "")
		switch {
		case over:
			return
		case errors.Is(err, errForgotten):
			failures = followTries
		case err != nil:
			failures++
		default:
			failures = 0
		}
	}
	r.record.Outcome, r.record.ErrorCode = coordinator.OutcomeUpstreamTruncated, protocol.CodeStreamTruncated
}

// cancelResponse ends the engine's work, so that nothing is computed that nobody is charged for.
func (r *request) cancelResponse() {
	ctx, cancel := context.WithTimeout(context.Background(), cancelWait)
	defer cancel()
	r.record.Outcome, r.record.ErrorCode = coordinator.OutcomeTimeout, protocol.CodeTimeout
	if r.g.cut.Err() != nil {
		r.record.Outcome, r.record.ErrorCode = coordinator.OutcomeShutdown, protocol.CodeShutdown
	}
	if _, err := r.askProgress(ctx, "POST", "/cancel"); err != nil {
		r.g.deps.Log.Warn().Err(err).Str("backend", r.backend.ID).Str("rid", r.record.RID).Msg("a response in the background was not cancelled")
	}
}

var errForgotten = errors.New("the engine does not know the response any more")

// askProgress asks the engine for the response. It takes the usage once there is one, and says whether the response is over.
func (r *request) askProgress(ctx context.Context, method, suffix string) (over bool, err error) {
	reply, fault := r.g.upstream.Do(ctx, upstreamCall{
		Addr: r.backend.Addr, Scheme: r.backend.Scheme, Host: r.backend.Host, Method: method,
		Path:   r.backend.BasePath + responsesPath + "/" + r.response + suffix,
		Header: []headerField{{"X-Request-Id", r.record.RequestID + "-" + r.record.RID[:8] + "-follow"}},
		HeadBy: time.Now().Add(followWait),
	})
	if fault != nil {
		return false, fault
	}
	defer reply.Close(true)
	reply.SetReadBy(time.Now().Add(followWait))
	answer, err := io.ReadAll(io.LimitReader(reply, maxWholeAnswer))
	switch {
	case reply.Status == 404:
		return false, errForgotten
	case err != nil:
		return false, err
	case reply.Status != 200:
		return false, errHollow
	}
	var response struct{ Status string }
	if err := json.Unmarshal(answer, &response); err != nil {
		return false, err
	}
	if usage, known := protocol.UsageOf(answer); known {
		r.usage = usage
	}
	r.lastAt = time.Now()
	return response.Status != "queued" && response.Status != "in_progress", nil
}
