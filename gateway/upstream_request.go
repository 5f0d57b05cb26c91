package gateway

import (
	"fmt"
	"net"
	"strconv"
	"sync"
)

// engineRequest is the serialised form of a call: the head in a pooled buffer, the body as the caller's own slices.
type engineRequest struct {
	head  []byte
	size  int64 // head and body
	parts net.Buffers
	store [8][]byte // what parts is made from, so that sending consumes this and never the caller's slice
}

var engineRequests = sync.Pool{New: func() any { return &engineRequest{head: make([]byte, 0, 1024)} }}

// newEngineRequest writes the head. It fails when the call would not arrive as the one request it is meant to be.
func newEngineRequest(call *upstreamCall) (*engineRequest, error) {
	if err := call.validate(); err != nil {
		return nil, err
	}
	q := engineRequests.Get().(*engineRequest)
	b := append(q.head[:0], call.Method...)
	b = append(b, ' ')
	b = append(b, call.Path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	if call.Host != "" {
		b = append(b, call.Host...)
	} else {
		b = append(b, call.Addr...)
	}
	b = append(b, "\r\n"...)
	for i := range call.Header {
		f := &call.Header[i]
		if engineOwnField(f.Name) {
			continue
		}
		b = append(b, f.Name...)
		b = append(b, ": "...)
		b = append(b, f.Value...)
		b = append(b, "\r\n"...)
	}
	if call.BodyLen > 0 || call.Method != "GET" && call.Method != "HEAD" {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, call.BodyLen, 10)
		b = append(b, "\r\n"...)
	}
	q.head = append(b, "\r\n"...)
	q.size = int64(len(q.head)) + call.BodyLen
	return q, nil
}

// buffers lays out the request for one sending; each call starts anew.
func (q *engineRequest) buffers(call *upstreamCall) *net.Buffers {
	q.parts = append(q.store[:0], q.head)
	for _, part := range call.Body {
		if len(part) > 0 {
			q.parts = append(q.parts, part)
		}
	}
	return &q.parts
}

// free forgets the caller's slices and returns the buffer.
func (q *engineRequest) free() {
	clear(q.store[:])
	q.parts = nil
	if cap(q.head) <= 16<<10 {
		engineRequests.Put(q)
	}
}

// validate refuses whatever could end a line, or the request, where the caller did not mean it to.
func (c *upstreamCall) validate() error {
	if c.Scheme != "" && c.Scheme != "http" && c.Scheme != "https" {
		return fmt.Errorf("scheme %q", c.Scheme)
	}
	if !engineIsToken(c.Method) {
		return fmt.Errorf("method %q", c.Method)
	}
	if c.Path == "" || c.Path[0] != '/' || !engineIsVisible(c.Path) {
		return fmt.Errorf("path %q", c.Path)
	}
	if !engineIsVisible(c.Host) || !engineIsVisible(c.Addr) {
		return fmt.Errorf("host %q at %q", c.Host, c.Addr)
	}
	for i := range c.Header {
		if !engineIsToken(c.Header[i].Name) || engineHasControl(c.Header[i].Value) {
			return fmt.Errorf("header %q", c.Header[i].Name)
		}
	}
	var sum int64
	for _, part := range c.Body {
		sum += int64(len(part))
	}
	if sum != c.BodyLen {
		return fmt.Errorf("body has %d bytes, %d were announced", sum, c.BodyLen)
	}
	return nil
}

// engineIsVisible: no control characters and no spaces.
func engineIsVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// engineOwnField: fields that belong to this hop or to the client itself.
func engineOwnField(name string) bool {
	for _, own := range [...]string{
		"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect",
		"proxy-connection", "proxy-authorization", "accept-encoding",
	} {
		if engineEqualFold(name, own) {
			return true
		}
	}
	return false
}
