package gateway

import (
	"net/url"
	"strings"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/scan"
)

// route is what a public path asks for. Where routes differ the stages ask the route; they know no path.
type route struct {
	method string
	// path is matched as it was sent: nothing is decoded, cleaned or redirected. {id} stands for what find accepts. An
	// engine is asked for the same path; records and metrics name the route by it.
	path  string
	find  func(sent string) (id string, ok bool) // nil: the path has no {id}
	kind  scan.Route                             // which fields of the body matter, and what the answer consists of
	body  func(*request) (scan.Body, *scan.Fault)
	shape protocol.Shape // of errors and streams
	// own answers without a body, an admission or a slot: for what costs nothing and counts as no request. nil: the
	// request goes through all stages to an engine.
	own   func(*request)
	free  bool // an engine computes no tokens for it: it counts as a request at most
	cache bool // an answer may be kept and served again
	kept  bool // the engine may keep the answer for later requests, which must go there
	query bool // the engine is passed the query
}

// routes is all that can be reached.
var routes = []route{
	{method: "POST", path: "/v1/chat/completions", kind: scan.Chat, body: asJSON, cache: true},
	{method: "POST", path: "/v1/completions", kind: scan.Completions, body: asJSON, cache: true},
	{method: "POST", path: responsesPath, kind: scan.Responses, body: asJSON, shape: protocol.ResponsesShape, kept: true},
	{method: "GET", path: responsesPath + "/{id}", find: responseID, own: (*request).askHolder, kind: scan.Responses, shape: protocol.ResponsesShape, free: true, query: true},
	{method: "POST", path: responsesPath + "/{id}/cancel", find: responseID, own: (*request).askHolder, kind: scan.Responses, shape: protocol.ResponsesShape, free: true},
	{method: "POST", path: messagesPath, kind: scan.Messages, body: asJSON, shape: protocol.MessagesShape},
	{method: "POST", path: "/v1/embeddings", kind: scan.Embeddings, body: asJSON},
	{method: "POST", path: "/v1/rerank", kind: scan.Embeddings, body: asJSON},
	{method: "POST", path: "/v1/score", kind: scan.Embeddings, body: asJSON},
	{method: "POST", path: "/v1/audio/transcriptions", kind: scan.Audio, body: asForm},
	{method: "POST", path: "/v1/audio/translations", kind: scan.Audio, body: asForm},
	{method: "POST", path: "/tokenize", kind: scan.Tokens, body: asJSON, free: true},
	{method: "POST", path: "/detokenize", kind: scan.Tokens, body: asJSON, free: true},
	{method: "GET", path: "/v1/models", own: (*request).listModels},
	{method: "GET", path: "/v1/models/{id}", find: modelID, own: (*request).showModel},
}

// routesByPath has the routes without an id, routesByID the others.
var routesByPath, routesByID = func() (map[string]*route, []*route) {
	byPath, byID := map[string]*route{}, []*route{}
	for i := range routes {
		if rt := &routes[i]; rt.find == nil {
			byPath[rt.path] = rt
		} else {
			byID = append(byID, rt)
		}
	}
	return byPath, byID
}()

// routeOf finds what is asked for, and the id in the path. Whatever is wrong, the route does not exist.
func routeOf(method, path string) (rt *route, id string, known bool) {
	if rt, known = routesByPath[path]; known {
		return rt, "", rt.method == method
	}
	for _, rt := range routesByID {
		before, after, _ := strings.Cut(rt.path, "{id}")
		sent, found := strings.CutPrefix(path, before)
		if found {
			sent, found = strings.CutSuffix(sent, after)
		}
		if !found || rt.method != method {
			continue
		}
		if id, ok := rt.find(sent); ok {
			return rt, id, true
		}
	}
	return nil, "", false
}

// modelID decodes a model's name, which may hold slashes, as they are or as %2F. It is compared with names and goes
// nowhere else.
func modelID(sent string) (id string, ok bool) {
	id, err := url.PathUnescape(sent)
	return id, err == nil && id != ""
}

// responseID takes ids as engines make them. They go into an engine's path as they are.
func responseID(sent string) (id string, ok bool) {
	if sent == "" || len(sent) > protocol.MaxID || sent[0] == '.' {
		return "", false
	}
	for i := range len(sent) {
		switch c := sent[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_', c == '-', c == '.':
		default:
			return "", false
		}
	}
	return sent, true
}

const (
	responsesPath = "/v1/responses"
	messagesPath  = "/v1/messages"
)

// shapeOf is how the clients of a path read an error that is not part of a stream. Those of Messages read a shape of their
// own, also about what does not exist below their path.
func shapeOf(path string) protocol.Shape {
	if path == messagesPath || strings.HasPrefix(path, messagesPath+"/") {
		return protocol.MessagesShape
	}
	return protocol.ChatShape
}

// asJSON and asForm read the body as the route's clients send it.
func asJSON(r *request) (scan.Body, *scan.Fault) { return scan.Scan(r.body, r.route.kind) }

func asForm(r *request) (scan.Body, *scan.Fault) {
	// Of two headers the engine might read the other one.
	return scan.Multipart(r.body, strings.Join(r.x.Header("Content-Type"), ";"))
}

// target is what an engine is asked for, below its base path.
func (r *request) target() string {
	target := r.route.path
	if r.id != "" {
		target = strings.Replace(target, "{id}", r.id, 1)
	}
	if query := r.x.Query(); r.route.query && query != "" {
		target += "?" + query
	}
	return target
}
