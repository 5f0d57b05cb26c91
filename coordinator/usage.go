package coordinator

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// Outcomes of a client request, as usage records name them.
const (
	OutcomeOK                = "ok"
	OutcomeRejected          = "rejected" // refused here or by the engine's own 4xx
	OutcomeClientGone        = "client_gone"
	OutcomeUpstreamError     = "upstream_error"
	OutcomeUpstreamTruncated = "upstream_truncated"
	OutcomeTimeout           = "timeout"
	OutcomeShutdown          = "shutdown"
	OutcomeLost              = "lost" // written by expire for a replica that died
)

// Cache states of a usage record.
const (
	CacheHit  = "hit"
	CacheMiss = "miss"
	CacheOff  = "off"
)

// Record is the usage record: one per client request, whatever its outcome. Its JSON is one line of the usage log and,
// for admitted requests, the field "record" of an entry of the tenant's usage stream.
type Record struct {
	Time      time.Time // when the request arrived
	RequestID string    // the label the client saw
	RID       string
	Replica   string

	Tenant, Team, User, KeyID, EndUser string
	Tags                               []string

	Route, Model, Pool, Backend string
	Attempts                    int
	Status                      int
	Outcome, ErrorCode          string
	Stream                      bool

	Prompt, Cached, Completion int64
	UsageSource                string // backend, estimated, none
	CostKnown                  bool   // false: the model has no price; cost_nusd is null
	CostNUSD, OverNUSD         int64
	MU                         int64 // thousandths of a model unit

	Charged              []string // spend counters in which it stands, as <scope>:<id>:<period>; none: it was given back
	HeldTokens, HeldNUSD int64    // reserved for it at the end
	Refusal              *Refusal // by a limit, a budget or a policy; nil: by none

	Cache         string
	PrefixMatched int64
	Candidates    int           // backends weighed for it, in the last attempt
	Expected      time.Duration // until its prompt is computed, as placement saw it; 0: nothing lay before it, or it waited
	QueueMS       int64
	RedisMS       float64
	RoundTrips    int
	TTFT, TPOT    time.Duration // 0: no token was seen
	Duration      time.Duration

	RequestBytes, ResponseBytes int64
	ClientIP, UserAgent         string
}

// AppendJSON appends the record as one JSON object without a line end.
func (r *Record) AppendJSON(dst []byte) []byte {
	w := line{dst: append(dst, '{')}
	w.name("time")
	w.dst = append(appendTime(append(w.dst, '"'), r.Time), '"')
	w.text("request_id", r.RequestID)
	w.text("rid", r.RID)
	w.text("replica", r.Replica)
	w.text("tenant", r.Tenant)
	w.text("team", r.Team)
	w.text("user", r.User)
	w.text("key_id", r.KeyID)
	w.text("end_user", r.EndUser)
	w.list("tags", r.Tags)
	w.text("route", r.Route)
	w.text("model", r.Model)
	w.text("pool", r.Pool)
	w.text("backend", r.Backend)
	w.number("attempts", int64(r.Attempts))
	w.number("status", int64(r.Status))
	w.text("outcome", r.Outcome)
	w.text("error_code", r.ErrorCode)
	w.raw("stream", strconv.FormatBool(r.Stream))
	w.number("prompt_tokens", r.Prompt)
	w.number("cached_tokens", r.Cached)
	w.number("completion_tokens", r.Completion)
	w.text("usage_source", r.UsageSource)
	if r.CostKnown {
		w.number("cost_nusd", r.CostNUSD)
	} else {
		w.raw("cost_nusd", "null")
	}
	w.number("over_nusd", r.OverNUSD)
	w.decimal("mu", float64(r.MU)/1000)
	w.list("charged", r.Charged)
	w.number("held_tokens", r.HeldTokens)
	w.number("held_nusd", r.HeldNUSD)
	w.refusal(r.Refusal)
	w.text("cache", r.Cache)
	w.number("prefix_matched", r.PrefixMatched)
	w.number("candidates", int64(r.Candidates))
	w.decimal("expected_ms", millis(r.Expected))
	w.number("queue_ms", r.QueueMS)
	w.decimal("redis_ms", r.RedisMS)
	w.number("round_trips", int64(r.RoundTrips))
	w.decimal("ttft_ms", millis(r.TTFT))
	w.decimal("tpot_ms", millis(r.TPOT))
	w.decimal("duration_ms", millis(r.Duration))
	w.number("request_bytes", r.RequestBytes)
	w.number("response_bytes", r.ResponseBytes)
	w.text("client_ip", r.ClientIP)
	w.text("user_agent", r.UserAgent)
	return append(w.dst, '}')
}

// appendTime is RFC 3339 with milliseconds, in UTC; package time is quick only without them.
func appendTime(dst []byte, t time.Time) []byte {
	dst = t.UTC().AppendFormat(dst, time.RFC3339)
	ms := t.Nanosecond() / 1e6
	return append(dst[:len(dst)-1], '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z')
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// line writes the members of one flat JSON object.
type line struct {
	dst []byte
	any bool
}

func (w *line) name(name string) {
	if w.any {
		w.dst = append(w.dst, ',')
	}
	w.any = true
	w.dst = append(append(append(w.dst, '"'), name...), '"', ':')
}

func (w *line) text(name, value string) {
	w.name(name)
	w.dst = appendJSONString(w.dst, value)
}

func (w *line) number(name string, value int64) {
	w.name(name)
	w.dst = strconv.AppendInt(w.dst, value, 10)
}

func (w *line) decimal(name string, value float64) {
	w.name(name)
	n := int64(value*1000 + 0.5)
	w.dst = strconv.AppendInt(w.dst, n/1000, 10)
	if n %= 1000; n <= 0 { // nothing negative is counted
		return
	}
	w.dst = append(w.dst, '.', byte('0'+n/100), byte('0'+n/10%10), byte('0'+n%10))
	for w.dst[len(w.dst)-1] == '0' {
		w.dst = w.dst[:len(w.dst)-1]
	}
}

func (w *line) raw(name, value string) {
	w.name(name)
	w.dst = append(w.dst, value...)
}

func (w *line) list(name string, values []string) {
	w.name(name)
	w.dst = append(w.dst, '[')
	for i, v := range values {
		if i > 0 {
			w.dst = append(w.dst, ',')
		}
		w.dst = appendJSONString(w.dst, v)
	}
	w.dst = append(w.dst, ']')
}

// appendJSONString quotes s; bytes that are no UTF-8 become U+FFFD, so that a record is always a line of valid JSON.
func appendJSONString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	plain := 0 // what is written as it is begins here
	for i := 0; i < len(s); {
		c := s[i]
		if ' ' <= c && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[plain:i]...)
		switch {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
			i++
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			i++
		}
		plain = i
	}
	return append(append(dst, s[plain:]...), '"')
}
