package protocol

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/gateway/protocol/lex"
)

// Error is a refusal or failure as the client sees it.
type Error struct {
	Status  int // HTTP
	Type    string
	Code    string
	Message string
	Param   string // the field at fault; empty = none
}

// The codes a client can get. They are part of the interface.
const (
	CodeInvalidJSON         = "invalid_json"
	CodeInvalidField        = "invalid_field"
	CodeTwoCredentials      = "two_credentials"
	CodeInvalidAPIKey       = "invalid_api_key"
	CodeModelNotAllowed     = "model_not_allowed"
	CodeModelNotFound       = "model_not_found"
	CodeRouteNotFound       = "route_not_found"
	CodeResponseNotFound    = "response_not_found"
	CodeTimeout             = "timeout"
	CodeBodyTooLarge        = "body_too_large"
	CodeUnsupportedEncoding = "unsupported_encoding"
	CodeExpectationFailed   = "expectation_failed"
	CodeRateLimitExceeded   = "rate_limit_exceeded"
	CodeInsufficientQuota   = "insufficient_quota"
	CodeModelPriceMissing   = "model_price_missing"
	CodeUpstreamError       = "upstream_error"
	CodeStreamTruncated     = "stream_truncated"
	CodeQueueFull           = "queue_full"
	CodeNoBackend           = "no_backend"
	CodeRedisUnavailable    = "redis_unavailable"
	CodeShutdown            = "shutdown"
)

type kind struct {
	status int
	typ    string
	code   string
}

// kinds is the one table of statuses and types, in the order of their statuses.
var (
	invalidJSON         = kind{400, "invalid_request_error", CodeInvalidJSON}
	invalidField        = kind{400, "invalid_request_error", CodeInvalidField}
	twoCredentials      = kind{400, "invalid_request_error", CodeTwoCredentials}
	invalidAPIKey       = kind{401, "authentication_error", CodeInvalidAPIKey}
	modelNotAllowed     = kind{403, "permission_error", CodeModelNotAllowed}
	modelNotFound       = kind{404, "not_found_error", CodeModelNotFound}
	routeNotFound       = kind{404, "not_found_error", CodeRouteNotFound}
	responseNotFound    = kind{404, "not_found_error", CodeResponseNotFound}
	requestTimeout      = kind{408, "invalid_request_error", CodeTimeout}
	bodyTooLarge        = kind{413, "invalid_request_error", CodeBodyTooLarge}
	unsupportedEncoding = kind{415, "invalid_request_error", CodeUnsupportedEncoding}
	expectationFailed   = kind{417, "invalid_request_error", CodeExpectationFailed}
	rateLimitExceeded   = kind{429, "rate_limit_error", CodeRateLimitExceeded}
	insufficientQuota   = kind{429, "insufficient_quota", CodeInsufficientQuota}
	modelPriceMissing   = kind{429, "insufficient_quota", CodeModelPriceMissing}
	upstreamError       = kind{502, "upstream_error", CodeUpstreamError}
	streamTruncated     = kind{502, "upstream_error", CodeStreamTruncated}
	queueFull           = kind{503, "unavailable", CodeQueueFull}
	noBackend           = kind{503, "unavailable", CodeNoBackend}
	redisUnavailable    = kind{503, "unavailable", CodeRedisUnavailable}
	shutdown            = kind{503, "unavailable", CodeShutdown}
	gatewayTimeout      = kind{504, "timeout", CodeTimeout}
)

func (k kind) say(message, param string) Error {
	return Error{Status: k.status, Type: k.typ, Code: k.code, Message: message, Param: param}
}

// InvalidJSON is a body that is not one JSON object; message says where.
func InvalidJSON(message string) Error { return invalidJSON.say(message, "") }

// InvalidField is a field that is missing, repeated or of the wrong type.
func InvalidField(field, message string) Error { return invalidField.say(message, field) }

// TwoCredentials is a request with two different keys.
func TwoCredentials() Error {
	return twoCredentials.say("The request carries two different API keys; send one.", "")
}

// InvalidAPIKey is a key that is unknown, disabled or expired; the answer does not say which.
func InvalidAPIKey() Error { return invalidAPIKey.say("Invalid API key.", "") }

// MissingAPIKey is a request without a key in a place where one is looked for.
func MissingAPIKey() Error {
	return invalidAPIKey.say("No API key: send it as Authorization: Bearer <key> (or X-Api-Key).", "")
}

// ModelNotAllowed says the same whether the model exists or not.
func ModelNotAllowed(model string) Error {
	return modelNotAllowed.say("This API key may not use the model "+strconv.Quote(model)+".", "model")
}

// ModelNotFound is a model known nowhere.
func ModelNotFound(model string) Error {
	return modelNotFound.say("The model "+strconv.Quote(model)+" does not exist.", "model")
}

// RouteNotFound is a path or method that is not served.
func RouteNotFound(method, path string) Error {
	return routeNotFound.say("No such route: "+method+" "+path+".", "")
}

// ResponseNotFound is a Responses object that this tenant did not make, or whose engine is gone; param is what the id was
// sent in.
func ResponseNotFound(id, param string) Error {
	return responseNotFound.say("The response "+strconv.Quote(id)+" does not exist, or no longer.", param)
}

// RequestTimeout is a client that did not send its request in time (408).
func RequestTimeout() Error {
	return requestTimeout.say("The request did not arrive in time.", "")
}

