package fleet

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Client has no limit of connections and no compression of its own.
// A request that never ends fails its test instead of holding it up.
var Client = &http.Client{Timeout: 150 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true, IdleConnTimeout: 10 * time.Second}}

// Answer is a whole answer.
type Answer struct {
	Status int
	Header http.Header
	Body   string
	Err    error // a body that broke off
}

// Ask posts a chat request and reads the answer to its end. fields are "Name: value".
func Ask(t testing.TB, url, key, body string, fields ...string) Answer {
	t.Helper()
	return Post(t, url+"/v1/chat/completions", key, body, fields...)
}

// Post posts to any route and reads the answer to its end.
func Post(t testing.TB, url, key, body string, fields ...string) Answer {
	t.Helper()
	answer, err := Client.Do(Request(t, url, key, body, fields...))
	if err != nil {
		return Answer{Err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return Answer{Status: answer.StatusCode, Header: answer.Header, Body: string(text), Err: err}
}

// Request is a POST with a key.
func Request(t testing.TB, url, key, body string, fields ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Set(name, value)
	}
	return r
}

// Chat is the body of a chat request; more are further members, such as `"stream":true`.
func Chat(model, content string, more ...string) string {
	body := `{"model":"` + model + `","messages":[{"role":"user","content":"` + content + `"}]`
	for _, m := range more {
		body += "," + m
	}
	return body + "}"
}
