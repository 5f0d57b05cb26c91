package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// pool makes a generation of prompts alone: each is computed and nothing is sampled from it, which the batch plays as one
// token that nobody is told of.
func (e *Engine) pool(in *requestBody, prefix string, prompts [][]byte) (*generation, *apiError) {
	in.StreamOptions, in.Stream, in.N = nil, false, nil
	one := 1
	in.MaxTokens, in.MaxCompletionTokens, in.IgnoreEOS = &one, nil, true
	g, err := e.newGeneration(in, prefix)
	if err != nil {
		return nil, err
	}
	if len(prompts) == 0 {
		return nil, badRequest("There must be at least one input.", "input")
	}
	for _, p := range prompts {
		if err := e.addPrompt(g, in, p, 1); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (c *call) poolUsage(g *generation) string {
	if c.fault.Kind == NoUsage {
		return "null"
	}
	return fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"prompt_tokens_details":null}`, g.promptTokens, g.promptTokens)
}

// embeddingsRequest is the body of /v1/embeddings: what differs from a chat.
type embeddingsRequest struct {
	requestBody
	Input      json.RawMessage `json:"input"`
	Format     string          `json:"encoding_format"`
	Dimensions int             `json:"dimensions"`
}

const usualDimensions = 16

func parseEmbedding(e *Engine, _ *http.Request, body []byte) (*generation, *apiError) {
	var in embeddingsRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, badRequest("Invalid request body: "+err.Error(), "")
	}
	in.Prompt = in.Input
	prompts, err := in.prompts(len(in.Input) == 0)
	if err != nil {
		return nil, err
	}
	if in.Dimensions == 0 {
		in.Dimensions = usualDimensions
	}
	if in.Dimensions < 0 || in.Dimensions > 4096 || in.Format != "" && in.Format != "float" && in.Format != "base64" {
		return nil, badRequest("dimensions or encoding_format is not supported.", "dimensions")
	}
	g, err := e.pool(&in.requestBody, "embd-", prompts)
	if err != nil {
		return nil, err
	}
	g.body = func(c *call) []byte {
		b := fmt.Appendf(nil, `{"id":%s,"object":"list","created":%d,"model":%s,"data":[`, quote(g.id), time.Now().Unix(), quote(g.model))
		for i, p := range prompts {
			if i > 0 {
				b = append(b, ',')
			}
			b = fmt.Appendf(b, `{"index":%d,"object":"embedding","embedding":%s}`, i, embedding(p, in.Dimensions, in.Format))
		}
		return fmt.Appendf(b, `],"usage":%s}`, c.poolUsage(g))
	}
	return g, nil
}

// embedding is a unit vector that depends on the text alone.
func embedding(text []byte, dimensions int, format string) []byte {
	v := make([]float32, dimensions)
	var sum float64
	for i := range v {
		v[i] = float32(xxh3.HashSeed(text, uint64(i))%2001)/1000 - 1
		sum += float64(v[i]) * float64(v[i])
	}
	raw := make([]byte, 0, 4*dimensions)
	for i := range v {
		v[i] /= float32(math.Sqrt(max(sum, 1e-9)))
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v[i]))
	}
	if format == "base64" {
		return quote(base64.StdEncoding.EncodeToString(raw))
	}
	b, _ := json.Marshal(v)
	return b
}

// pairsRequest is the body of /v1/rerank and /v1/score: what differs from a chat.
type pairsRequest struct {
	requestBody
	Query     json.RawMessage `json:"query"`
	Documents json.RawMessage `json:"documents"`
	TopN      int             `json:"top_n"`
	Text1     json.RawMessage `json:"text_1"`
	Text2     json.RawMessage `json:"text_2"`
}

// pairs are the prompts of a cross encoder: each document behind its query. One query goes with all documents.
func pairs(queries, documents []string, param string) ([][]byte, *apiError) {
	if len(queries) == 0 || len(documents) == 0 || len(queries) > 1 && len(queries) != len(documents) {
		return nil, badRequest("There must be one query, or one for each document.", param)
	}
	var out [][]byte
	for i, d := range documents {
		out = append(out, []byte(queries[i%len(queries)]+"\n"+d))
	}
	return out, nil
}

// texts reads a string, or a list of strings or of objects with a text.
func texts(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var items []json.RawMessage
	var out []string
	if json.Unmarshal(raw, &items) != nil {
		return nil
	}
	for _, item := range items {
		var document struct{ Text string }
		if json.Unmarshal(item, &one) != nil {
			if json.Unmarshal(item, &document) != nil {
				return nil
			}
			one = document.Text
		}
		out = append(out, one)
	}
	return out
}

// relevance is a number from 0 to 1 that depends on the text alone.
func relevance(pair []byte) float64 { return float64(xxh3.Hash(pair)%10_001) / 10_000 }

func parseRerank(e *Engine, _ *http.Request, body []byte) (*generation, *apiError) {
	var in pairsRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, badRequest("Invalid request body: "+err.Error(), "")
	}
	documents := texts(in.Documents)
	prompts, invalid := pairs(texts(in.Query), documents, "documents")
	if invalid != nil {
		return nil, invalid
	}
	g, invalid := e.pool(&in.requestBody, "rerank-", prompts)
	if invalid != nil {
		return nil, invalid
	}
	order := make([]int, len(prompts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return -bytes.Compare(rank(prompts[a]), rank(prompts[b])) })
	if in.TopN > 0 {
		order = order[:min(in.TopN, len(order))]
	}
	g.body = func(c *call) []byte {
		usage := "null"
		if c.fault.Kind != NoUsage {
			usage = fmt.Sprintf(`{"total_tokens":%d}`, g.promptTokens) // older versions name no prompt_tokens
		}
		b := fmt.Appendf(nil, `{"id":%s,"model":%s,"usage":%s,"results":[`, quote(g.id), quote(g.model), usage)
		for i, k := range order {
			if i > 0 {
				b = append(b, ',')
			}
			b = fmt.Appendf(b, `{"index":%d,"document":{"text":%s},"relevance_score":%v}`, k, quote(documents[k]), relevance(prompts[k]))
		}
		return append(b, "]}"...)
	}
	return g, nil
}

// rank orders pairs as their relevance does.
func rank(pair []byte) []byte {
	return binary.BigEndian.AppendUint64(nil, math.Float64bits(relevance(pair)))
}

func parseScore(e *Engine, _ *http.Request, body []byte) (*generation, *apiError) {
	var in pairsRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, badRequest("Invalid request body: "+err.Error(), "")
	}
	prompts, invalid := pairs(texts(in.Text1), texts(in.Text2), "text_2")
	if invalid != nil {
		return nil, invalid
	}
	g, invalid := e.pool(&in.requestBody, "score-", prompts)
	if invalid != nil {
		return nil, invalid
	}
	g.body = func(c *call) []byte {
		b := fmt.Appendf(nil, `{"id":%s,"object":"list","created":%d,"model":%s,"data":[`, quote(g.id), time.Now().Unix(), quote(g.model))
		for i, p := range prompts {
			if i > 0 {
				b = append(b, ',')
			}
			b = fmt.Appendf(b, `{"index":%d,"object":"score","score":%v}`, i, relevance(p))
		}
		return fmt.Appendf(b, `],"usage":%s}`, c.poolUsage(g))
	}
	return g, nil
}