// BodyTooLarge names the limit in bytes.
func BodyTooLarge(limit int64) Error {
	return bodyTooLarge.say(fmt.Sprintf("The body is larger than %d bytes.", limit), "")
}

// UnsupportedEncoding names the Content-Encoding that cannot be read.
func UnsupportedEncoding(encoding string) Error {
	return unsupportedEncoding.say("Unsupported Content-Encoding "+strconv.Quote(encoding)+".", "")
}

// ExpectationFailed is an Expect header other than 100-continue.
func ExpectationFailed() Error {
	return expectationFailed.say("Only the expectation 100-continue is understood.", "")
}

// RateLimitExceeded says in message which limit of which scope was hit.
func RateLimitExceeded(message string) Error { return rateLimitExceeded.say(message, "") }

// InsufficientQuota says in message which budget is used up.
func InsufficientQuota(message string) Error { return insufficientQuota.say(message, "") }

// ModelPriceMissing is a model without a price, asked for under a budget.
func ModelPriceMissing(model string) Error {
	return modelPriceMissing.say("The model "+strconv.Quote(model)+" has no price, and this API key has a budget.", "model")
}

// UpstreamError is an attempt that failed and will not be repeated.
func UpstreamError() Error {
	return upstreamError.say("The model server failed to answer.", "")
}

// StreamTruncated is a stream that broke off after its first event.
func StreamTruncated() Error {
	return streamTruncated.say("The model server broke the stream off before its end.", "")
}

// QueueFull is a pool whose queue takes no more.
func QueueFull() Error {
	return queueFull.say("All model servers are busy and the queue is full; try again shortly.", "")
}

// StayedBusy is a wait in the queue that was too long, or a model server that says it is full where no other is left.
func StayedBusy() Error {
	return queueFull.say("All model servers are busy and none came free in time; try again shortly.", "")
}

// NoRoom is a replica that can hold not one more of what, such as connections or prompts.
func NoRoom(what string) Error {
	return queueFull.say("This replica has no room for another "+what+"; try again shortly.", "")
}

// TooManyFields is a head with more than most fields.
func TooManyFields(most int) Error {
	return Error{Status: 431, Type: "invalid_request_error", Code: "headers_too_large", Message: "The header has more than " + strconv.Itoa(most) + " fields."}
}

// NoBackend is a known model that nothing serves now.
func NoBackend(model string) Error {
	return noBackend.say("No server for the model "+strconv.Quote(model)+" is available.", "model")
}

// RedisUnavailable is shared state that cannot be reached.
func RedisUnavailable() Error {
	return redisUnavailable.say("Limits and budgets cannot be checked at the moment; try again shortly.", "")
}

// Shutdown is a replica that is going down.
func Shutdown() Error { return shutdown.say("This replica is shutting down; try again.", "") }

// Timeout is a model server that was too slow (504); message says at what.
func Timeout(message string) Error { return gatewayTimeout.say(message, "") }

// AppendBody appends the error in OpenAI's shape.
func AppendBody(dst []byte, e Error) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = lex.AppendQuoted(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = lex.AppendQuoted(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendParam(dst, e)
	dst = append(dst, `,"code":`...)
	dst = lex.AppendQuoted(dst, e.Code)
	return append(dst, "}}"...)
}

func appendParam(dst []byte, e Error) []byte {
	if e.Param == "" {
		return append(dst, "null"...)
	}
	return lex.AppendQuoted(dst, e.Param)
}

// AppendMessagesBody appends the error in Anthropic's shape, with Anthropic's name for its type.
func AppendMessagesBody(dst []byte, e Error) []byte {
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = lex.AppendQuoted(dst, messagesType(e))
	dst = append(dst, `,"message":`...)
	dst = lex.AppendQuoted(dst, e.Message)
	return append(dst, "}}"...)
}

func messagesType(e Error) string {
	switch e.Status {
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503:
		return "overloaded_error"
	case 502:
		return "api_error"
	case 504:
		return "timeout_error"
	}
	return e.Type
}

// Shape is the family of routes whose streams and errors look alike.
type Shape uint8

const (
	ChatShape      Shape = iota // chat, completions and every route that is not named here; also the zero value
	ResponsesShape              // /v1/responses
	MessagesShape               // /v1/messages
)

// AppendEvent appends the error as a stream event, for a stream that has begun and cannot end well; before is how many
// events it had. The stream must stand between two events: see sse.AppendBreak. Clients of the Responses API read the
// error either from the event itself or from a member error, so it stands in both places.
func AppendEvent(dst []byte, s Shape, before int, e Error) []byte {
	switch s {
	case MessagesShape:
		dst = append(dst, "event: error\ndata: "...)
		dst = AppendMessagesBody(dst, e)
	case ResponsesShape:
		dst = append(dst, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":"...)
		dst = strconv.AppendInt(dst, int64(before), 10)
		dst = append(dst, `,"code":`...)
		dst = lex.AppendQuoted(dst, e.Code)
		dst = append(dst, `,"message":`...)
		dst = lex.AppendQuoted(dst, e.Message)
		dst = append(dst, `,"param":`...)
		dst = appendParam(dst, e)
		dst = append(dst, ',')
		dst = append(dst, AppendBody(nil, e)[1:]...)
	default:
		dst = append(dst, "data: "...)
		dst = AppendBody(dst, e)
	}
	return append(dst, "\n\n"...)
}
