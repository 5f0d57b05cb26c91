package bench

import (
	"fmt"
	"strings"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// shape is one kind of request of which the meter knows how often it waits.
type shape struct {
	name   string
	path   string
	ask    string // the body; % stands for the prompt, ^ for the id of an earlier Responses object
	waits  int    // before the answer
	status int
	says   string // part of the answer's body
	first  bool   // the replica has not seen the key
	hit    bool   // it is answered from the cache
	fields []string
	before func(*caller) // is done after the key's first use
}

const (
	chatPath    = "/v1/chat/completions"
	chatBody    = `{"model":"qwen","messages":[{"role":"user","content":"%"}],"max_tokens":3}`
	chatStream  = `{"model":"qwen","messages":[{"role":"user","content":"%"}],"max_tokens":3,"stream":true}`
	cachedBody  = `{"model":"exact","messages":[{"role":"user","content":"%"}],"max_tokens":3}`
	cachedBegin = `{"model":"exact","messages":[{"role":"user","content":"%"}],"max_tokens":3,"stream":true}`
	bobBody     = `{"model":"qwen","messages":[{"role":"user","content":"%"}],"max_tokens":3,"user":"bob"}`
)

// shapes are all but the queued one, which is measured in another way.
var shapes = []shape{
	{name: "chat", path: chatPath, ask: chatBody, waits: 1, status: 200},
	{name: "chat, streamed", path: chatPath, ask: chatStream, waits: 1, status: 200},
	{name: "chat, every scope", path: chatPath, ask: bobBody, waits: 1, status: 200, fields: []string{"X-Headgate-Tags: night,day"}, before: everyScope},
	{name: "completions", path: "/v1/completions", ask: `{"model":"qwen","prompt":"%","max_tokens":3}`, waits: 1, status: 200},
	{name: "completions, streamed", path: "/v1/completions", ask: `{"model":"qwen","prompt":"%","max_tokens":3,"stream":true}`, waits: 1, status: 200},
	{name: "Messages", path: "/v1/messages", ask: chatBody, waits: 1, status: 200},
	{name: "Messages, streamed", path: "/v1/messages", ask: chatStream, waits: 1, status: 200},
	{name: "Responses", path: "/v1/responses", ask: `{"model":"qwen","input":"%","max_output_tokens":3}`, waits: 1, status: 200},
	{name: "Responses, streamed", path: "/v1/responses", ask: `{"model":"qwen","input":"%","max_output_tokens":3,"stream":true}`, waits: 1, status: 200},
	{name: "Responses, continued", path: "/v1/responses", ask: `{"model":"qwen","input":"%","max_output_tokens":3,"previous_response_id":"^"}`, waits: 1, status: 200, before: continued},
	{name: "embeddings", path: "/v1/embeddings", ask: `{"model":"qwen","input":"%"}`, waits: 1, status: 200},
	{name: "rerank", path: "/v1/rerank", ask: `{"model":"qwen","query":"%","documents":["a","b"]}`, waits: 1, status: 200},
	{name: "cache miss", path: chatPath, ask: cachedBody, waits: 1, status: 200},
	{name: "cache miss, streamed", path: chatPath, ask: cachedBegin, waits: 1, status: 200},
	{name: "cache hit", path: chatPath, ask: cachedBody, waits: 1, status: 200, hit: true, before: stored},
	{name: "cache hit, streamed", path: chatPath, ask: cachedBegin, waits: 1, status: 200, hit: true, before: stored},
	{name: "first after HSET of the team's policy", path: chatPath, ask: chatBody, waits: 1, status: 200, before: func(c *caller) { c.set(c.team, "rpm", "500", "parallel", "7") }},
	{name: "first after HSET of the key's policy", path: chatPath, ask: chatStream, waits: 1, status: 200, before: func(c *caller) { c.set(c.record, "budget_usd", "2", "tags", "night") }},
	{name: "first use of a key on a replica", path: chatPath, ask: chatBody, waits: 2, status: 200, first: true},
	{name: "first use of an imported key", path: chatPath, ask: chatBody, waits: 2, status: 200, first: true, before: imported},

	refusal("rpm of the key", 429, "1 request per minute", func(c *caller) { c.set(c.record, "rpm", "1") }),
	refusal("rpm of the team", 429, "0 requests per minute", func(c *caller) { c.set(c.team, "rpm", "0") }),
	refusal("tpm", 429, "5 tokens per minute", func(c *caller) { c.set(c.record, "tpm", "5") }),
	refusal("parallel", 429, "concurrency", func(c *caller) { c.set(c.record, "parallel", "0") }),
	refusal("budget of the key", 429, "left of its budget", func(c *caller) { c.set(c.record, "budgets", "0.000001/total") }),
	refusal("budget of the user", 429, "The user ann", func(c *caller) { c.set(c.root+":user:ann", "budget_usd", "0.000001") }),
	refusal("budget of the team", 429, "The team search", func(c *caller) { c.set(c.team, "budget_usd", "0.000001") }),
	refusal("budget of the tenant", 429, "The tenant", func(c *caller) { c.set(c.root, "budgets", "0.000001/day 5/30d") }),
	refusal("budget of a tag", 429, "The tag night", func(c *caller) { c.set(c.root+":tag:night", "budget_usd", "0.000001") }),
	refusal("budget of an end user", 429, "The end user", func(c *caller) { c.set(c.root+":enduser:bob", "budget_usd", "0.000001") }),
	refusal("model list", 403, "model_not_allowed", func(c *caller) { c.set(c.record, "models", "other*") }),
	refusal("key disabled", 401, "invalid_api_key", func(c *caller) { c.set(c.record, "disabled", "1") }),
	refusal("key expired", 401, "invalid_api_key", func(c *caller) { c.set(c.record, "expires_at", "1000") }),
	{name: "refused: key unknown", path: chatPath, ask: chatBody, waits: 1, status: 401, says: "invalid_api_key", first: true, before: func(c *caller) { c.key += "x" }},
	{name: "refused: model unknown", path: chatPath, ask: strings.Replace(chatBody, "qwen", "nope", 1), waits: 1, status: 404, says: "model_not_found"},
	{name: "refused: no backend", path: chatPath, ask: strings.Replace(chatBody, "qwen", "nowhere", 1), waits: 1, status: 503, says: "no_backend"},
}

// refusal is one that the key's first use did not meet.
func refusal(name string, status int, says string, before func(*caller)) shape {
	return shape{name: "refused: " + name, path: chatPath, ask: bobBody, waits: 1, status: status, says: says, fields: []string{"X-Headgate-Tags: night"}, before: before}
}

// everyScope gives each scope of a request a policy.
func everyScope(c *caller) {
	for _, record := range []string{"", ":user:ann", ":enduser:bob", ":tag:night", ":tag:day"} {
		c.set(c.root+record, "rpm", "1000", "tpm", "1000000", "parallel", "10", "budget_usd", "1", "period", "day", "budgets", "5/month 9/total")
	}
}

// stored waits until what the key asked first is answered from the cache.
func stored(c *caller) {
	c.m.t.Helper()
	body := strings.Replace(cachedBody, "%", c.served, 1)
	lab.Eventually(c.m.t, patience, func() bool {
		return ask(c.m.t, "POST", c.m.Replicas[0].URL+chatPath, c.key, body).Header.Get("X-Headgate-Cache") == "hit"
	}, "the first answer is stored")
}

// continued makes a Responses object that can be continued.
func continued(c *caller) {
	c.m.t.Helper()
	a := ask(c.m.t, "POST", c.m.Replicas[0].URL+"/v1/responses", c.key, `{"model":"qwen","input":"begin","max_output_tokens":3}`)
	if a.Status != 200 {
		c.m.t.Fatalf("%d %s", a.Status, a.Body)
	}
	c.previous = decodeAnswer(c.m.t, a)["id"].(string)
	held := c.root + ":response:" + c.previous
	lab.Eventually(c.m.t, patience, func() bool { return c.m.cli(held, "EXISTS", held) == "1" }, "its holder is known")
}

// imported turns the caller's key into one whose shape does not name its tenant.
func imported(c *caller) {
	old := c.record
	c.key = fmt.Sprintf("sk-proj-%s_%032d", c.tenant, c.m.tenant)
	c.record = keyRecord(c.tenant, c.key)
	c.m.cli(old, "RENAME", old, c.record)
	alias := coordinator.Alias(coordinator.HashKey(c.key))
	c.m.cli(alias, "SET", alias, c.tenant)
}
