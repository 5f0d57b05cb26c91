package gateway

import "testing"

// TestRequestID: the label is told back under the name its clients read; those of Messages have one of their own.
func TestRequestID(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{})
	for path, own := range map[string]string{"/v1/chat/completions": "", "/v1/messages": "mine", "/v1/messages/count_tokens": "mine"} {
		w := f.dial(t).send("POST " + path + " HTTP/1.1\r\nHost: h\r\nX-Request-Id: mine\r\nContent-Length: 0\r\n\r\n")
		if h := w.answer("POST").Header; h.Get("X-Request-Id") != "mine" || h.Get("Request-Id") != own {
			t.Errorf("%s: %v", path, h)
		}
	}
}
