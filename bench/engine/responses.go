package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// response is a Responses object the engine keeps. Like vLLM's it lives in this one engine's memory.
type response struct {
	g            *generation
	created      int64 // Unix seconds
	conversation []message
	cancelled    atomic.Bool
}

// responsesRequest is the body of /v1/responses: what differs from a chat.
type responsesRequest struct {
	requestBody
	Input           json.RawMessage `json:"input"`
	Instructions    *string         `json:"instructions"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
	Previous        string          `json:"previous_response_id"`
	Store           *bool           `json:"store"`
	Background      bool            `json:"background"`
}

// parseResponse reads a body of /v1/responses.
func parseResponse(e *Engine, _ *http.Request, body []byte) (*generation, *apiError) {
	var in responsesRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, badRequest("Invalid request body: "+err.Error(), "")
	}
	in.StreamOptions, in.MaxTokens, in.MaxCompletionTokens, in.N = nil, in.MaxOutputTokens, nil, nil
	stored := in.Store == nil || *in.Store
	if in.Background && !stored {
		return nil, badRequest("background can only be used when `store` is true", "background")
	}
	g, err := e.newGeneration(&in.requestBody, "resp_")
	if err != nil {
		return nil, err
	}
	g.background = in.Background
	kept := &response{g: g, created: time.Now().Unix()}
	if kept.conversation, err = e.conversation(&in); err != nil {
		return nil, err
	}
	g.body = func(c *call) []byte { return kept.object(c, "") }
	g.events = func(c *call) error { return c.streamResponse(kept, -1) }
	g.after = func(*call) {
		if stored {
			e.keep(kept)
		}
	}
	in.Messages = kept.conversation
	prompt, err := in.render()
	if err != nil {
		return nil, err
	}
	return g, e.addPrompt(g, &in.requestBody, prompt, 1)
}

// conversation is what was said before and the new input.
func (e *Engine) conversation(in *responsesRequest) ([]message, *apiError) {
	var all []message
	if in.Instructions != nil {
		all = append(all, message{Role: "system", Content: quote(*in.Instructions)})
	}
	if in.Previous != "" {
		before, err := e.response(in.Previous)
		if err != nil {
			return nil, err
		}
		for _, m := range before.conversation {
			if m.Role != "system" { // instructions do not carry over
				all = append(all, m)
			}
		}
		all = append(all, message{Role: "assistant", Content: quote(string(before.g.seqs[0].answer()))})
	}
	var items []json.RawMessage
	switch {
	case len(in.Input) == 0:
		return nil, badRequest("input: Field required", "input")
	case in.Input[0] == '"':
		return append(all, message{Role: "user", Content: in.Input}), nil
	case json.Unmarshal(in.Input, &items) != nil:
		return nil, badRequest("input must be a string or a list.", "input")
	}
	for i, item := range items {
		var m message
		if json.Unmarshal(item, &m) != nil {
			return nil, badRequest(fmt.Sprintf("input[%d] must be an object.", i), "input")
		}
		if m.Role == "" { // a call of a tool, its output, reasoning
			m = message{Role: "tool", Content: quote(string(item))}
		}
		all = append(all, m)
	}
	return all, nil
}

// response finds what is kept.
func (e *Engine) response(id string) (*response, *apiError) {
	if !strings.HasPrefix(id, "resp_") {
		return nil, &apiError{http.StatusBadRequest, "invalid_request_error",
			fmt.Sprintf("Invalid 'response_id': '%s'. Expected an ID that begins with 'resp'.", id), "response_id"}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.responses[id]; r != nil {
		return r, nil
	}
	return nil, &apiError{http.StatusNotFound, "invalid_request_error", fmt.Sprintf("Response with id '%s' not found.", id), "response_id"}
}

func (e *Engine) keep(r *response) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.responses[r.g.id] = r
}

// status is the object's, in the words of the API.
func (r *response) status() string {
	s := r.g.seqs[0]
	switch {
	case r.cancelled.Load():
		return "cancelled"
	case s.done.Load() && s.reason == "length":
		return "incomplete"
	case s.done.Load():
		return "completed"
	case s.generated.Load() == 0 && r.g.background:
		return "queued"
	}
	return "in_progress"
}

// object is the Responses object as of now; status "" = its own. Output and usage are there once it is complete.
func (r *response) object(c *call, status string) []byte {
	if status == "" {
		status = r.status()
	}
	s := r.g.seqs[0]
	output, usage, incomplete := "", "null", "null"
	if status == "completed" || status == "incomplete" {
		output = r.item(status, string(s.answer()))
		if c.fault.Kind != NoUsage {
			usage = c.responseUsage(r.g)
		}
	}
	if status == "incomplete" {
		incomplete = `{"reason":"max_output_tokens"}`
	}
	return fmt.Appendf(nil, `{"id":%s,"object":"response","created_at":%d,"status":"%s","background":%v,"error":null,"incomplete_details":%s,`+
		`"instructions":null,"metadata":null,"model":%s,"output":[%s],"parallel_tool_calls":true,"previous_response_id":null,"temperature":1.0,`+
		`"tool_choice":"auto","tools":[],"top_p":1.0,"truncation":"disabled","usage":%s,"user":null}`,
		quote(r.g.id), r.created, status, r.g.background, incomplete, quote(r.g.model), output, usage)
}

// item is the one item of the output: a message, or a call.
func (r *response) item(status, text string) string {
	if call := r.g.call; call != nil {
		return fmt.Sprintf(`{"id":%s,"type":"function_call","call_id":%s,"name":%s,"arguments":%s,"status":"%s"}`,
			r.itemID(), r.g.seqs[0].callID("call_"), quote(call.name), quote(text), status)
	}
	content := ""
	if status != "in_progress" {
		content = part(text)
	}
	return fmt.Sprintf(`{"id":%s,"type":"message","role":"assistant","status":"%s","content":[%s]}`, r.itemID(), status, content)
}

func (r *response) itemID() []byte {
	prefix := "msg_"
	if r.g.call != nil {
		prefix = "fc_"
	}
	return quote(prefix + r.g.id[len("resp_"):])
}

func part(text string) string {
	return fmt.Sprintf(`{"type":"output_text","text":"%s","annotations":[],"logprobs":[]}`, text)
}

func (c *call) responseUsage(g *generation) string {
	s := g.seqs[0]
	cached := 0
	if !c.engine.opts.HideCached {
		cached = int(s.cached.Load())
	}
	return fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}`,
		g.promptTokens, cached, s.length, g.promptTokens+s.length) // I3
}

