package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"strconv"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
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
	return hex.EncodeToString(h.Sum(nil))
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
