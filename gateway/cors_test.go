package gateway

import (
	"net/http"
	"strings"
	"testing"
)

const stainless = "authorization,content-type,x-stainless-os,x-stainless-retry-count,x-stainless-timeout"

func preflight(origin string, fields ...string) string {
	return "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\nOrigin: " + origin + "\r\nAccess-Control-Request-Method: POST\r\n" + strings.Join(fields, "") + "\r\n"
}

// TestHDR3_Preflight: a page of a configured origin may send what it asked for, and read what comes back; another page gets
// nothing. A preflight needs no key and is no client request.
func TestHDR3_Preflight(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{CORSOrigins: []string{"https://App.example", "http://localhost:3000"}})
	w := f.dial(t)
	got := w.send(preflight("https://app.example", "Access-Control-Request-Headers: "+stainless+"\r\n")).answer("OPTIONS")
	want := http.Header{"Access-Control-Allow-Origin": {"https://app.example"}, "Access-Control-Allow-Methods": {"GET, POST"},
		"Access-Control-Allow-Headers": {stainless}, "Access-Control-Max-Age": {"7200"}, "Vary": {"Origin"}, "Date": got.Header["Date"]}
	if got.StatusCode != 204 || !sameHeader(got.Header, want) {
		t.Errorf("preflight: %d %v", got.StatusCode, got.Header)
	}
	for _, bad := range []string{"a b", "a,,b", "a\tb", "é", "a:b,c"} {
		got := w.send(preflight("https://app.example", "Access-Control-Request-Headers: "+bad+"\r\n")).answer("OPTIONS")
		if got.StatusCode != 204 || got.Header["Access-Control-Allow-Headers"] != nil {
			t.Errorf("names %q: %d %v", bad, got.StatusCode, got.Header)
		}
	}
	for _, origin := range []string{"https://evil.example", "https://app.example.evil.example", "http://app.example", "https://app.example:444", "null", "",
		"http://localhost:3000\r\nOrigin: https://app.example"} {
		got := w.send(preflight(origin, "Access-Control-Request-Headers: authorization\r\n")).answer("OPTIONS")
		if got.StatusCode != 204 || !sameHeader(got.Header, http.Header{"Vary": {"Origin"}, "Date": got.Header["Date"]}) {
			t.Errorf("origin %q: %d %v", origin, got.StatusCode, got.Header)
		}
	}
	if len(f.records) > 0 {
		t.Errorf("%d usage records of preflights", len(f.records))
	}
}

// TestHDR3_ErrorsAreReadable: every other answer says whether the page may read it, and which fields.
func TestHDR3_ErrorsAreReadable(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{CORSOrigins: []string{"https://app.example"}})
	w := f.dial(t)
	for status, sent := range map[int]func(...string) string{
		401: func(fields ...string) string { return f.post("sk-wrong", `{"model":"m","messages":[]}`, fields...) },
		400: func(fields ...string) string { return f.post(f.key, "{", fields...) },
		404: func(fields ...string) string {
			return "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\n" + strings.Join(fields, "") + "\r\n" // no preflight
		},
	} {
		got := w.send(sent("Origin: https://app.example\r\n")).answer("POST")
		if got.StatusCode != status || got.Header.Get("Access-Control-Allow-Origin") != "https://app.example" || got.Header.Get("Vary") != "Origin" {
			t.Errorf("want %d readable: %d %v", status, got.StatusCode, got.Header)
		}
		for _, name := range []string{"Retry-After", "X-Request-Id", "X-Ratelimit-Remaining-Tokens", "X-Headgate-Backend"} {
			if status != 404 && !strings.Contains(got.Header.Get("Access-Control-Expose-Headers"), name) {
				t.Errorf("%d: %s is not exposed: %v", status, name, got.Header)
			}
		}
		for _, other := range []string{"Origin: https://evil.example\r\n", ""} {
			got := w.send(sent(other)).answer("POST")
			if got.StatusCode != status || got.Header["Access-Control-Allow-Origin"] != nil || got.Header["Access-Control-Expose-Headers"] != nil || got.Header.Get("Vary") != "Origin" {
				t.Errorf("%d with %q: %d %v", status, other, got.StatusCode, got.Header)
			}
		}
	}
}

// TestHDR3_AllOrNone: * lets every page in by that name; without configured origins there is no CORS at all.
func TestHDR3_AllOrNone(t *testing.T) {
	t.Parallel()
	all := newFront(t, Config{CORSOrigins: []string{"https://app.example", "*"}})
	for _, origin := range []string{"https://app.example", "https://any.example", "null"} {
		if got := all.dial(t).send(preflight(origin)).answer("OPTIONS"); got.StatusCode != 204 || got.Header.Get("Access-Control-Allow-Origin") != "*" || got.Header.Get("Vary") != "Origin" {
			t.Errorf("%s: %d %v", origin, got.StatusCode, got.Header)
		}
	}
	none := newFront(t, Config{})
	got := none.dial(t).send(preflight("https://app.example")).answer("OPTIONS")
	if got.StatusCode != 404 || got.Header["Vary"] != nil || got.Header["Access-Control-Allow-Origin"] != nil {
		t.Errorf("without origins: %d %v", got.StatusCode, got.Header)
	}
	if r := none.record(t); r.Status != 404 {
		t.Errorf("record %+v", r)
	}
}

func sameHeader(a, b http.Header) bool {
	for name := range b {
		if strings.Join(a[name], "|") != strings.Join(b[name], "|") {
			return false
		}
	}
	return len(a) == len(b)
}
