package gateway

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// TestConnectionsAreBounded: one connection too many is told so, and there is room again when another one ends.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	f.most = 3
	f.serve(t, f.Server())
	get := "GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + f.key + "\r\n\r\n"
	var open []*wire
	for range f.most {
		w := f.dial(t).send(get)
		if got := w.answer("GET"); got.StatusCode != 200 {
			t.Fatalf("%d %s", got.StatusCode, got.text)
		}
		open = append(open, w)
	}
	w := f.dial(t) // it is told before it says a word
	if got := w.answer("GET"); got.StatusCode != 503 || got.code != "queue_full" || got.Header.Get("Retry-After") == "" || !got.Close {
		t.Errorf("%d %v %s", got.StatusCode, got.Header, got.text)
	}
	w.ended()
	open[0].Close()
	for until := time.Now().Add(20 * time.Second); ; { // the server has to see it go
		w := f.dial(t)
		_, _ = io.WriteString(w, get)
		if got := w.answer("GET"); got.StatusCode == 200 {
			return
		} else if time.Now().After(until) {
			t.Fatalf("no room after one left: %d %s", got.StatusCode, got.text)
		}
	}
}

// TestFieldsAreBounded: a head of very many small fields costs more than its bytes.
func TestFieldsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	many := func(n int) string {
		var fields strings.Builder
		for i := range n {
			fmt.Fprintf(&fields, "a%d:\r\n", i%7) // repeated names count each time
		}
		return "GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + f.key + "\r\n" + fields.String() + "\r\n"
	}
	if got := f.dial(t).send(many(maxFields - 1)).answer("GET"); got.StatusCode != 200 {
		t.Errorf("%d %s", got.StatusCode, got.text)
	}
	if got := f.dial(t).send(many(maxFields)).answer("GET"); got.StatusCode != 431 || got.code != "headers_too_large" {
		t.Errorf("%d %s", got.StatusCode, got.text)
	}
}
