package protocol_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
)

// all has every constructor once, with the status and type the interface promises.
var all = []struct {
	e      protocol.Error
	status int
	typ    string
	code   string
}{
	{protocol.InvalidJSON("x"), 400, "invalid_request_error", "invalid_json"},
	{protocol.InvalidField("model", "x"), 400, "invalid_request_error", "invalid_field"},
	{protocol.TwoCredentials(), 400, "invalid_request_error", "two_credentials"},
	{protocol.InvalidAPIKey(), 401, "authentication_error", "invalid_api_key"},
	{protocol.ModelNotAllowed("m"), 403, "permission_error", "model_not_allowed"},
	{protocol.ModelNotFound("m"), 404, "not_found_error", "model_not_found"},
	{protocol.RouteNotFound("GET", "/x"), 404, "not_found_error", "route_not_found"},
	{protocol.ResponseNotFound("resp_1", "id"), 404, "not_found_error", "response_not_found"},
	{protocol.RequestTimeout(), 408, "invalid_request_error", "timeout"},
	{protocol.BodyTooLarge(1), 413, "invalid_request_error", "body_too_large"},
	{protocol.UnsupportedEncoding("x"), 415, "invalid_request_error", "unsupported_encoding"},
	{protocol.ExpectationFailed(), 417, "invalid_request_error", "expectation_failed"},
	{protocol.RateLimitExceeded("x"), 429, "rate_limit_error", "rate_limit_exceeded"},
	{protocol.InsufficientQuota("x"), 429, "insufficient_quota", "insufficient_quota"},
	{protocol.ModelPriceMissing("m"), 429, "insufficient_quota", "model_price_missing"},
	{protocol.UpstreamError(), 502, "upstream_error", "upstream_error"},
	{protocol.StreamTruncated(), 502, "upstream_error", "stream_truncated"},
	{protocol.QueueFull(), 503, "unavailable", "queue_full"},
	{protocol.StayedBusy(), 503, "unavailable", "queue_full"},
	{protocol.NoRoom("x"), 503, "unavailable", "queue_full"},
	{protocol.NoBackend("m"), 503, "unavailable", "no_backend"},
	{protocol.RedisUnavailable(), 503, "unavailable", "redis_unavailable"},
	{protocol.Shutdown(), 503, "unavailable", "shutdown"},
	{protocol.Timeout("x"), 504, "timeout", "timeout"},
}

func TestErrorTable(t *testing.T) { // I1
	for _, c := range all {
		if c.e.Status != c.status || c.e.Type != c.typ || c.e.Code != c.code || c.e.Message == "" {
			t.Errorf("%+v, want %d %s %s", c.e, c.status, c.typ, c.code)
		}
	}
}

type openAI struct {
	Error struct {
		Message, Type, Code *string
		Param               *string
	}
}

func TestErrorBodiesAreValidJSON(t *testing.T) { // I2
	for _, c := range all {
		body := protocol.AppendBody([]byte("x"), c.e)[1:]
		var got openAI
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if *got.Error.Message != c.e.Message || *got.Error.Type != c.e.Type || *got.Error.Code != c.e.Code || (got.Error.Param == nil) != (c.e.Param == "") {
			t.Errorf("%s", body)
		}
		var m struct {
			Type  string
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal(protocol.AppendMessagesBody(nil, c.e), &m); err != nil || m.Type != "error" || m.Error.Message != c.e.Message || m.Error.Type == "" {
			t.Errorf("%+v %v", m, err)
		}
	}
	if got := string(protocol.AppendBody(nil, protocol.InvalidField("model", `say "model"`))); got !=
		`{"error":{"message":"say \"model\"","type":"invalid_request_error","param":"model","code":"invalid_field"}}` {
		t.Error(got)
	}
}

func FuzzErrorBody(f *testing.F) { // I2
	f.Add("a\r\n\ndata: x\"\\\x00\xff", "p")
	f.Fuzz(func(t *testing.T, message, param string) {
		e := protocol.InvalidField(param, message)
		for _, s := range []protocol.Shape{protocol.ChatShape, protocol.ResponsesShape, protocol.MessagesShape} {
			event := string(protocol.AppendEvent(nil, s, 7, e))
			data := event
			ok := true
			if s != protocol.ChatShape {
				data, ok = strings.CutPrefix(event, "event: error\n")
			}
			data, ok1 := strings.CutPrefix(data, "data: ")
			body, ok2 := strings.CutSuffix(data, "\n\n")
			if !ok || !ok1 || !ok2 || strings.ContainsAny(body, "\r\n") || !json.Valid([]byte(body)) {
				t.Fatalf("%q", event)
			}
		}
	})
}

func TestUsageOf(t *testing.T) { // I3, I4
	b := protocol.Backend
	good := map[string]protocol.Usage{
		`{"usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13}}`:                                   {Prompt: 10, Completion: 3, Source: b},
		`{"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"x":[1],"cached_tokens":8}}}`: {Prompt: 10, Cached: 8, Completion: 3, Source: b},
		`{"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":null}}`:                        {Prompt: 10, Completion: 3, Source: b},
		`{"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":null}}}`:      {Prompt: 10, Completion: 3, Source: b},
		`{"usage":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":99}}}`:        {Prompt: 10, Cached: 10, Completion: 3, Source: b},
		`{"usage":{"input_tokens":10,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}`:               {Prompt: 10, Cached: 4, Completion: 3, Source: b},
		`{"usage":{"prompt_tokens":10}}`:                                                                                   {Prompt: 10, Source: b},
		`{"usage":{"prompt_tokens":10,"completion_tokens":null}}`:                                                          {Prompt: 10, Source: b},
		`{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":10}}`:                                                       {Prompt: 10, Source: b},
		`{"usage":{"prompt_tokens":10},"usage":null}`:                                                                      {Prompt: 10, Source: b},
		` { "choices" : [ { "usage" : {"prompt_tokens":1} , "text" : "\"usage\":{}" } ] , "usage":{"prompt_tokens":10} } `: {Prompt: 10, Source: b},
		`{"usage":{"prompt_tokens":1099511627776}}`:                                                                        {Prompt: protocol.MaxUsage, Source: b},
	}
	for body, want := range good {
		if u, ok := protocol.UsageOf([]byte(body)); !ok || u != want {
			t.Errorf("%s: %+v %v", body, u, ok)
		}
	}
	for _, body := range []string{
		``, `null`, `[]`, `{}`, `{"usage":null}`, `{"usage":{}}`, `{"usage":[]}`, `{"usage":1}`, `{"usage":{"total_tokens":1}}`,
		`{"usage":{"prompt_tokens":-1}}`, `{"usage":{"prompt_tokens":1.5}}`, `{"usage":{"prompt_tokens":1e3}}`, `{"usage":{"prompt_tokens":"1"}}`,
		`{"usage":{"prompt_tokens":1099511627777}}`, `{"usage":{"prompt_tokens":99999999999999999999}}`,
		`{"usage":{"prompt_tokens":1,"completion_tokens":-1}}`, `{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":-1}}}`,
		`{"usage":{"prompt_tokens":1}`, `{"usage":{"prompt_tokens":1}} x`, `{"message":{"usage":{"prompt_tokens":1}}}`,
		`{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":-1}}`,
	} {
		if u, ok := protocol.UsageOf([]byte(body)); ok {
			t.Errorf("%s: %+v", body, u)
		}
	}
}

func TestSourceWords(t *testing.T) {
	if got := protocol.None.String() + protocol.Backend.String() + protocol.Estimated.String(); got != "nonebackendestimated" {
		t.Error(got)
	}
}
