package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/answer"
	"github.com/headgate/headgate/gateway/protocol/lex"
	"github.com/headgate/headgate/pipeline"
)

// cacheHash names the stored answer of a request: everything that shapes the answer is in it, and who may see it (the
// team, or the tenant where there is none, and the end user). Order of fields and blanks do not matter; how the answer
// is delivered (stream, stream_options) does not either. "" when the body cannot be named.
func cacheHash(body []byte, team, endUser, route, model string) string {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var fields map[string]any
	if decoder.Decode(&fields) != nil {
		return ""
	}
	delete(fields, "stream")
	delete(fields, "stream_options")
	fields["model"] = model
	canonical, err := json.Marshal(fields) // members sorted by name
	if err != nil {
		return ""
	}
	h := sha256.New()
	for _, part := range [...]string{team, endUser, route} {
		_, _ = io.WriteString(h, strconv.Itoa(len(part))+":"+part)
	}
	h.Write(canonical)
	if bytes.ContainsRune(canonical, utf8.RuneError) { // a lone surrogate may have become one: engines tell them apart
		h.Write(body)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// maxCollected bounds the bytes of a stream that are kept to be joined into one answer. A token takes about 300 of them;
// what is longer is not stored.
const maxCollected = 8 << 20

// collect keeps what a stream says for the cache.
func (r *request) collect(chunk []byte) {
	if r.hash == "" {
		return
	}
	if len(r.collected)+len(chunk) > maxCollected {
		r.hash, r.collected = "", nil
		return
	}
	r.collected = append(r.collected, chunk...)
}

// toStore is the answer to keep: of a request that went well, whole and good in the engine's own words. nil: none.
func (r *request) toStore() *coordinator.Answer {
	if r.hash == "" || r.record.Outcome != coordinator.OutcomeOK || r.usage.Source != protocol.Backend {
		return nil
	}
	whole := r.store
	if r.collected != nil {
		whole, _ = answer.Join(r.collected)
	}
	if whole == nil || !cacheable(whole, r.model.Cache.MaxBytes) {
		return nil
	}
	return &coordinator.Answer{Status: 200, ContentType: "application/json", Body: whole, Model: r.model.Name,
		Prompt: r.usage.Prompt, Cached: r.usage.Cached, Completion: r.usage.Completion}
}

// inForm is the stored answer in the form this request asked for; nil if it cannot be given so, or is not what toStore keeps.
func (r *request) inForm(stored *coordinator.Answer) *coordinator.Answer {
	if stored == nil || stored.Status != 200 || stored.ContentType != "application/json" || !isObject(stored.Body) {
		return nil
	}
	if !r.scan.Stream {
		return stored
	}
	stream, ok := answer.Split(stored.Body, r.scan.IncludeUsage)
	if !ok {
		return nil
	}
	asked := *stored
	asked.Body, asked.ContentType = stream, "text/event-stream; charset=utf-8"
	return &asked
}

// isObject reports whether body is one whole JSON object, so that an entry cut short or edited by hand is a miss.
func isObject(body []byte) bool {
	from := lex.Space(body, 0)
	if from >= len(body) || body[from] != '{' {
		return false
	}
	end, why := lex.Value(body, from, 0)
	return why == "" && lex.Space(body, end) == len(body)
}

// keep stores the answer and shares it with those who follow. Joining a long stream takes a while: the rest of the books
// does not wait for it, and the post-call batch for a second at most.
func (r *request) keep(post *pipeline.Post) {
	if r.hash == "" && r.lead == nil {
		return
	}
	signOff := post.Owner()
	work := func() {
		defer signOff()
		var stored *coordinator.Answer
		if r.hit == nil {
			stored = r.toStore()
		}
		if stored != nil {
			r.g.deps.Cache.Write(post, r.key.tenant, r.hash, *stored, r.model.Cache.TTL)
		}
		if r.lead != nil {
			r.g.flights.land(r.flight, r.lead, stored)
		}
	}
	if r.collected == nil {
		work()
		return
	}
	r.g.enter()
	go func() {
		defer r.g.leave()
		work()
	}()
}

// followFlight waits for an equal request that is in flight here, if the catalogue wants that, and takes its answer. nil: there
// is none to wait for, or it had nothing to share.
func (r *request) followFlight(flight *flight) (*coordinator.Answer, *refusal) {
	ctx, cancel := context.WithDeadline(r.ctx, r.start.Add(r.g.cfg.RequestTimeout))
	defer cancel()
	shared, err := flight.wait(ctx)
	switch {
	case err == nil:
		return r.inForm(shared), nil
	case r.ctx.Err() != nil:
		return nil, r.left()
	}
	return nil, refusalOf(protocol.Timeout("The model server did not answer in time."))
}

// cacheable is true for a complete answer with at least one choice and no error.
func cacheable(answer []byte, maxBytes int64) bool {
	if int64(len(answer)) > maxBytes {
		return false
	}
	var a struct {
		Error   json.RawMessage
		Choices []json.RawMessage
	}
	return json.Unmarshal(answer, &a) == nil && len(a.Choices) > 0 && (len(a.Error) == 0 || string(a.Error) == "null")
}

// answerFromCache serves a stored answer. Its usage is information, not a charge.
func (r *request) answerFromCache() {
	e := r.hit
	r.record.Cache = coordinator.CacheHit
	r.counted = true
	r.usage = protocol.Usage{Prompt: e.Prompt, Cached: e.Cached, Completion: e.Completion, Source: protocol.Backend}
	r.beginAnswer(e.Status, r.answerFields(e.ContentType, ""), int64(len(e.Body)))
	r.record.ResponseBytes = int64(len(e.Body))
	if r.x.Write(e.Body) != nil {
		r.record.Outcome = coordinator.OutcomeClientGone
	}
}
