package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/coordinator"
)

// TestNoHTTP: what net/http refuses before any handler runs has an error body too; it is no client request and leaves no
// record, and its connection ends.
func TestNoHTTP(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	const post = "POST /v1/chat/completions HTTP/1.1\r\n"
	for name, c := range map[string]struct {
		sent          string
		status        int
		code, message string
	}{
		"no HTTP":                {"hello\r\n\r\n", 400, "invalid_request", "not valid HTTP"},
		"no Host":                {post + "\r\n", 400, "invalid_request", "missing required Host header"},
		"two Hosts":              {post + "Host: a\r\nHost: b\r\n\r\n", 400, "invalid_request", ""},
		"a Host that is none":    {post + "Host: a b\r\n\r\n", 400, "invalid_request", "malformed Host"},
		"a name with a blank":    {post + "Host: h\r\nBad name: x\r\n\r\n", 400, "invalid_request", ""},
		"a blank before a colon": {post + "Host: h\r\nContent-Length : 2\r\n\r\n{}", 400, "invalid_request", ""},
		"a value with a NUL":     {post + "Host: h\r\nX-A: \x00\r\n\r\n", 400, "invalid_request", ""},
		"a folded line":          {post + "Host: h\r\n X-A: 1\r\n\r\n", 400, "invalid_request", ""},
		"two lengths":            {post + "Host: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400, "invalid_request", ""},
		"a negative length":      {post + "Host: h\r\nContent-Length: -1\r\n\r\n", 400, "invalid_request", ""},
		"a signed length":        {post + "Host: h\r\nContent-Length: +2\r\n\r\n{}", 400, "invalid_request", ""},
		"gzip as a transfer":     {post + "Host: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "unsupported_encoding", "chunked"},
		"chunked twice":          {post + "Host: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501, "unsupported_encoding", ""},
		"HTTP/3":                 {"POST / HTTP/3.0\r\nHost: h\r\n\r\n", 505, "invalid_request", "unsupported protocol version"},
		"a huge head":            {post + "Host: h\r\n" + strings.Repeat("X-Fill: "+strings.Repeat("y", 1000)+"\r\n", 80) + "\r\n", 431, "headers_too_large", "65536 bytes"},
		"an expectation":         {post + "Host: h\r\nExpect: a-pony\r\nContent-Length: 2\r\n\r\n{}", 417, "expectation_failed", "100-continue"},
	} {
		t.Run(name, func(t *testing.T) {
			w := f.dial(t)
			_, _ = io.WriteString(w.Conn, c.sent) // a huge head may be refused before its last byte
			got := w.answer("POST")
			if got.StatusCode != c.status || got.code != c.code || !strings.Contains(got.message, c.message) || !got.Close {
				t.Errorf("%d %v %s", got.StatusCode, got.Header, got.text)
			}
			w.ended()
		})
	}
	if len(f.records) > 0 {
		t.Errorf("%d usage records of what was no request", len(f.records))
	}
}

// TestNoRoute: other methods and other forms of a target are no routes; each leaves one record, and the connection goes on
// where HTTP allows it.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	for _, line := range []string{
		"GET /v1/chat/completions HTTP/1.1", "HEAD /v1/chat/completions HTTP/1.1", "OPTIONS /v1/chat/completions HTTP/1.1",
		"TRACE /v1/chat/completions HTTP/1.1", "PUT /v1/chat/completions HTTP/1.1", "post /v1/chat/completions HTTP/1.1",
		"HEAD /v1/models HTTP/1.1", "OPTIONS * HTTP/1.1", "CONNECT engine:8000 HTTP/1.1", "CONNECT /v1/chat/completions HTTP/1.1",
		"POST http://h/v1/chat/completions HTTP/1.1", "POST //v1/chat/completions HTTP/1.1", "POST /v1/chat/completions/ HTTP/1.1",
		"POST /v1/chat%2Fcompletions HTTP/1.1", "POST /V1/chat/completions HTTP/1.1", "POST /v1/./chat/completions HTTP/1.1",
		"POST /v1/chat/completions;a=b HTTP/1.1", "POST /v1/chat/completions#a HTTP/1.1", "POST /v1/chat/completions%00 HTTP/1.1",
		"PRI * HTTP/2.0",
	} {
		w := f.dial(t).send(line + "\r\nHost: h\r\nAuthorization: Bearer " + f.key + "\r\n\r\n")
		method, _, _ := strings.Cut(line, " ")
		if got := w.answer(method); got.StatusCode != 404 || method != "HEAD" && got.code != "route_not_found" {
			t.Errorf("%s: %d %s", line, got.StatusCode, got.text)
		}
		if r := f.record(t); r.Status != 404 || r.ErrorCode != "route_not_found" {
			t.Errorf("%s: record %+v", line, r)
		}
		if !strings.HasPrefix(line, "PRI") {
			w.send(f.post("", "")).answer("POST")
			f.record(t)
		}
	}
	if len(f.records) > 0 || f.keys.admitted.Load() > 0 {
		t.Errorf("%d more records, %d admissions", len(f.records), f.keys.admitted.Load())
	}
}

// TestConnections: a connection outlives errors, keeps the order of pipelined requests, and ends when the client says so.
func TestConnections(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{MaxBodyBytes: 1000})
	w := f.dial(t)
	for _, c := range []struct {
		sent   string
		status int
	}{
		{f.post("", "{}"), 401},
		{f.post(f.key, "{"), 400},
		{f.post(f.key, strings.Repeat("x", 1001)), 413},
		{f.post(f.key, "{}", "Content-Encoding: br\r\n"), 415},
		{"GET /nothing HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}", 404},
		{f.post(f.key, `{"model":"m","messages":[]}`), 404},
		{f.post("", "", "X-Api-Key: a\r\nX-Api-Key: b\r\n"), 400},
	} {
		if got := w.send(c.sent).answer("POST"); got.StatusCode != c.status || got.Close {
			t.Errorf("%q: %d, close %v: %s", c.sent, got.StatusCode, got.Close, got.text)
		}
	}
	w.send(f.post("", "{}", "X-Request-Id: one\r\n") + f.post(f.key, "{", "X-Request-Id: two\r\n") + f.post("", "", "X-Request-Id: three\r\n", "Connection: close\r\n"))
	for _, want := range []string{"one", "two", "three"} {
		got := w.answer("POST")
		if got.Header.Get("X-Request-Id") != want || got.Close != (want == "three") {
			t.Errorf("answer %q, close %v, want %s", got.Header.Get("X-Request-Id"), got.Close, want)
		}
	}
	w.ended()

	old := f.dial(t).send("POST /v1/chat/completions HTTP/1.0\r\n\r\n")
	if got := old.answer("POST"); got.StatusCode != 401 || got.Proto != "HTTP/1.0" {
		t.Errorf("to HTTP/1.0: %s %d", got.Proto, got.StatusCode)
	}
	old.ended()
}

