package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
)

// asked is a path of the route as a client would ask for it.
func asked(rt *route) (path, id string) {
	switch {
	case rt.find == nil:
		return rt.path, ""
	case strings.Contains(rt.path, "responses"):
		return strings.Replace(rt.path, "{id}", "resp_0a-1.b", 1), "resp_0a-1.b"
	}
	return strings.Replace(rt.path, "{id}", "org/a%2Fb", 1), "org/a/b"
}

func TestEveryRouteIsFound(t *testing.T) {
	seen := map[string]bool{}
	for i := range routes {
		rt := &routes[i]
		path, id := asked(rt)
		found, gotID, known := routeOf(rt.method, path)
		if !known || found != rt || gotID != id {
			t.Errorf("%s %s: %v %q %v", rt.method, path, found, gotID, known)
		}
		if name := rt.method + " " + rt.path; seen[name] {
			t.Errorf("%s stands twice in the table", name)
		} else {
			seen[name] = true
		}
		if (rt.own == nil) == (rt.body == nil) {
			t.Errorf("%s: a route answers by itself or reads a body", rt.path)
		}
		if strings.Contains(rt.path, "{id}") != (rt.find != nil) {
			t.Errorf("%s: {id} and find go together", rt.path)
		}
		if want := shapeOf(path); (rt.shape == protocol.MessagesShape) != (want == protocol.MessagesShape) {
			t.Errorf("%s: streams and other errors differ in shape", rt.path)
		}
	}
}

// What is written differently is no route: whoever normalises a path before the engine does must not find another one.
func TestNothingElseIsARoute(t *testing.T) {
	for i := range routes {
		rt := &routes[i]
		path, _ := asked(rt)
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "get", ""} {
			found, _, known := routeOf(method, path)
			if known && found.method != method {
				t.Errorf("%s %s is served as %s", method, path, found.method)
			}
		}
		for _, other := range []string{
			path[1:], "/" + path, path + "//", "/." + path, "/x/.." + path, path + "/.", path + "\x00", path + ";a=b", path + "#", path + "?",
			strings.ToUpper(path), strings.Replace(path, "/v1/", "/v1//", 1), strings.Replace(path, "/", "\\", 1), "http://host" + path, "host:80",
			strings.Replace(path, "/v1/", "/v1%2F", 1), strings.Replace(path, "/v1/", "/v1/./", 1), strings.Replace(path, "/v1/", "/%761/", 1),
			strings.Replace(path, "/t", "/%74", 1), strings.Replace(path, "e", "%65", 1), "*", "",
		} {
			if other == path || strings.HasPrefix(other, "/v1/models/") && len(other) > len("/v1/models/") { // models' names hold anything
				continue
			}
			if found, id, known := routeOf(rt.method, other); known {
				t.Errorf("%s is served as %s with id %q", other, found.path, id)
			}
		}
	}
	for _, path := range []string{"/v1/responses/", "/v1/responses//cancel", "/v1/responses/a/b", "/v1/responses/../models", "/v1/responses/.x", "/v1/responses/a%2fb",
		"/v1/responses/a/cancel/", "/v1/responses/a/input_items", "/v1/responses/" + strings.Repeat("a", protocol.MaxID+1), "/v1/models/", "/v1/models/%", "/v1/models/%zz"} {
		for _, method := range []string{"GET", "POST"} {
			if found, id, known := routeOf(method, path); known {
				t.Errorf("%s %s is served as %s with id %q", method, path, found.path, id)
			}
		}
	}
}

// FuzzRoute: whatever the path, an id that goes on to an engine is made of letters that mean nothing in a path.
func FuzzRoute(f *testing.F) {
	for i := range routes {
		path, _ := asked(&routes[i])
		f.Add(routes[i].method, path)
	}
	f.Add("GET", "/v1/responses/../x")
	f.Add("GET", "/v1/models/%2e%2e%2f")
	f.Fuzz(func(t *testing.T, method, path string) {
		found, id, known := routeOf(method, path)
		if !known {
			return
		}
		if found.method != method || !slices.ContainsFunc(routes, func(rt route) bool { return rt.path == found.path }) {
			t.Fatalf("%q %q: %+v", method, path, found)
		}
		if found.find == nil && (id != "" || path != found.path) {
			t.Fatalf("%q is served as %s", path, found.path)
		}
		if strings.HasPrefix(found.path, responsesPath) && id != "" {
			if strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") != "" || id[0] == '.' ||
				path != strings.Replace(found.path, "{id}", id, 1) {
				t.Fatalf("%q has the id %q", path, id)
			}
		}
	})
}
