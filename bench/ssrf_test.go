package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
)

// TestNoAddressComesFromAClient: a backend's address comes from Consul or the configuration. Whatever a client writes, and
// wherever, headgate connects to nothing it names.
func TestNoAddressComesFromAClient(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var reached atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			c.Close()
		}
	}()
	there := l.Addr().String()
	s := newStack(t, 1, 1, fast)
	url, key := s.Replicas[0].URL, s.Key("--tenant", "acme")
	served := 0
	for _, at := range []string{there, "http://" + there, "http://" + there + "/v1", "//" + there + "/", "@" + there} {
		for _, field := range []string{"base_url", "api_base", "url", "host", "upstream", "callback_url", "webhook", "user", "prompt_cache_key", "cache_salt"} {
			if a := fleet.Ask(t, url, key, fleet.Chat("qwen", "hi", fmt.Sprintf("%q:%q", field, at))); a.Status == 200 {
				served++
			}
		}
		for _, field := range []string{"X-Forwarded-Host", "X-Forwarded-For", "Forwarded", "X-Headgate-Backend", "X-Original-Url", "X-Rewrite-Url", "Proxy-Authorization", "X-Request-Id", "X-Headgate-Tags", "Referer", "Origin"} {
			if a := fleet.Ask(t, url, key, fleet.Chat("qwen", "hi"), field+": "+at); a.Status == 200 {
				served++
			}
		}
		for path, body := range map[string]string{
			"/v1/chat/completions": fleet.Chat(at, "hi"),
			"/v1/responses":        `{"model":"qwen","input":"x","previous_response_id":"` + at + `"}`,
			"/v1/embeddings":       `{"model":"` + at + `","input":"x"}`,
		} {
			if a := fleet.Post(t, url+path, key, body); a.Status/100 != 4 {
				t.Errorf("%s %s: %d %s", path, body, a.Status, a.Body)
			}
		}
	}
	if served < 50 {
		t.Errorf("only %d requests were served: the others prove little", served)
	}
	// What an HTTP client would not send.
	for _, head := range []string{
		"POST http://" + there + "/v1/chat/completions HTTP/1.1\r\nHost: " + there, "CONNECT " + there + " HTTP/1.1\r\nHost: " + there,
		"GET http://" + there + "/ HTTP/1.1\r\nHost: h", "POST /v1/chat/completions HTTP/1.1\r\nHost: " + there,
		"GET /v1/responses/http:%2F%2F" + there + " HTTP/1.1\r\nHost: h", "GET /v1/responses/x?url=http://" + there + " HTTP/1.1\r\nHost: h",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		body := fleet.Chat("qwen", "hi")
		_, _ = io.WriteString(c, head+"\r\nAuthorization: Bearer "+key+"\r\nConnection: close\r\nContent-Length: "+fmt.Sprint(len(body))+"\r\n\r\n"+body)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s: %v", head, err)
		} else if own := strings.HasPrefix(head, "POST /"); (answer.StatusCode == 200) != own {
			t.Errorf("%s: %d", head, answer.StatusCode)
		}
		c.Close()
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d connections to an address a client named", n)
	}
	for _, seen := range s.seen() {
		if strings.Contains(seen.Host, there) {
			t.Errorf("the engine was told the client's host: %s", seen.Host)
		}
	}
}
