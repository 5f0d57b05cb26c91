package main

import (
	"context"
	"errors"
	"io"
	"time"

	sashabaranov "github.com/sashabaranov/go-openai"
)

func sashabaranovAt(url, key string) *sashabaranov.Client {
	c := sashabaranov.DefaultConfig(key)
	c.BaseURL = url + "/v1"
	return sashabaranov.NewClientWithConfig(c)
}

func chatRequest(text string) sashabaranov.ChatCompletionRequest {
	return sashabaranov.ChatCompletionRequest{Model: "qwen", Messages: []sashabaranov.ChatCompletionMessage{{Role: "user", Content: text}}}
}

// sashabaranovTests are of go-openai. It lets nobody set a header of a request: what it was told of its id is in the
// answer's. It repeats nothing on its own.
func sashabaranovTests() []test {
	k := key()
	c, other := sashabaranovAt(replicaA, k), sashabaranovAt(replicaB, k)
	return []test{
		{"go-openai: chat", func() {
			a := must(c.CreateChatCompletion(ctx, chatRequest("hi")))
			want(a.Choices[0].Message.Content != "" && a.Header().Get("X-Headgate-Backend") != "", "%+v", a)
			counted(a.Header().Get("X-Request-Id"), int64(a.Usage.PromptTokens), int64(a.Usage.CompletionTokens))
		}},
		{"go-openai: stream", func() {
			p := chatRequest("tell")
			whole := must(c.CreateChatCompletion(ctx, p)).Choices[0].Message.Content
			p.Stream, p.StreamOptions = true, &sashabaranov.StreamOptions{IncludeUsage: true}
			stream := must(other.CreateChatCompletionStream(ctx, p))
			defer stream.Close()
			text, chunks, usage := "", 0, sashabaranov.Usage{}
			for {
				chunk, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				want(err == nil, "%v", err)
				chunks++
				if chunk.Usage != nil {
					usage = *chunk.Usage
				} else {
					text += chunk.Choices[0].Delta.Content
				}
			}
			want(text == whole && chunks == usage.CompletionTokens+2, "%q, whole %q, %d chunks, %+v", text, whole, chunks, usage)
			counted(stream.Header().Get("X-Request-Id"), int64(usage.PromptTokens), int64(usage.CompletionTokens))
		}},
		{"go-openai: tools", func() {
			p := chatRequest("what is the weather?")
			p.Tools = []sashabaranov.Tool{{Type: "function", Function: &sashabaranov.FunctionDefinition{Name: "weather", Parameters: schema()}}}
			p.ToolChoice = sashabaranov.ToolChoice{Type: "function", Function: sashabaranov.ToolFunction{Name: "weather"}}
			call := must(c.CreateChatCompletion(ctx, p)).Choices[0].Message.ToolCalls[0]
			want(call.Function.Name == "weather" && call.Function.Arguments == weatherCall, "%+v", call)
			p.ToolChoice = "required"
			stream := must(c.CreateChatCompletionStream(ctx, p))
			defer stream.Close()
			arguments, reason := "", ""
			for {
				chunk, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				want(err == nil, "%v", err)
				reason += string(chunk.Choices[0].FinishReason)
				for _, call := range chunk.Choices[0].Delta.ToolCalls {
					want(*call.Index == 0, "%+v", call)
					arguments += call.Function.Arguments
				}
			}
			want(arguments == weatherCall && reason == "tool_calls", "%q %q", arguments, reason)
		}},
		{"go-openai: completions", func() {
			a := must(c.CreateCompletion(ctx, sashabaranov.CompletionRequest{Model: "qwen", Prompt: "once", MaxTokens: 5}))
			want(a.Choices[0].Text != "" && a.Usage.CompletionTokens == 5, "%+v", a)
			counted(a.Header().Get("X-Request-Id"), int64(a.Usage.PromptTokens), 5)
		}},
		{"go-openai: embeddings, as numbers and as base64", func() {
			p := sashabaranov.EmbeddingRequestStrings{Model: "qwen", Input: []string{"one", "two"}}
			numbers := must(c.CreateEmbeddings(ctx, p))
			p.EncodingFormat = sashabaranov.EmbeddingEncodingFormatBase64
			packed := must(c.CreateEmbeddings(ctx, p))
			want(len(numbers.Data) == 2 && len(packed.Data) == 2 && len(numbers.Data[1].Embedding) == len(packed.Data[1].Embedding), "%d and %d", len(numbers.Data), len(packed.Data))
			for i, n := range numbers.Data[1].Embedding {
				d := n - packed.Data[1].Embedding[i]
				want(d < 1e-5 && d > -1e-5, "figure %d is %v and %v", i, n, packed.Data[1].Embedding[i])
			}
			want(numbers.Usage.PromptTokens > 0 && numbers.Usage == packed.Usage, "%+v and %+v", numbers.Usage, packed.Usage)
		}},
		{"go-openai: typed errors", func() {
			for _, e := range []struct {
				client *sashabaranov.Client
				change func(*sashabaranov.ChatCompletionRequest)
				status int
				code   any
			}{
				{sashabaranovAt(replicaA, "nonsense"), func(*sashabaranov.ChatCompletionRequest) {}, 401, "invalid_api_key"},
				{sashabaranovAt(replicaA, key("--models", "other")), func(*sashabaranov.ChatCompletionRequest) {}, 403, "model_not_allowed"},
				{c, func(p *sashabaranov.ChatCompletionRequest) { p.Model = "nothing" }, 404, "model_not_found"},
				{c, func(p *sashabaranov.ChatCompletionRequest) { p.MaxTokens, p.N = 1<<62, 2 }, 400, "invalid_field"},
				{c, func(p *sashabaranov.ChatCompletionRequest) { p.MaxTokens = 100_000 }, 400, 400},
				{sashabaranovAt(replicaA, key("--budget", "0.000001/month")), func(*sashabaranov.ChatCompletionRequest) {}, 429, "insufficient_quota"},
			} {
				p := chatRequest("hi")
				e.change(&p)
				_, err := e.client.CreateChatCompletion(ctx, p)
				got := as[*sashabaranov.APIError](err)
				want(got.HTTPStatusCode == e.status && got.Code == e.code && got.Message != "" && got.Type != "", "%+v, want %d %v", got, e.status, e.code)
				p.Stream = true
				_, err = e.client.CreateChatCompletionStream(ctx, p)
				want(as[*sashabaranov.APIError](err).HTTPStatusCode == e.status, "streamed: %v", err)
			}
		}},
		{"go-openai: a rate limit of both replicas", func() {
			narrow := key("--rpm", "1")
			a := must(sashabaranovAt(replicaA, narrow).CreateChatCompletion(ctx, chatRequest("hi")))
			h := a.GetRateLimitHeaders()
			want(h.LimitRequests == 1 && h.RemainingRequests == 0 && !h.ResetRequests.Time().Before(time.Now()), "%+v", h)
			_, err := sashabaranovAt(replicaB, narrow).CreateChatCompletion(ctx, chatRequest("hi"))
			got := as[*sashabaranov.APIError](err)
			want(got.HTTPStatusCode == 429 && got.Code == "rate_limit_exceeded", "%+v", got)
		}},
		{"go-openai: aborted in mid-stream", func() {
			faults(fault{Kind: "slow", Delay: "50ms"})
			leaving, cancel := context.WithCancel(ctx)
			p := chatRequest("tell")
			p.Stream = true
			stream := must(c.CreateChatCompletionStream(leaving, p))
			for range 3 {
				must(stream.Recv())
			}
			left := time.Now()
			cancel()
			stream.Close()
			aborted(stream.Header().Get("X-Request-Id"), left)
		}},
		{"go-openai: a stream that breaks off", func() {
			faults(fault{Kind: "cut", After: 5, Times: 1})
			p := chatRequest("tell")
			p.Stream = true
			stream := must(c.CreateChatCompletionStream(ctx, p))
			defer stream.Close()
			chunks := 0
			var err error
			for err == nil {
				if _, err = stream.Recv(); err == nil {
					chunks++
				}
			}
			got := as[*sashabaranov.APIError](err)
			want(chunks == 5 && got.Code == "stream_truncated", "%d chunks, %+v", chunks, got)
		}},
		{"go-openai: an engine's failure", func() {
			faults(fault{Kind: "500", Times: 1})
			_, err := c.CreateChatCompletion(ctx, chatRequest("hi"))
			want(as[*sashabaranov.APIError](err).Code == "upstream_error", "%v", err)
		}},
	}
}
