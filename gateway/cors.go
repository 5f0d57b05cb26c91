package gateway

import (
	"slices"
	"strings"
)

// cors lets pages of configured origins call the public port from a browser. The zero value lets nobody.
//
// A preflight is no client request: it is answered here, whatever its path, without a key, without Redis and without
// a usage record. Every other answer, errors too, carries the fields that let the page read it.
type cors struct {
	any     bool     // every origin
	origins []string // in lower case
}

// newCORS takes origins as browsers send them (https://app.example), or * for all.
func newCORS(origins []string) cors {
	c := cors{any: slices.Contains(origins, "*")}
	for _, o := range origins {
		c.origins = append(c.origins, strings.ToLower(o))
	}
	return c
}

func (c cors) on() bool { return len(c.origins) > 0 }

// preflightAge is how long a browser may remember a preflight's answer, in seconds; browsers take two hours at most.
const preflightAge = "7200"

// exposed are the fields of an answer that a page may read besides its content.
const exposed = "Retry-After, X-Request-Id, Request-Id, X-Should-Retry, " +
	"X-Ratelimit-Limit-Requests, X-Ratelimit-Remaining-Requests, X-Ratelimit-Reset-Requests, " +
	"X-Ratelimit-Limit-Tokens, X-Ratelimit-Remaining-Tokens, X-Ratelimit-Reset-Tokens, " +
	"X-Headgate-Backend, X-Headgate-Cache, X-Headgate-Queue-Ms, Www-Authenticate"

// preflight answers a browser that asks whether it may send a request; false when x is something else. An origin that
// is not configured gets an answer that allows nothing.
func (c cors) preflight(x exchange) bool {
	if !c.on() || x.Method() != "OPTIONS" || len(x.Header("Origin")) == 0 || len(x.Header("Access-Control-Request-Method")) == 0 {
		return false
	}
	var fields []headerField
	if c.allowed(x) != "" {
		fields = append(fields, headerField{"Access-Control-Allow-Methods", "GET, POST"}, headerField{"Access-Control-Max-Age", preflightAge})
		if names := fieldNames(x.Header("Access-Control-Request-Headers")); names != "" {
			fields = append(fields, headerField{"Access-Control-Allow-Headers", names})
		}
	}
	x.Begin(204, fields, -1)
	return true
}

// fields are those that every answer to x carries, preflights included.
func (c cors) fields(x head) []headerField {
	if !c.on() {
		return nil
	}
	fields := []headerField{{"Vary", "Origin"}} // also where no origin was sent: a shared cache must not mix the two
	if origin := c.allowed(x); origin != "" {
		fields = append(fields, headerField{"Access-Control-Allow-Origin", origin})
		if x.Method() != "OPTIONS" {
			fields = append(fields, headerField{"Access-Control-Expose-Headers", exposed})
		}
	}
	return fields
}

// allowed is the value that lets x's origin read the answer; "" for none.
func (c cors) allowed(x head) string {
	sent := x.Header("Origin")
	switch {
	case len(sent) != 1:
		return ""
	case c.any:
		return "*"
	case slices.Contains(c.origins, strings.ToLower(sent[0])):
		return sent[0]
	}
	return ""
}

// fieldNames repeats a list of header names if it is one; "" otherwise.
func fieldNames(sent []string) string {
	list := strings.Join(sent, ",")
	for name := range strings.SplitSeq(list, ",") {
		if !engineIsToken(strings.TrimSpace(name)) {
			return ""
		}
	}
	return list
}