// TestFraming: a length beside chunks counts for nothing, and what follows the last chunk is the next request, not body.
func TestFraming(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	w := f.dial(t)
	chunked := "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + f.key + "\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"
	w.send(chunked + "1b\r\n" + `{"model":"m","messages":[]}` + "\r\n0\r\nX-Api-Key: trailer\r\n\r\n")
	if got := w.answer("POST"); got.StatusCode != 404 || got.code != "model_not_found" {
		t.Errorf("%d %s", got.StatusCode, got.text)
	}
	for _, broken := range []string{"zz\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "2\r\n{}x\r\n0\r\n\r\n"} {
		w := f.dial(t).send(chunked + broken)
		if got := w.answer("POST"); got.StatusCode != 400 || got.code != "invalid_json" || !got.Close {
			t.Errorf("chunks %q: %d %s", broken, got.StatusCode, got.text)
		}
		w.ended()
	}
}

// TestBodyNobodyReads: the answer does not wait for a body that does not come, and arrives while one comes that is too
// large to be read to its end.
func TestBodyNobodyReads(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{MaxBodyBytes: 64 << 20})
	for _, c := range []struct{ fields, some string }{
		{"Content-Length: 1000\r\n", "{"}, {"Content-Length: 1000000\r\n", ""}, {"Transfer-Encoding: chunked\r\n", ""}, {"Transfer-Encoding: chunked\r\n", "5\r\n{"},
	} {
		w := f.dial(t).send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n" + c.fields + "\r\n" + c.some)
		if got := w.answer("POST"); got.StatusCode != 401 || !got.Close {
			t.Errorf("%q: %d, close %v", c.fields, got.StatusCode, got.Close)
		}
		w.ended()
	}
	w := f.dial(t)
	go func() { _, _ = io.WriteString(w.Conn, f.post("", strings.Repeat("x", 30<<20))) }()
	if got := w.answer("POST"); got.StatusCode != 401 || !got.Close {
		t.Errorf("in front of 30 MiB: %d", got.StatusCode)
	}
}

