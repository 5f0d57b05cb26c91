package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/scan"
	"github.com/headgate/headgate/pipeline"
)

// serve takes one client request from its head to its settlement.
func (g *Gateway) serve(x exchange) {
	g.enter()
	defer g.leave()
	r := g.begin(x)
	defer r.end() // settles, gives back, writes the usage record: whatever happened
	route, id, known := routeOf(x.Method(), x.Path())
	if !known {
		r.refuse(r.noRoute())
		return
	}
	r.take(route, id)
	if no := r.identify(); no != nil { // whose key, in form only
		r.refuse(no)
		return
	}
	if route.own != nil { // models, and what an engine keeps
		route.own(r)
		return
	}
	if no := r.vet(); no != nil { // only for a client that waits to be told to send the body
		r.refuse(no)
		return
	}
	if no := r.read(); no != nil { // the body, and what it asks for
		r.refuse(no)
		return
	}
	r.await()                        // only while nobody serves the model, and somebody may in a moment
	if no := r.decide(); no != nil { // one round trip: ledger, cache and placement
		r.refuse(no)
		return
	}
	if r.hit != nil {
		r.answerFromCache()
		return
	}
	if no := r.queue(); no != nil { // only if no slot was free
		r.refuse(no)
		return
	}
	r.forward() // attempts, until one answers or nothing is left to try
}

// request is one client request on its way through the stages. One goroutine owns it.
type request struct {
	g     *Gateway
	x     exchange
	ctx   context.Context // ends with the client, or with errShutdown as its cause
	start time.Time

	route route
	id    string // the one in the path; "" where the route has none
	key   credential
	hint  coordinator.Hint // what was remembered of the key; it never allows or refuses
	body  []byte           // lent by g.prompts; nil once given back
	scan  scan.Body
	model catalogue.Model
	known bool // the model is known in the catalogue or was seen in Consul

	batch     pipeline.Batch // what is asked before the engine is
	asked     bool           // an admission was sent: it has to be settled
	admission coordinator.Admission
	hash      string // of the cacheable request; "" when it is not
	hit       *coordinator.Answer
	tranche   tranche
	unsaid    int64 // output tokens per choice where the client names no cap; 0: not asked for yet
	uncapped  bool  // an engine refused the cap that was written: it is sent without one
	prints    coordinator.Prefix
	printed   bool // prints are made
	ask       coordinator.Ask
	placed    bool // placement was asked: it has to be released
	place     coordinator.Place
	backends  []*cluster.Backend // candidates in order of preference
	backend   *cluster.Backend   // of the running attempt
	alone     string             // backend on which this replica gave a slot of its own; "" otherwise
	holder    *cluster.Backend   // the only one that can serve it; nil: any of the pool
	response  string             // id of the Responses object that is being answered; "" until it is known

	usage      protocol.Usage
	served     bool   // the model's work reached the client or was made for it: it is charged
	counted    bool   // the request stays counted although nothing is charged
	begun      bool   // the client was sent a byte
	store      []byte // a whole answer that may be kept
	collected  []byte // a stream that may be kept
	flight     string // the name under which equal requests in flight know each other
	lead       *flight
	redis      time.Duration
	sentAt     time.Time // to the backend, in the last attempt
	firstAt    time.Time // first token
	lastAt     time.Time // last byte of the answer
	queueUntil time.Time // the end of the wait, over all attempts
	record     coordinator.Record
}

// begin starts the record; nothing is reserved yet.
func (g *Gateway) begin(x exchange) *request {
	var id [16]byte
	rand.Read(id[:])
	r := &request{g: g, x: x, ctx: x.Context(), start: time.Now()}
	r.record = coordinator.Record{
		Time:        r.start,
		RID:         hex.EncodeToString(id[:]),
		Replica:     g.cfg.Replica,
		Route:       bounded(x.Path()), // until it is known
		Cache:       coordinator.CacheOff,
		UsageSource: protocol.None.String(),
		Outcome:     coordinator.OutcomeOK,
		CostKnown:   true,
		ClientIP:    x.RemoteIP(),
		UserAgent:   bounded(first(x.Header("User-Agent"))),
	}
	r.record.RequestID = label(first(x.Header("X-Request-Id")), r.record.RID)
	r.record.Tags = tagsOf(x)
	return r
}

// The frames of serve, attempt and send stand on the stack for as long as a stream lasts, and with net/http's they decide
// whether it fits into 8 KiB (used: 2.8 of the 3.2 KiB that let the collector halve 16). What they do once is therefore in functions that are not inlined.

//go:noinline
func (r *request) noRoute() *refusal {
	return refusalOf(protocol.RouteNotFound(r.x.Method(), bounded(r.x.Path())))
}

//go:noinline
func (r *request) take(route *route, id string) {
	r.route, r.id, r.record.Route = *route, id, route.path
}

// identify finds the key in the head. Whether it is valid is the ledger's to say.
func (r *request) identify() (no *refusal) {
	r.key, no = credentialOf(r.x)
	return no
}

