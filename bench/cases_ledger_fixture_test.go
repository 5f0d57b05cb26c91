package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// limits is the world of the cases about budgets, limits and keys: three gateways.
var limits = fleet.Share(func(t testing.TB) *world { return newWorld(t, 3) })

// form is one way to ask for the same thing: a route, streamed or not. What it costs does not depend on it.
type form struct {
	name   string
	path   string
	ask    string // the body up to what more may be said: model and prompt stand for themselves as $ and %
	cap    string // the field that bounds the answer
	stream bool
	answer func(prompt, completion int) scripted.Script
}

const (
	chatAsk      = `{"model":"$","messages":[{"role":"user","content":"%"}]`
	completeAsk  = `{"model":"$","prompt":"% all the lot"` // held like the message
	responsesAsk = `{"model":"$","input":[{"role":"user","content":"%"}]`
)

var (
	chatForm = form{"chat", "/v1/chat/completions", chatAsk, "max_tokens", false, func(p, c int) scripted.Script { return scripted.JSON(200, scripted.J(p, c)) }}
	forms    = []form{
		chatForm,
		{"chat streamed", "/v1/chat/completions", chatAsk, "max_tokens", true, func(p, c int) scripted.Script {
			return scripted.Stream(scripted.E("a"), scripted.F, scripted.U(p, c), scripted.D)
		}},
		{"completions", "/v1/completions", completeAsk, "max_tokens", false, func(p, c int) scripted.Script {
			return scripted.JSON(200, `{"id":"c1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"abc","finish_reason":"stop"}],"usage":`+scripted.Usage(p, c)+`}`)
		}},
		{"messages", "/v1/messages", chatAsk, "max_tokens", false, func(p, c int) scripted.Script {
			return scripted.JSON(200, `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"abc"}],"model":"m","stop_reason":"end_turn","usage":`+named(p, c)+`}`)
		}},
		{"messages streamed", "/v1/messages", chatAsk, "max_tokens", true, func(p, c int) scripted.Script {
			return scripted.Stream(
				event("message_start", `"message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","usage":`+named(p, 0)+`}`),
				event("content_block_delta", `"index":0,"delta":{"type":"text_delta","text":"abc"}`),
				event("message_delta", `"delta":{"stop_reason":"end_turn"},"usage":`+named(p, c)),
				event("message_stop", `"n":1`))
		}},
		{"responses", "/v1/responses", responsesAsk, "max_output_tokens", false, func(p, c int) scripted.Script {
			return scripted.JSON(200, responseObject(p, c))
		}},
		{"responses streamed", "/v1/responses", responsesAsk, "max_output_tokens", true, func(p, c int) scripted.Script {
			return scripted.Stream(
				event("response.created", `"sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress"}`),
				event("response.output_text.delta", `"sequence_number":1,"output_index":0,"item_id":"i","content_index":0,"delta":"abc"`),
				event("response.completed", `"sequence_number":2,"response":`+responseObject(p, c)))
		}},
	}
)

func named(prompt, completion int) string {
	return fmt.Sprintf(`{"input_tokens":%d,"output_tokens":%d}`, prompt, completion)
}

func event(name, members string) string {
	return "event: " + name + "\ndata: {\"type\":\"" + name + "\"," + members + "}\n\n"
}

func responseObject(prompt, completion int) string {
	return `{"id":"resp_1","object":"response","created_at":1,"status":"completed","model":"m","output":[{"type":"message","id":"i","role":"assistant","status":"completed",` +
		`"content":[{"type":"output_text","text":"abc","annotations":[]}]}],"usage":` + strings.TrimSuffix(named(prompt, completion), "}") + fmt.Sprintf(`,"total_tokens":%d}}`, prompt+completion)
}

// body asks a model in this form for at most cap tokens (0: says nothing of it); more are further members.
func (f form) body(model string, cap int, more ...string) string {
	body := strings.Replace(strings.Replace(f.ask, "$", model, 1), "%", "hi", 1)
	if cap > 0 {
		more = append(more, fmt.Sprintf(`"%s":%d`, f.cap, cap))
	}
	if f.stream {
		more = append(more, `"stream":true`)
	}
	for _, m := range more {
		body += "," + m
	}
	return body + "}"
}

// reply is an answer and when it was asked for and had.
type reply struct {
	fleet.Answer
	sent, ended time.Time
}

// askAs asks gateway g (0, 1 …) in a form. Only connections that fail are errors.
func (l *lane) askAs(f form, g int, key, body string, fields ...string) reply {
	l.t.Helper()
	r := reply{sent: time.Now()}
	answer, err := fleet.Client.Do(fleet.Request(l.t, l.Replicas[g%len(l.Replicas)].URL+f.path, key, body, fields...))
	if err != nil {
		l.t.Errorf("%s at gateway %d: %v", f.name, g, err)
		return r
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	r.Answer = fleet.Answer{Status: answer.StatusCode, Header: answer.Header, Body: string(text), Err: err}
	r.ended = time.Now()
	return r
}

// forMoney says whether a refusal is a budget's. On /v1/messages errors have no code.
func (r reply) forMoney() bool {
	return r.Status == 429 && (strings.Contains(r.Body, "insufficient_quota") || strings.HasPrefix(r.Body, `{"type":"error"`) && strings.Contains(r.Body, "left of its budget")) &&
		r.Header.Get("X-Should-Retry") == "false"
}

// playForm has every request of the lane answered in the form, with this usage.
func (l *lane) playForm(f form, prompt, completion int) { l.play(f.answer(prompt, completion)) }

// secondsOf is a field that holds a whole number of seconds; -1 where it is none.
func (r reply) secondsOf(field string) int {
	n, err := strconv.Atoi(r.Header.Get(field))
	if err != nil {
		return -1
	}
	return n
}

// holds are all counters of the tenant: what a refused request must leave as it is.
func (l *lane) holds() string {
	root := "hg:{t:" + l.tenant + "}:"
	var all []string
	for _, pattern := range []string{"rate:*", "spend:*", "parallel", "open"} {
		for key := range strings.FieldsSeq(l.redis.CLI("--scan", "--pattern", root+pattern)) {
			all = append(all, key+" "+strings.ReplaceAll(l.redis.CLI("HGETALL", key), "\n", " "))
		}
	}
	return strings.Join(sorted(all), "\n")
}

// minute is a field of the sliding minute of one scope.
func (l *lane) minute(scope, id, field string) int {
	n, _ := strconv.Atoi(l.redis.CLI("HGET", "hg:{t:"+l.tenant+"}:rate:"+scope+":"+id, field))
	return n
}

// settled waits until nothing of the lane runs or is reserved.
func (l *lane) settled() {
	l.t.Helper()
	lab.Succeeds(l.t, patience, l.quiet, "nothing of %s is reserved or held", l.tenant)
}

// policy sets fields of a record by hand: "" is the tenant's, "team:search" the team's.
func (l *lane) policy(record string, fields ...string) {
	root := "hg:{t:" + l.tenant + "}"
	if record != "" {
		root += ":" + record
	}
	l.redis.CLI(append([]string{"HSET", root}, fields...)...)
}

// named is a key of the lane's tenant, its id and where its record stands.
func (l *lane) named(policy ...string) (key, id, record string) {
	l.t.Helper()
	key = l.Key(append([]string{"--tenant", l.tenant}, policy...)...)
	record = keyRecord(l.tenant, key)
	return key, l.redis.CLI("HGET", record, "id"), record
}
