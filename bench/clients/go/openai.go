package main

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

var ctx = context.Background()

func openaiAt(url, key string, options ...option.RequestOption) *openai.Client {
	c := openai.NewClient(append([]option.RequestOption{option.WithBaseURL(url + "/v1/"), option.WithAPIKey(key)}, options...)...)
	return &c
}

func labelled(id string) option.RequestOption { return option.WithHeader("X-Request-Id", id) }

func say(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "qwen", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
}

// openaiTests are of openai-go.
func openaiTests() []test {
	k := key()
	c, other := openaiAt(replicaA, k), openaiAt(replicaB, k)
	once := option.WithMaxRetries(0)
	return []test{
		{"openai-go: chat", func() {
			id := label()
			var answer *http.Response
			a := must(c.Chat.Completions.New(ctx, say("hi"), labelled(id), option.WithResponseInto(&answer)))
			want(a.Choices[0].Message.Content != "" && a.Choices[0].FinishReason != "", "%s", a.RawJSON())
			want(answer.Header.Get("X-Request-Id") == id, "x-request-id is %q", answer.Header.Get("X-Request-Id"))
			counted(id, a.Usage.PromptTokens, a.Usage.CompletionTokens)
		}},
		{"openai-go: stream, the usage asked for", func() {
			id := label()
			whole := must(c.Chat.Completions.New(ctx, say("tell"))).Choices[0].Message.Content
			p := say("tell")
			p.StreamOptions.IncludeUsage = openai.Bool(true)
			stream := c.Chat.Completions.NewStreaming(ctx, p, labelled(id))
			var total openai.ChatCompletionAccumulator
			chunks, usages := int64(0), 0
			for stream.Next() {
				chunk := stream.Current()
				total.AddChunk(chunk)
				chunks++
				if chunk.JSON.Usage.Valid() {
					usages++
				}
			}
			want(stream.Err() == nil, "%v", stream.Err())
			want(total.Choices[0].Message.Content == whole, "streamed %q, whole %q", total.Choices[0].Message.Content, whole)
			want(chunks == total.Usage.CompletionTokens+2 && usages == 1, "%d chunks, %d with usage, %d tokens", chunks, usages, total.Usage.CompletionTokens)
			counted(id, total.Usage.PromptTokens, total.Usage.CompletionTokens)
		}},
		{"openai-go: stream, no usage asked for", func() {
			id := label()
			stream := other.Chat.Completions.NewStreaming(ctx, say("tell"), labelled(id))
			chunks := int64(0)
			for stream.Next() {
				chunks++
				want(len(stream.Current().Choices) == 1 && !stream.Current().JSON.Usage.Valid(), "%s", stream.Current().RawJSON())
			}
			want(stream.Err() == nil, "%v", stream.Err())
			a := request(id, 1)
			want(chunks == a.Engine[0].Output+1 && a.Lines[0].Completion == a.Engine[0].Output && a.Lines[0].Source == "backend", "%d chunks, %+v", chunks, a)
		}},
		{"openai-go: tools", func() {
			id := label()
			a := must(c.Chat.Completions.New(ctx, tooled(), labelled(id)))
			call := a.Choices[0].Message.ToolCalls[0]
			want(call.Function.Name == "weather" && call.Function.Arguments == weatherCall && call.ID != "" && a.Choices[0].FinishReason == "tool_calls", "%s", a.RawJSON())
			counted(id, a.Usage.PromptTokens, a.Usage.CompletionTokens)
			next := tooled()
			next.Messages = append(next.Messages, a.Choices[0].Message.ToParam(), openai.ToolMessage("12 C", call.ID))
			next.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("none")}
			want(must(c.Chat.Completions.New(ctx, next)).Choices[0].Message.Content != "", "no answer after the tool's")
		}},
		{"openai-go: tools streamed", func() {
			p := tooled()
			p.ToolChoice = openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "weather"})
			stream := c.Chat.Completions.NewStreaming(ctx, p)
			var total openai.ChatCompletionAccumulator
			finished := 0
			for stream.Next() {
				total.AddChunk(stream.Current())
				if call, ok := total.JustFinishedToolCall(); ok {
					finished++
					want(call.Name == "weather" && call.Arguments == weatherCall, "%+v", call)
				}
			}
			want(stream.Err() == nil && finished == 1, "%v, %d calls", stream.Err(), finished)
		}},
		{"openai-go: embeddings", func() {
			id := label()
			a := must(c.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: "qwen", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}}}, labelled(id)))
			want(len(a.Data) == 2 && len(a.Data[0].Embedding) > 0 && !slices.Equal(a.Data[0].Embedding, a.Data[1].Embedding), "%.300s", a.RawJSON())
			r := request(id, 1)
			want(a.Usage.PromptTokens > 0 && r.Lines[0].Prompt == a.Usage.PromptTokens && r.Engine[0].Prompt == a.Usage.PromptTokens, "%+v, %+v", a.Usage, r)
		}},
		{"openai-go: responses, over two replicas", func() {
			id := label()
			first := must(c.Responses.New(ctx, asking("hi"), labelled(id)))
			want(first.OutputText() != "" && first.Status == "completed", "%s", first.RawJSON())
			counted(id, first.Usage.InputTokens, first.Usage.OutputTokens)
			p := asking("and then?")
			p.PreviousResponseID = openai.String(first.ID)
			second := must(other.Responses.New(ctx, p))
			want(second.Usage.InputTokens > first.Usage.InputTokens+first.Usage.OutputTokens, "%d tokens after %d and %d", second.Usage.InputTokens, first.Usage.InputTokens, first.Usage.OutputTokens)
			kept := must(other.Responses.Get(ctx, first.ID, responses.ResponseGetParams{}))
			want(kept.OutputText() == first.OutputText(), "%q was %q", kept.OutputText(), first.OutputText())
			_, err := c.Responses.Get(ctx, "resp_0123", responses.ResponseGetParams{})
			want(as[*openai.Error](err).StatusCode == 404, "%v", err)
		}},
		{"openai-go: responses streamed", func() {
			id := label()
			stream := c.Responses.NewStreaming(ctx, asking("tell"), labelled(id))
			text, events, last := "", int64(0), responses.Response{}
			for stream.Next() {
				e := stream.Current()
				want(e.SequenceNumber == events, "event %d has number %d", events, e.SequenceNumber)
				events++
				switch e.Type {
				case "response.output_text.delta":
					text += e.Delta
				case "response.completed":
					last = e.Response
				}
			}
			want(stream.Err() == nil && last.OutputText() == text && text != "", "%v, %q, %q", stream.Err(), last.OutputText(), text)
			counted(id, last.Usage.InputTokens, last.Usage.OutputTokens)
		}},
		{"openai-go: responses with a tool", func() {
			p := asking("hi")
			p.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("weather", schema(), false)}
			p.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: param.NewOpt(responses.ToolChoiceOptionsRequired)}
			call := must(c.Responses.New(ctx, p)).Output[0].AsFunctionCall()
			want(call.Name == "weather" && call.Arguments == weatherCall && call.CallID != "", "%s", call.RawJSON())
		}},
		{"openai-go: transcription", func() {
			id := label()
			a := must(c.Audio.Transcriptions.New(ctx, openai.AudioTranscriptionNewParams{Model: "qwen", File: openai.File(bytes.NewReader(make([]byte, 40_000)), "a.wav", "audio/wav")}, labelled(id)))
			want(a.Text != "" && request(id, 1).Lines[0].Status == 200, "%s", a.RawJSON())
		}},
		{"openai-go: models", func() {
			models := must(c.Models.List(ctx)).Data
			want(len(models) == 2 && must(c.Models.Get(ctx, "qwen")).ID == "qwen", "%+v", models)
		}},
		{"openai-go: errors of the key and the model", func() {
			for _, e := range []struct {
				client *openai.Client
				model  string
				status int
				code   string
				kind   string
			}{
				{openaiAt(replicaA, "sk-acme-00000000000000000000000000000000"), "qwen", 401, "invalid_api_key", "authentication_error"},
				{openaiAt(replicaA, key("--models", "other")), "qwen", 403, "model_not_allowed", "permission_error"},
				{c, "nothing", 404, "model_not_found", "not_found_error"},
			} {
				id, p := label(), say("hi")
				p.Model = e.model
				_, err := e.client.Chat.Completions.New(ctx, p, labelled(id))
				got := as[*openai.Error](err)
				want(got.StatusCode == e.status && got.Code == e.code && got.Type == e.kind && got.Message != "", "%+v", got.RawJSON())
				statuses(id, e.status)
			}
		}},
		{"openai-go: a bad request, by the gateway and by the engine", func() {
			p := say("hi")
			p.MaxTokens, p.N = openai.Int(1<<62), openai.Int(2)
			_, err := c.Chat.Completions.New(ctx, p)
			got := as[*openai.Error](err)
			want(got.StatusCode == 400 && got.Code == "invalid_field" && got.Param == "max_tokens", "%s", got.RawJSON())
			p = say("hi")
			p.MaxTokens = openai.Int(100_000)
			_, err = c.Chat.Completions.New(ctx, p)
			got = as[*openai.Error](err)
			want(got.StatusCode == 400 && got.Type == "BadRequestError" && len(got.Message) > 20, "%s", got.RawJSON())
		}},
		{"openai-go: a rate limit of both replicas", func() {
			narrow := key("--rpm", "1")
			must(openaiAt(replicaA, narrow).Chat.Completions.New(ctx, say("hi")))
			limited := openaiAt(replicaB, narrow)
			_, err := limited.Chat.Completions.New(ctx, say("hi"), once)
			got := as[*openai.Error](err)
			want(got.StatusCode == 429 && got.Code == "rate_limit_exceeded" && got.Type == "rate_limit_error", "%s", got.RawJSON())
			after := must(strconv.Atoi(got.Response.Header.Get("Retry-After")))
			want(after >= 1 && after <= 60, "Retry-After: %d", after)
			h := got.Response.Header
			want(h.Get("X-Ratelimit-Limit-Requests") == "1" && h.Get("X-Ratelimit-Remaining-Requests") == "0" && h.Get("X-Ratelimit-Reset-Requests") != "", "%v", h)
		}},
		{"openai-go: a budget is not asked for again", func() {
			id := label()
			_, err := openaiAt(replicaA, key("--budget", "0.000001/month")).Chat.Completions.New(ctx, say("hi"), labelled(id))
			got := as[*openai.Error](err)
			want(got.StatusCode == 429 && got.Code == "insufficient_quota" && got.Response.Header.Get("X-Should-Retry") == "false", "%s", got.RawJSON())
			statuses(id, 429)
		}},
		{"openai-go: retries what is full", func() {
			id, began := label(), time.Now()
			faults(fault{Kind: "503", Times: 1})
			must(c.Chat.Completions.New(ctx, say("hi"), labelled(id)))
			statuses(id, 503, 200)
			want(time.Since(began) >= time.Second, "Retry-After was not waited for: %v", time.Since(began))
		}},
		{"openai-go: retries an engine's failure", func() {
			id := label()
			faults(fault{Kind: "500", Times: 1})
			stream := c.Chat.Completions.NewStreaming(ctx, say("hi"), labelled(id))
			for stream.Next() {
			}
			want(stream.Err() == nil, "%v", stream.Err())
			statuses(id, 502, 200)
		}},
		{"openai-go: retries while another request of the key runs", func() {
			single := openaiAt(replicaA, key("--parallel", "1"))
			faults(fault{Kind: "slow", Times: 1, Delay: "20ms"}, fault{Kind: "slow", Delay: "1ms"})
			id, stop := label(), make(chan struct{})
			running := single.Chat.Completions.NewStreaming(ctx, say("tell"))
			want(running.Next(), "%v", running.Err())
			go func() {
				defer close(stop)
				for running.Next() {
				}
			}()
			must(single.Chat.Completions.New(ctx, say("hi"), labelled(id), option.WithMaxRetries(5)))
			<-stop
			retried(id, 429)
		}},
		{"openai-go: aborted in mid-stream", func() {
			id := label()
			faults(fault{Kind: "slow", Delay: "50ms"})
			leaving, cancel := context.WithCancel(ctx)
			stream := c.Chat.Completions.NewStreaming(leaving, say("tell"), labelled(id))
			for range 3 {
				want(stream.Next(), "%v", stream.Err())
			}
			left := time.Now()
			cancel()
			stream.Close()
			aborted(id, left)
		}},
		{"openai-go: a stream that breaks off", func() {
			id := label()
			faults(fault{Kind: "cut", After: 5, Times: 1})
			stream := c.Chat.Completions.NewStreaming(ctx, say("tell"), labelled(id))
			chunks := 0
			for stream.Next() {
				chunks++
			}
			want(chunks == 5 && stream.Err() != nil, "%d chunks, %v", chunks, stream.Err())
			want(request(id, 1).Lines[0].ErrorCode == "stream_truncated", "%+v", request(id, 1).Lines)
		}},
		{"openai-go: a response that breaks off", func() {
			faults(fault{Kind: "cut", After: 8, Times: 1})
			stream := c.Responses.NewStreaming(ctx, asking("tell"))
			broken := false
			for stream.Next() {
				if e := stream.Current(); e.Type == "error" {
					broken = e.Code == "stream_truncated" && e.Message != ""
				}
			}
			want(broken || stream.Err() != nil, "the stream seems whole")
		}},
	}
}

func tooled() openai.ChatCompletionNewParams {
	p := say("what is the weather?")
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "weather", Parameters: schema()})}
	p.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
	return p
}

func asking(text string) responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: "qwen", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)}}
}