// TestHalfABody: who ends in mid-body is sent nothing, above all no empty 200.
func TestHalfABody(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	w := f.dial(t).send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + f.key + "\r\nContent-Length: 1000\r\n\r\n{")
	if err := w.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	w.ended()
	if r := f.record(t); r.Status != statusClientGone || r.Outcome != coordinator.OutcomeClientGone {
		t.Errorf("filed as %d %s", r.Status, r.Outcome)
	}
}

// TestSlowBody: a body that stands still, or trickles, ends in a 408 and gives its memory back; so does one whose client
// leaves.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{BodyTimeout: 100 * time.Millisecond})
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + f.key + "\r\n"
	for _, body := range []string{"Content-Length: 500000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n5\r\n{"} {
		w := f.dial(t).send(head + body)
		if got := w.answer("POST"); got.StatusCode != 408 || got.code != "timeout" || !got.Close {
			t.Errorf("%q: %d %s", body, got.StatusCode, got.text)
		}
		w.ended()
		if r := f.record(t); r.Status != 408 || r.Outcome != coordinator.OutcomeTimeout {
			t.Errorf("%q: record %+v", body, r)
		}
	}
	w := f.dial(t).send(head + "Content-Length: 500000\r\n\r\n")
	stop := make(chan struct{})
	go func() { // never still for long, and never fast enough
		defer close(stop)
		for range 1000 {
			if _, err := w.Write([]byte(" ")); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if got := w.answer("POST"); got.StatusCode != 408 {
		t.Errorf("a trickle: %d", got.StatusCode)
	}
	select {
	case <-stop:
		t.Error("a trickle was read to its end")
	default:
	}
	w.Close()
	<-stop
	f.record(t)

	f.dial(t).send(head + "Content-Length: 500000\r\n\r\n{").Close()
	if r := f.record(t); r.Outcome != coordinator.OutcomeClientGone {
		t.Errorf("a client that left: record %+v", r)
	}
	if n := f.PromptBytes(); n != 0 {
		t.Errorf("%d bytes are still lent", n)
	}
}

// TestSlowHead: a head that does not come ends its connection, without an answer.
func TestSlowHead(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	server := f.Server()
	if server.ReadHeaderTimeout != headTimeout || server.IdleTimeout != idleTimeout {
		t.Errorf("limits %v %v", server.ReadHeaderTimeout, server.IdleTimeout)
	}
	server.ReadHeaderTimeout = 100 * time.Millisecond
	w := f.serve(t, server).dial(t).send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n")
	w.ended()
}

// TestWritesPass: only net/http's own errors are rewritten; a failed write says so.
func TestWritesPass(t *testing.T) {
	t.Parallel()
	for _, p := range []string{
		"", "HTTP/1.1", "HTTP/1.1 4", "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n",
		"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nDate: x\r\nConnection: close\r\n\r\n",
		"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nX-Request-Id: a\r\n\r\n", "data: HTTP/1.1 400 \r\n" + string(httpErrorFields),
	} {
		if _, foreign := refusedByHTTP([]byte(p)); foreign {
			t.Errorf("%q is taken for net/http's", p)
		}
	}
	f := newFront(t, Config{})
	w := f.dial(t)
	w.Close()
	if _, err := (&frontConn{Conn: w.Conn}).Write([]byte("HTTP/1.1 400 Bad Request\r\n" + string(httpErrorFields) + "400 Bad Request")); err == nil {
		t.Error("a write on a closed connection passed")
	}
}

// TestDeadlinesEndWithTheBody: the time a body has, read or left over, ends neither the answer nor the watch for the client.
func TestDeadlinesEndWithTheBody(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	ended := make(chan error, 2)
	server := &http.Server{ConnContext: withConn, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := newExchange(w, r, drainTimeout)
		if x.Path() == "/read" {
			_, _ = x.ReadBody(make([]byte, 100))
		}
		x.Begin(200, nil, -1)
		_ = x.Write([]byte("first"))
		select {
		case <-r.Context().Done():
			ended <- errors.New("ended while the client was there")
		case <-time.After(drainTimeout * 3 / 2):
			ended <- x.Write([]byte("last"))
		}
		<-r.Context().Done()
		ended <- nil
	})}
	f.serve(t, server)
	for _, path := range []string{"/read", "/leave"} {
		w := f.dial(t).send("GET " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
		if err := <-ended; err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		w.Close()
		<-ended
	}
}
