package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// rawLine sends a request line as it stands, with a key and a good body, and returns the answer.
func rawLine(t *testing.T, addr, key, line, body string) (status int, answer string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		line, addr, key, len(body), body)
	method, _, _ := strings.Cut(line, " ")
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Errorf("%s: %v", line, err)
		return 0, ""
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

// TestNothingElseIsReachable: no way of writing a path, a method or a target gets past the gate, on a real socket: neither
// to an engine's open routes nor around the check of the key.
func TestNothingElseIsReachable(t *testing.T) {
	t.Parallel()
	s := newRoutes(t, fast)
	key := s.Key("--tenant", "acme", "--name", "ci")
	addr := strings.TrimPrefix(s.Replicas[0].URL, "http://")
	const body = `{"model":"qwen","messages":[{"role":"user","content":"hi"}],"prompt":"hi","input":"hi","max_tokens":1,"query":"a","documents":["b"],"text_1":"a","text_2":"b"}`
	lines := []string{
		"GET /", "GET /health", "GET /metrics", "GET /load", "GET /version", "GET /docs", "GET /openapi.json", "POST /sleep", "POST /invocations", "POST /rerank",
		"POST /score", "POST /pooling", "POST /classify", "POST /v1/load_lora_adapter", "POST /abort_requests", "GET /readyz", "GET /admin/v1/keys", "POST /sim/faults",
		"DELETE /sim/faults", "POST /v1/messages/count_tokens", "POST /v2/rerank", "GET /v1", "GET /v1/", "POST /inference/v1/generate", "OPTIONS *", "CONNECT " + addr,
		"CONNECT 127.0.0.1:1", "CONNECT /v1/chat/completions", "PRI *", "DELETE /v1/responses/resp_1", "DELETE /v1/models/qwen",
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/v1/score",
		"/v1/audio/transcriptions", "/v1/audio/translations", "/tokenize", "/detokenize"} {
		lines = append(lines, "GET "+path, "PUT "+path, "DELETE "+path, "HEAD "+path, "post "+path, "POST /"+path, "POST "+path+"/", "POST "+path+"//", "POST "+path+"/.",
			"POST "+strings.ToUpper(path), "POST "+path[:1]+strings.ToUpper(path[1:2])+path[2:], "POST /x/.."+path, "POST /."+path, "POST "+path+";x=1", "POST "+path+"%20",
			"POST /%"+fmt.Sprintf("%x", path[1])+path[2:], "POST "+path[:len(path)-1]+"%"+fmt.Sprintf("%x", path[len(path)-1]), "POST http://"+addr+path,
			"POST http://127.0.0.1:1"+path, "POST https://"+addr+path, "POST //"+addr+path, "POST "+strings.Replace(path, "/", `\`, 1), "POST "+path[1:])
		if rest, ok := strings.CutPrefix(path, "/v1/"); ok {
			lines = append(lines, "POST /v1%2F"+rest, "POST /v1%2f"+rest, "POST /v1//"+rest, "POST /v1/./"+rest, "POST /v1/x/../"+rest, "POST /v1%5C"+rest)
		}
	}
	for _, line := range lines {
		status, answer := rawLine(t, addr, key, line, body)
		if status != 404 && status != 400 { // 400: net/http takes it for no HTTP
			t.Errorf("%s: %d %.300s", line, status, answer)
		}
	}
	if n := len(s.seen()); n != 0 {
		t.Errorf("%d reached an engine: %s", n, s.seen()[0].Path)
	}
	// The same body where it belongs does, so that what was refused above was refused for its path.
	if status, answer := rawLine(t, addr, key, "POST /v1/chat/completions?x=1", body); status != 200 {
		t.Errorf("%d %s", status, answer)
	}
}