// detach has the generation go on without the client, who may ask for it later.
func (c *call) detach(g *generation) {
	g.after(c)
	g.after = nil
	go func() {
		err := c.engine.poll(g.finished)
		c.note(c.end(g, err))
	}()
}

// poll waits until it is done, which it looks at often, or until the engine stops. A background response has several who
// wait, and one channel for news.
func (e *Engine) poll(done func() bool) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-e.stopped:
			return errClientGone
		}
	}
	return nil
}

// serveResponse is GET /v1/responses/{id}, streamed with ?stream=true for a response that was made in the background.
func (e *Engine) serveResponse(w http.ResponseWriter, r *http.Request) {
	c := &call{engine: e, w: w, r: r, seen: e.seen.add(r, nil)}
	kept, err := e.response(r.PathValue("id"))
	streamed := r.URL.Query().Get("stream") == "true"
	switch {
	case err != nil:
		c.refuse(err)
		c.note("rejected")
	case streamed && !kept.g.background:
		c.refuse(badRequest("Only a response that was made in the background can be streamed.", "stream"))
		c.note("rejected")
	case streamed:
		after, err := strconv.Atoi(r.URL.Query().Get("starting_after"))
		if err != nil {
			after = -1
		}
		if c.streamResponse(kept, after) != nil {
			c.note("abort")
			return
		}
		c.note("ok")
	default:
		c.answer(kept.object(c, ""))
	}
}

// serveCancel is POST /v1/responses/{id}/cancel.
func (e *Engine) serveCancel(w http.ResponseWriter, r *http.Request) {
	c := &call{engine: e, w: w, r: r, seen: e.seen.add(r, nil)}
	kept, err := e.response(r.PathValue("id"))
	if err == nil && (!kept.g.background || kept.g.seqs[0].done.Load() || kept.cancelled.Swap(true)) {
		err = badRequest("Cannot cancel a synchronous response.", "response_id")
	}
	if err != nil {
		c.refuse(err)
		c.note("rejected")
		return
	}
	e.abandon("abort", kept.g.seqs)
	c.answer(kept.object(c, ""))
}

// answer ends a call that needed no computing.
func (c *call) answer(body []byte) {
	c.w.Header().Set("Content-Type", contentType(body))
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.head(http.StatusOK)
	if _, err := c.w.Write(body); err != nil {
		c.note("abort")
		return
	}
	c.note("ok")
}
