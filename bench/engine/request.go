package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
)

// generation is a request that passed validation.
type generation struct {
	id           string // with its prefix, "chatcmpl-…"
	prefix       string
	chat         bool // chat/completions
	model        string
	stream       bool
	includeUsage bool
	everyUsage   bool // usage on each chunk
	seqs         []*sequence
	news         chan struct{} // capacity 1
	promptTokens int           // over all prompts, each counted once
	call         *toolCall     // the answer; nil: a text

	body   func(*call) []byte // renders the finished answer
	events func(*call) error  // streams it
	after  func(*call)        // once it is complete; nil: nothing
	// background: it goes on without its client.
	background bool
}

// requestBody is what shapes the answer; everything else is accepted and ignored, as vLLM does.
type requestBody struct {
	Model         string          `json:"model"`
	Messages      []message       `json:"messages"`
	Prompt        json.RawMessage `json:"prompt"`
	Stream        bool            `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
		Continuous   bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           int             `json:"min_tokens"`
	N                   *int            `json:"n"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	Priority            int64           `json:"priority"`
	CacheSalt           *string         `json:"cache_salt"`
	Tools               json.RawMessage `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
}

type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

const maxChoices = 128

// parser turns a body into sequences, or into the error vLLM would answer.
type parser func(e *Engine, r *http.Request, body []byte) (*generation, *apiError)

// parseCompletion reads bodies of /v1/chat/completions and /v1/completions.
func parseCompletion(e *Engine, r *http.Request, body []byte) (*generation, *apiError) {
	var in requestBody
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, badRequest("Invalid request body: "+err.Error(), "")
	}
	g, err := e.newGeneration(&in, "cmpl-")
	if err != nil {
		return nil, err
	}
	if g.chat = r.URL.Path == "/v1/chat/completions"; g.chat {
		g.prefix = "chatcmpl-"
	}
	g.body, g.events = func(c *call) []byte { return c.wholeBody(g) }, func(c *call) error { return c.stream(g) }
	prompts, err := in.prompts(g.chat)
	if err != nil {
		return nil, err
	}
	choices := 1
	if in.N != nil {
		choices = *in.N
	}
	if len(prompts)*choices > maxChoices {
		return nil, badRequest(fmt.Sprintf("n must be at most %d.", maxChoices), "n")
	}
	for _, p := range prompts {
		if err := e.addPrompt(g, &in, p, choices); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// newGeneration checks what all bodies have in common.
func (e *Engine) newGeneration(in *requestBody, prefix string) (*generation, *apiError) {
	g := &generation{prefix: prefix, model: in.Model, stream: in.Stream, news: make(chan struct{}, 1)}
	if g.model == "" {
		g.model = e.opts.Models[0]
	}
	if !slices.Contains(e.opts.Models, g.model) {
		return nil, &apiError{http.StatusNotFound, "NotFoundError", fmt.Sprintf("The model `%s` does not exist.", g.model), "model"}
	}
	if err := e.checkFields(in); err != nil {
		return nil, err
	}
	var err *apiError
	if g.call, err = in.demandedCall(); err != nil {
		return nil, err
	}
	if in.StreamOptions != nil {
		g.includeUsage = in.StreamOptions.IncludeUsage
		g.everyUsage = g.includeUsage && in.StreamOptions.Continuous
	}
	return g, nil
}

func (e *Engine) checkFields(in *requestBody) *apiError {
	switch {
	case in.StreamOptions != nil && !in.Stream:
		return badRequest("Stream options can only be defined when `stream=True`.", "stream_options")
	case in.Priority != 0 && !e.opts.Priority:
		return badRequest(fmt.Sprintf("Got priority %d but Priority scheduling is not enabled.", in.Priority), "priority")
	case in.N != nil && *in.N < 1:
		return badRequest(fmt.Sprintf("n must be at least 1, got %d.", *in.N), "n")
	case in.MaxTokens != nil && *in.MaxTokens < 1:
		return badRequest(fmt.Sprintf("max_tokens must be at least 1, got %d.", *in.MaxTokens), "max_tokens")
	case in.MaxCompletionTokens != nil && *in.MaxCompletionTokens < 1:
		return badRequest(fmt.Sprintf("max_completion_tokens must be at least 1, got %d.", *in.MaxCompletionTokens), "max_completion_tokens")
	case in.CacheSalt != nil && (*in.CacheSalt == "" || len(*in.CacheSalt) > 128 || strings.ContainsAny(*in.CacheSalt, "@/\\\x00")):
		return badRequest("cache_salt must be 1 to 128 characters without @, / and \\.", "cache_salt")
	case bytes.Equal(bytes.TrimSpace(in.Tools), []byte("[]")):
		return badRequest("tools must not be empty.", "tools")
	}
	return nil
}

// addPrompt adds the choices of one prompt; they share its text, and its blocks once they are computed.
func (e *Engine) addPrompt(g *generation, in *requestBody, prompt []byte, choices int) *apiError {
	var text chain
	if in.CacheSalt != nil {
		text.parent = xxh3.HashString(*in.CacheSalt)
	}
	text.write(prompt)
	tokens := text.tokens()
	room := e.opts.MaxModelLen - tokens
	limit := room
	if g.prefix == "cmpl-" {
		limit = min(limit, 16) // vLLM's default for completions
	}
	if in.MaxTokens != nil {
		limit = *in.MaxTokens
	}
	if in.MaxCompletionTokens != nil && g.chat {
		limit = *in.MaxCompletionTokens
	}
	if room < 1 || limit > room {
		return badRequest(fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d tokens "+
			"(%d in the messages, %d in the completion). Please reduce the length of the messages or completion.",
			e.opts.MaxModelLen, tokens+max(limit, 1), tokens, max(limit, 1)), "messages")
	}
	g.promptTokens += tokens
	promptHash := xxh3.Hash(prompt)
	for range choices {
		seed := seedOf(e.opts.Seed, promptHash, len(g.seqs))
		s := &sequence{promptTokens: tokens, length: max(usualLength(seed), in.MinTokens), reason: "stop", seed: seed,
			priority: in.Priority, notify: g.news, text: text, call: g.call}
		if g.call != nil {
			s.length = len(g.call.pieces) + 1
		}
		s.text.hashes = slices.Clone(text.hashes)
		s.text.tail = slices.Clone(text.tail)
		if in.IgnoreEOS || s.length > limit {
			s.length, s.reason = limit, "length"
		}
		g.seqs = append(g.seqs, s)
	}
	return nil
}

// prompts renders the request as the engine's tokenizer would see it: one text per prompt.
func (in *requestBody) prompts(chat bool) ([][]byte, *apiError) {
	if chat {
		if len(in.Messages) == 0 {
			return nil, badRequest("messages must not be empty.", "messages")
		}
		text, err := in.render()
		return [][]byte{text}, err
	}
	var one string
	if json.Unmarshal(in.Prompt, &one) == nil {
		return [][]byte{[]byte(one)}, nil
	}
	var texts []string
	if json.Unmarshal(in.Prompt, &texts) == nil && len(texts) > 0 {
		var out [][]byte
		for _, t := range texts {
			out = append(out, []byte(t))
		}
		return out, nil
	}
	var ids []uint32
	if json.Unmarshal(in.Prompt, &ids) == nil && len(ids) > 0 {
		return [][]byte{idBytes(ids)}, nil
	}
	var lists [][]uint32
	if json.Unmarshal(in.Prompt, &lists) == nil && len(lists) > 0 {
		var out [][]byte
		for _, ids := range lists {
			out = append(out, idBytes(ids))
		}
		return out, nil
	}
	return nil, badRequest("prompt must be a string, a list of strings, token ids or a list of them.", "prompt")
}

// render is the chat template: tools first, then the messages, then the opening of the answer. The next turn of a
// conversation begins with exactly these bytes and the answer.
func (in *requestBody) render() ([]byte, *apiError) {
	var b []byte
	if len(in.Tools) > 0 && !bytes.Equal(in.Tools, []byte("null")) {
		b = append(append(append(b, "<|tools|>\n"...), in.Tools...), '\n')
	}
	for i, m := range in.Messages {
		if m.Role == "" {
			return nil, badRequest(fmt.Sprintf("messages[%d]: role is missing.", i), "messages")
		}
		b = append(append(append(b, "<|"...), m.Role...), "|>\n"...)
		var err *apiError
		if b, err = appendContent(b, m.Content, i); err != nil {
			return nil, err
		}
		b = append(append(b, m.ToolCalls...), '\n')
	}
	return append(b, "<|assistant|>\n"...), nil
}

func appendContent(b []byte, content json.RawMessage, index int) ([]byte, *apiError) {
	if len(content) == 0 || string(content) == "null" {
		return b, nil
	}
	var text string
	if json.Unmarshal(content, &text) == nil {
		return append(b, text...), nil
	}
	var parts []struct {
		Type     string          `json:"type"`
		Text     string          `json:"text"`
		ImageURL json.RawMessage `json:"image_url"`
		Source   json.RawMessage `json:"source"`  // an image of Messages
		Content  json.RawMessage `json:"content"` // a tool's result of Messages
		Input    json.RawMessage `json:"input"`   // a tool's call of Messages
	}
	if json.Unmarshal(content, &parts) != nil {
		return nil, badRequest(fmt.Sprintf("messages[%d]: content must be a string or a list of parts.", index), "messages")
	}
	for _, p := range parts {
		b = append(b, p.Text...)
		for _, image := range [][]byte{p.ImageURL, p.Source} {
			if len(image) > 0 {
				b = append(b, imageText(image)...)
			}
		}
		b = append(b, p.Input...)
		var err *apiError
		if b, err = appendContent(b, p.Content, index); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// imageText stands for an image: 256 tokens that depend on its content.
func imageText(url []byte) []byte {
	h := xxh3.Hash128(url).Bytes()
	return bytes.Repeat(h[:], 256*tokenBytes/len(h))
}

func idBytes(ids []uint32) []byte {
	b := make([]byte, 0, len(ids)*tokenBytes)
	for _, id := range ids {
		b = append(b, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	return b
}
