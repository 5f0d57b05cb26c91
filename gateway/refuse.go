package gateway

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
)

// refusal is an error answer: its body and the fields that go with it. An expected outcome, not a Go error.
type refusal struct {
	protocol.Error
	fields []headerField
	filed  string // stands in the usage record in place of Code: what the client is not told; "": the same
}

// What the usage record says of a key that the client is only told is invalid.
const (
	filedKeyDisabled      = "key_disabled"
	filedKeyExpired       = "key_expired"
	filedRecordUnreadable = "record_unreadable"
)

func refusalOf(e protocol.Error, fields ...headerField) *refusal {
	switch {
	case e.Status == 503 && len(fields) == 0:
		fields = []headerField{{"Retry-After", "1"}}
	case e.Status == 504: // client libraries repeat every 5xx: a whole generation would be run again
		fields = append(fields, headerField{"X-Should-Retry", "false"})
	}
	return &refusal{Error: e, fields: fields}
}

// refuse answers with an error body, in the shape the clients of the path read, and returns its length.
func refuse(x exchange, e protocol.Error, fields []headerField) int64 {
	var body []byte
	if shapeOf(x.Path()) == protocol.MessagesShape {
		body = protocol.AppendMessagesBody(nil, e)
	} else {
		body = protocol.AppendBody(nil, e)
	}
	x.Begin(e.Status, append(fields, headerField{"Content-Type", "application/json"}), int64(len(body)))
	_ = x.Write(body)
	return int64(len(body))
}

// refusalOfVerdict turns the ledger's no into an answer that says which limit of which scope, and when to come back.
func refusalOfVerdict(a coordinator.Admission, model string) *refusal {
	switch a.Verdict {
	case coordinator.KeyUnknown:
		return unauthorized()
	case coordinator.KeyDisabled:
		return unauthorized().as(filedKeyDisabled)
	case coordinator.KeyExpired:
		return unauthorized().as(filedKeyExpired)
	case coordinator.PolicyUnreadable:
		return unauthorized().as(filedRecordUnreadable)
	case coordinator.ModelNotAllowed:
		return refusalOf(protocol.ModelNotAllowed(model))
	case coordinator.ModelNotFound:
		return refusalOf(protocol.ModelNotFound(model))
	case coordinator.PriceMissing:
		return refusalOf(protocol.ModelPriceMissing(model), headerField{"X-Should-Retry", "false"})
	case coordinator.RequestsExceeded:
		if a.KeyID == "" {
			return limited(a, "Too many requests with unknown API keys.")
		}
		return limited(a, fmt.Sprintf("%s allows %s per minute; %s left.", scopeName(a), some(a.Limit, "request"), are(a.Remaining)))
	case coordinator.TokensExceeded:
		if a.Reset == 0 {
			return limited(a, fmt.Sprintf("%s allows %s per minute, and this request alone asks for more: shorten the prompt or max_tokens.", scopeName(a), some(a.Limit, "token")))
		}
		return limited(a, fmt.Sprintf("%s allows %s per minute; %s left, and this request asks for more.", scopeName(a), some(a.Limit, "token"), are(a.Remaining)))
	case coordinator.ParallelExceeded:
		return limited(a, fmt.Sprintf("%s allows %s at the same time (parallel, its concurrency limit), and as many are running.", scopeName(a), some(a.Limit, "request")))
	case coordinator.BudgetExceeded:
		r := refusalOf(protocol.InsufficientQuota(fmt.Sprintf("%s has %s left of its budget of %s USD, and this request may cost more.", scopeName(a), catalogue.USD(a.Remaining), catalogue.USD(a.Limit))),
			headerField{"X-Should-Retry", "false"})
		r.fields = append(r.fields, retryAfter(a.Reset)...)
		return r
	}
	return refusalOf(protocol.RedisUnavailable())
}

// as files the refusal under another code than the client sees.
func (no *refusal) as(filed string) *refusal {
	no.filed = filed
	return no
}

// limited tells when to come back, or that coming back is of no use: a limit of 0, a request larger than the limit.
func limited(a coordinator.Admission, message string) *refusal {
	if a.Reset == 0 {
		return refusalOf(protocol.RateLimitExceeded(message), headerField{"X-Should-Retry", "false"})
	}
	return refusalOf(protocol.RateLimitExceeded(message), retryAfter(a.Reset)...)
}

// some is a number of things in words: "1 request", "2 requests".
func some(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.FormatInt(n, 10) + " " + thing + "s"
}

func are(n int64) string {
	if n == 1 {
		return "1 is"
	}
	return strconv.FormatInt(n, 10) + " are"
}

// scopeName names the scope that refused in words, without an id that the caller may not know.
func scopeName(a coordinator.Admission) string {
	scope := a.Scope
	if scope == "enduser" {
		scope = "end user"
	}
	if a.ScopeID == "" {
		return "The " + scope
	}
	return "The " + scope + " " + a.ScopeID
}

// retryAfter is whole seconds, rounded up; nothing for a limit that does not end by itself.
func retryAfter(d time.Duration) []headerField {
	if d <= 0 {
		return nil
	}
	return []headerField{{"Retry-After", strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)}}
}

// windowFields describes the tightest limits after this request.
func windowFields(fields []headerField, a coordinator.Admission) []headerField {
	fields = windowField(fields, &requestWindow, a.Requests)
	return windowField(fields, &tokenWindow, a.Tokens)
}

// Names of a window's fields: its limit, what remains of it, and until when.
var (
	requestWindow = [3]string{"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"}
	tokenWindow   = [3]string{"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"}
)

func windowField(fields []headerField, names *[3]string, w coordinator.Window) []headerField {
	if w.Limit < 0 {
		return fields
	}
	var b [64]byte // the three values in one piece of memory
	text := strconv.AppendInt(b[:0], w.Limit, 10)
	limit := len(text)
	text = strconv.AppendInt(text, max(w.Remaining, 0), 10)
	remaining := len(text)
	text = append(strconv.AppendInt(text, int64(math.Ceil(w.Reset.Seconds())), 10), 's')
	values := string(text)
	return append(fields, headerField{names[0], values[:limit]}, headerField{names[1], values[limit:remaining]}, headerField{names[2], values[remaining:]})
}