// read takes the body in and scans it: a bad body is refused before anything was reserved.
func (r *request) read() *refusal {
	limit := r.g.cfg.MaxBodyBytes
	encoding, no := encodingOf(r.x)
	if no != nil {
		return no
	}
	body, err := r.g.readBody(r.ctx, r.x, encoding, limit)
	if err != nil {
		return r.unreadable(err, limit)
	}
	r.body = body
	r.record.RequestBytes = int64(len(body))
	found, fault := r.route.body(r)
	if fault != nil {
		return refusalOf(fault.Reply())
	}
	r.scan = found
	if _, _, ok := found.OutputCap(); !ok {
		return refusalOf(protocol.InvalidField("max_tokens", "The number of tokens asked for is out of range."))
	}
	if strings.HasPrefix(found.CacheSalt, ownSalts) {
		return refusalOf(protocol.InvalidField("cache_salt", "Salts that begin with "+ownSalts+" are the gateway's own."))
	}
	r.record.Stream = found.Stream
	r.record.EndUser = found.User
	r.resolve()
	return nil
}

func (r *request) unreadable(err error, limit int64) *refusal {
	var timeout net.Error
	switch {
	case errors.Is(err, errTooLarge):
		return refusalOf(protocol.BodyTooLarge(limit))
	case errors.Is(err, errNoRoom):
		return refusalOf(protocol.NoRoom("prompt"))
	case errors.Is(err, errUnpack):
		return refusalOf(protocol.InvalidJSON("The body does not unpack as its Content-Encoding says."))
	case errors.As(err, &timeout) && timeout.Timeout():
		return refusalOf(protocol.RequestTimeout())
	case r.ctx.Err() != nil || errors.Is(err, io.ErrUnexpectedEOF):
		return r.left()
	}
	return refusalOf(protocol.InvalidJSON("The body could not be read."))
}

// resolve finds the model and its pool: by the catalogue, else by what Consul says is served.
func (r *request) resolve() {
	r.model, r.known = r.g.deps.Catalogue.Current().Resolve(r.scan.Model)
	if !r.known {
		pool, seen := r.g.deps.Cluster.ModelPool(r.scan.Model)
		r.model, r.known = catalogue.Unlisted(r.scan.Model, pool), seen
	}
	r.record.Model = bounded(r.model.Name)
	if r.known {
		r.record.Pool = r.model.Pool
	}
	r.record.CostKnown = r.model.Priced || r.route.free
}

// left is the answer nobody will read.
func (r *request) left() *refusal {
	if errors.Is(context.Cause(r.ctx), errShutdown) {
		return refusalOf(protocol.Shutdown())
	}
	r.record.Outcome = coordinator.OutcomeClientGone
	return refusalOf(protocol.RequestTimeout())
}

// refuse answers with an error and files why.
func (r *request) refuse(no *refusal) {
	r.record.Status = no.Status
	r.record.ErrorCode = cmp.Or(no.filed, no.Code)
	if r.record.Outcome == coordinator.OutcomeOK {
		r.record.Outcome = outcomeOf(no.Code)
	}
	r.begun = true
	if r.record.Outcome == coordinator.OutcomeClientGone {
		r.record.Status, r.record.ErrorCode = statusClientGone, ""
		return
	}
	r.record.ResponseBytes = refuse(r.x, no.Error, append(r.fields(), no.fields...))
}

// statusClientGone stands in the record of a client that left before it was answered; nobody is sent it.
const statusClientGone = 499

func outcomeOf(code string) string {
	switch code {
	case protocol.CodeUpstreamError:
		return coordinator.OutcomeUpstreamError
	case protocol.CodeStreamTruncated:
		return coordinator.OutcomeUpstreamTruncated
	case protocol.CodeTimeout:
		return coordinator.OutcomeTimeout
	case protocol.CodeShutdown:
		return coordinator.OutcomeShutdown
	}
	return coordinator.OutcomeRejected
}

// fields are the header fields every answer carries as far as their values are known.
func (r *request) fields() []headerField {
	fields := make([]headerField, 0, 16)
	fields = append(fields, headerField{"X-Request-Id", r.record.RequestID})
	if shapeOf(r.x.Path()) == protocol.MessagesShape { // its clients look for it under this name only
		fields = append(fields, headerField{"Request-Id", r.record.RequestID})
	}
	if r.admission.Verdict != 0 {
		fields = windowFields(fields, r.admission)
		fields = append(fields, headerField{"X-Headgate-Cache", r.record.Cache})
	}
	return fields
}

// bounded keeps what a client may write into a record within reason.
func bounded(s string) string { return s[:min(len(s), 256)] }

// maxTags of a request count; what is beyond them, or is no tag, is left out.
const maxTags = 8

// tagsOf are the client's own tags, from x-headgate-tags: comma-separated, each of the letters ids may have.
func tagsOf(x head) []string {
	var tags []string
	for _, v := range x.Header("X-Headgate-Tags") {
		for _, tag := range strings.Split(v, ",") {
			if tag = strings.TrimSpace(tag); coordinator.SafeID(tag) == tag && tag != "" && len(tags) < maxTags && !slices.Contains(tags, tag) {
				tags = append(tags, tag)
			}
		}
	}
	return tags
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// label is the client's own name for the request if it is usable, else the rid.
func label(sent, rid string) string {
	if len(sent) < 1 || len(sent) > 128 {
		return rid
	}
	for i := range len(sent) {
		switch c := sent[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '.', c == '_', c == '-':
		default:
			return rid
		}
	}
	return sent
}
