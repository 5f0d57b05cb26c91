package gateway

import (
	"strings"
	"testing"
)

// TestExpectContinue: a client that waits to be told is told only when its key is valid; else it gets the 401 and no
// 100, and its body is not read. A key that passed before is not looked up again.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	body := `{"model":"m","messages":[]}`
	ask := func(key string) *wire {
		head, _, _ := strings.Cut(f.post(key, body, "Expect: 100-continue\r\n"), "{")
		return f.dial(t).send(head)
	}
	told := func(w *wire, looked int64) {
		t.Helper()
		for _, want := range []string{"HTTP/1.1 100 Continue\r\n", "\r\n"} {
			if line, err := w.in.ReadString('\n'); line != want {
				t.Fatalf("%q %v, want %q", line, err, want)
			}
		}
		if got := w.send(body).answer("POST"); got.StatusCode != 404 || got.code != "model_not_found" || got.Close {
			t.Errorf("%d %s", got.StatusCode, got.text)
		}
		if n := f.keys.looked.Load(); n != looked {
			t.Errorf("%d look-ups, want %d", n, looked)
		}
		if got := w.send(f.post("", "")).answer("POST"); got.StatusCode != 401 {
			t.Errorf("next on the connection: %d", got.StatusCode)
		}
	}
	for _, key := range []string{"", "sk-nonsense", "sk-acme-" + strings.Repeat("x", 32), "sk-other-" + strings.Repeat("k", 32)} {
		w := ask(key)
		if got := w.answer("POST"); got.StatusCode != 401 || !got.Close || got.Header.Get("Www-Authenticate") != "Bearer" {
			t.Errorf("key %q: %d, close %v", key, got.StatusCode, got.Close)
		}
		w.ended()
	}
	if n := f.keys.admitted.Load(); n != 0 {
		t.Errorf("%d admissions of keys that are not valid", n)
	}
	told(ask(f.key), 3) // two of the wrong keys have the shape of a key
	told(f.dial(t).send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-Api-Key: "+f.key+"\r\nexpect: 100-Continue\r\nContent-Length: 27\r\n\r\n"), 4)
	f.keys.seen.Store(true)
	told(ask(f.key), 4)
	if got := f.dial(t).send(f.post(f.key, "", "Expect: 100-continue\r\n")).answer("POST"); got.StatusCode != 400 {
		t.Errorf("without a body: %d", got.StatusCode)
	}
}
