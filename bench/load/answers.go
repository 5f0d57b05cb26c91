package load

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Model is the one requests ask for. The engines also list twelve more, Model-1 to Model-12, for pools of their own.
const Model = "qwen-7b"

var models = func() string {
	var all []string
	for i := range 13 {
		name := Model
		if i > 0 {
			name += "-" + strconv.Itoa(i)
		}
		all = append(all, `{"id":"`+name+`","object":"model","owned_by":"bench","max_model_len":1048576}`)
	}
	return `{"object":"list","data":[` + strings.Join(all, ",") + `]}`
}()

// What a vLLM engine sends, with the sizes it has there: about 330 bytes per token with its framing, 413 for a short
// answer.
const (
	answerBody = `{"id":"chatcmpl-5f2c1f0e9b7d4c36a1d85e6b0c9f3a27","object":"chat.completion","created":1764500000,"model":"qwen-7b","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"The sum of the two numbers is forty-two."},"logprobs":null,"finish_reason":"stop","stop_reason":null}],` +
		`"usage":{"prompt_tokens":57,"total_tokens":69,"completion_tokens":12,"prompt_tokens_details":null},"prompt_logprobs":null}`
	tokenEvent = `data: {"id":"chatcmpl-5f2c1f0e9b7d4c36a1d85e6b0c9f3a27","object":"chat.completion.chunk","created":1764500000,"model":"qwen-7b","system_fingerprint":"vllm-0.11.2-tp1",` +
		`"choices":[{"index":0,"delta":{"content":" forty-two and more"},"logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null}]}` + "\n\n"
	finishEvent = `data: {"id":"chatcmpl-5f2c1f0e9b7d4c36a1d85e6b0c9f3a27","object":"chat.completion.chunk","created":1764500000,"model":"qwen-7b",` +
		`"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null}]}` + "\n\n"
	usageEvent = `data: {"id":"chatcmpl-5f2c1f0e9b7d4c36a1d85e6b0c9f3a27","object":"chat.completion.chunk","created":1764500000,"model":"qwen-7b",` +
		`"choices":[],"usage":{"prompt_tokens":25000,"total_tokens":25100,"completion_tokens":100}}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)

var (
	wholeAnswer = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(answerBody), answerBody)
	nextToken   = framed(tokenEvent)
	firstToken  = append([]byte(streamHead), nextToken...)
	streamEnd   = append(framed(finishEvent, usageEvent, doneEvent), "0\r\n\r\n"...)
)

// EventBytes is the size of a token's event without the framing of HTTP.
const EventBytes = len(tokenEvent)

// framed writes each event as a chunk.
func framed(events ...string) (b []byte) {
	for _, e := range events {
		b = fmt.Appendf(b, "%x\r\n%s\r\n", len(e), e)
	}
	return b
}

var atOnce = map[int][]byte{} // of the engine's goroutine

func streamAtOnce(tokens int) []byte {
	b := atOnce[tokens]
	if b == nil {
		b = []byte(streamHead)
		for range tokens {
			b = append(b, nextToken...)
		}
		b = append(b, streamEnd...)
		atOnce[tokens] = b
	}
	return b
}

// String is the plan as a query.
func (p Plan) String() string {
	return url.Values{"ttft": {p.TTFT.String()}, "pace": {p.Pace.String()}, "tokens": {strconv.Itoa(p.Tokens)}}.Encode()
}

func parsePlan(query string) (p Plan, err error) {
	q, err := url.ParseQuery(query)
	if err != nil {
		return p, err
	}
	if p.TTFT, err = time.ParseDuration(q.Get("ttft")); err != nil {
		return p, err
	}
	if p.Pace, err = time.ParseDuration(q.Get("pace")); err != nil {
		return p, err
	}
	p.Tokens, err = strconv.Atoi(q.Get("tokens"))
	return p, err
}
