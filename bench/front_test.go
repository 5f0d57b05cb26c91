package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// TestPromise7_ThePromptIsFreed: a prompt of 100 KB is held until the first event of its stream goes to the client, and
// not a moment longer: while 2,000 streams run, none is in memory.
func TestPromise7_ThePromptIsFreed(t *testing.T) {
	t.Parallel()
	const streams, waiting = 2000, 20
	e := newHoldingEngine(t)
	f := fleet.Start(t, fleet.Options{Redis: lab.Redis(t).URL(), Env: []string{"HG_BACKENDS=qwen=" + e.URL + ";slots=" + fmt.Sprint(streams+waiting), "HG_STREAM_SILENCE=5m"}})
	r, key := f.Replicas[0], f.Key("--tenant", "acme")
	body := fleet.Chat("qwen", strings.Repeat("x", 100_000), `"stream":true`)
	lab.Eventually(t, patience, func() bool {
		return r.Metric("headgate_backends") == 1 && fleet.Ask(t, r.URL, key, fleet.Chat("qwen", "hi")).Status == 200
	}, "the engine is used")

	held := startStreams(t, r.URL, key, body, waiting)
	lab.Eventually(t, patience, func() bool { return r.Metric("headgate_prompt_bytes") >= waiting*100_000 }, "the prompts of %d streams without an event are held", waiting)
	close(e.begin)
	held.wait()
	if n := r.Metric("headgate_prompt_bytes"); n != 0 {
		t.Errorf("%.0f bytes of prompts are held behind their first event", n)
	}

	memory, heap := rss(t, r.PID(), "VmRSS"), r.Metric("go_memstats_heap_inuse_bytes")
	began := time.Now()
	running := startStreams(t, r.URL, key, body, streams)
	running.wait()
	if n := r.Metric("headgate_prompt_bytes"); n != 0 {
		t.Errorf("%.0f bytes of prompts are held while %d streams run", n, streams)
	}
	if n := int(r.Metric("headgate_requests_in_flight")); n != streams+waiting {
		t.Errorf("%d requests run, want %d: the figures below say nothing", n, streams+waiting)
	}
	grown := (rss(t, r.PID(), "VmRSS") - memory) << 10 / streams
	t.Logf("%d streams of 100 KB prompts opened in %.1f s; each costs %d bytes of memory and %.0f of heap", streams, time.Since(began).Seconds(), grown,
		(r.Metric("go_memstats_heap_inuse_bytes")-heap)/streams)
	if grown >= 100_000 {
		t.Errorf("a running stream costs %d bytes: as much as its prompt", grown)
	}
	close(e.end)
	held.finish()
	running.finish()
}

// holdingEngine sends the one event of each stream when begin is closed, and its end when end is.
type holdingEngine struct {
	*httptest.Server
	begin, end chan struct{}
}

func newHoldingEngine(t *testing.T) *holdingEngine {
	t.Helper()
	e := &holdingEngine{begin: make(chan struct{}), end: make(chan struct{})}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/v1/models":
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"qwen","object":"model"}]}`)
		case r.Method != "POST":
		case !bytes.Contains(body, []byte(`"stream":true`)):
			_, _ = io.WriteString(w, scripted.J(10, 3))
		default:
			body = nil
			w.Header().Set("Content-Type", "text/event-stream")
			wait(r, e.begin)
			_, _ = io.WriteString(w, scripted.E("a"))
			_ = http.NewResponseController(w).Flush()
			wait(r, e.end)
			_, _ = io.WriteString(w, scripted.F+scripted.D)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func wait(r *http.Request, c <-chan struct{}) {
	select {
	case <-c:
	case <-r.Context().Done():
	}
}

// openStreams are streams of which each is read up to its first event, then, by finish, to its end.
type openStreams struct {
	t      *testing.T
	opened sync.WaitGroup
	mu     sync.Mutex
	bodies []*bufio.Reader
}

// startStreams opens n streams, a few dozen at a time.
func startStreams(t *testing.T, url, key, body string, n int) *openStreams {
	t.Helper()
	s := &openStreams{t: t}
	turns := make(chan struct{}, 32)
	for range n {
		s.opened.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			answer, err := fleet.Client.Do(fleet.Request(t, url+"/v1/chat/completions", key, body))
			if err != nil {
				t.Error(err)
				return
			}
			in := bufio.NewReaderSize(answer.Body, 512)
			if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
				t.Errorf("%d: %q %v", answer.StatusCode, line, err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.bodies = append(s.bodies, in)
		})
	}
	return s
}

func (s *openStreams) wait() { s.t.Helper(); s.opened.Wait() }

func (s *openStreams) finish() {
	s.t.Helper()
	for _, in := range s.bodies {
		if rest, err := io.ReadAll(in); err != nil || !strings.HasSuffix(string(rest), scripted.D) {
			s.t.Errorf("a stream ended with %q %v", rest, err)
			return
		}
	}
}

// TestTheEngineSeesTheseLines: the head of a forwarded request is exactly this, whatever the client sent.
func TestTheEngineSeesTheseLines(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	c, body, id := l.dial(), l.req(), l.id()
	c.send([]string{"authorization: bearer " + l.key, "X-Api-Key: " + l.key, "Proxy-Authorization: Bearer " + l.key, "Cookie: key=" + l.key, "Api-Key: " + l.key,
		"Content-Type: application/json; charset=utf-8", "Accept: application/json", "Accept-Encoding: gzip", "User-Agent: probe/1.0", "X-Request-Id: " + id,
		"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate: a=1", "Tracestate: b=2", "Baggage: a=b",
		"X-Forwarded-For: 1.2.3.4", "X-Real-Ip: 1.2.3.4", "Forwarded: for=1.2.3.4", "Via: 1.1 a", "Origin: https://app.example", "Referer: https://app.example/x",
		"OpenAI-Organization: org", "OpenAI-Project: p", "X-Stainless-Os: Linux", "Connection: keep-alive, X-Drop-Me", "X-Drop-Me: 1", "Keep-Alive: timeout=5", "TE: trailers",
		"Upgrade: websocket", "Host-Override: engine", "X-Vllm-Priority: 0", "Range: bytes=0-1", "If-None-Match: \"a\"", "Max-Forwards: 1",
		fmt.Sprintf("Content-Length: %d", len(body))}, body)
	if a := c.answer(); a.StatusCode != 200 {
		t.Fatalf("%d", a.StatusCode)
	}
	q, line := l.requests()[0], l.line(id)
	want := strings.Join([]string{"POST /v1/chat/completions HTTP/1.1", "Host: " + l.b[0].Addr, "Content-Type: application/json; charset=utf-8", "Accept: application/json",
		"User-Agent: probe/1.0", "Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Tracestate: a=1", "Tracestate: b=2",
		"X-Request-Id: " + id + "-" + line.RID[:8] + "-1", fmt.Sprintf("Content-Length: %d", len(body)), ""}, "\r\n")
	if q.Head != want {
		t.Errorf("the engine got\n%s\nwant\n%s", q.Head, want)
	}
	if string(q.Body) != body {
		t.Errorf("the engine got %q, want %q", q.Body, body)
	}
}

// TestExpectContinueCostsOneWait: the key is checked before the body is asked for: one wait more for a key this replica has
// not seen, none for one it has.
func TestExpectContinueCostsOneWait(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4, "--rpm", "10")
	body := l.req()
	ask := func(key, id string) (*client, []string) {
		c := l.dial()
		return c, []string{"Authorization: Bearer " + key, "X-Request-Id: " + id, "Expect: 100-continue", fmt.Sprintf("Content-Length: %d", len(body))}
	}
	for i, trips := range []int{3, 1} { // look-up, admission, placement; then all in one
		id := l.id()
		c, fields := ask(l.key, id)
		c.send(fields, "")
		if a := c.answer(); a.StatusCode != 100 {
			t.Fatalf("request %d: %d before its body", i, a.StatusCode)
		}
		if _, err := io.WriteString(c, body); err != nil {
			t.Fatal(err)
		}
		if a := c.answer(); a.StatusCode != 200 {
			t.Errorf("request %d: %d", i, a.StatusCode)
		}
		if line := l.line(id); line.RoundTrips != trips {
			t.Errorf("request %d: %d round trips, want %d: %s", i, line.RoundTrips, trips, line.Raw)
		}
	}
	l.redis.CLI("HSET", "hg:{t:"+l.tenant+"}", "disabled", "1")
	disabled := l.Key("--tenant", l.tenant)
	for name, key := range map[string]string{"unknown": "sk-" + l.tenant + "-" + strings.Repeat("x", 32), "disabled": disabled} {
		id := l.id()
		c, fields := ask(key, id)
		c.send(fields, "")
		if a := c.answer(); a.StatusCode != 401 || !a.Close {
			t.Errorf("%s key: %d, close %v", name, a.StatusCode, a.Close)
		}
		if line := l.line(id); line.RoundTrips != 1 || line.Outcome != "rejected" {
			t.Errorf("%s key: %s", name, line.Raw)
		}
	}
	if n := l.counted(); n != 2 {
		t.Errorf("%d requests count, want the 2 that were served", n)
	}
}

// TestHTTP10: an old client gets its stream unchunked, ended by the end of the connection.
func TestHTTP10(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	l.play(scripted.Stream(scripted.S3()...))
	c := l.dial()
	body := l.reqS()
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", l.key, len(body), body)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	all, err := io.ReadAll(c.in)
	head, events, _ := strings.Cut(string(all), "\r\n\r\n")
	if err != nil || !strings.HasPrefix(head, "HTTP/1.0 200 OK\r\n") || strings.Contains(head, "Transfer-Encoding") || events != strings.Join(scripted.S3(), "") {
		t.Errorf("%v\n%s", err, all)
	}
}

// TestZstdBomb: a body that would be 1 GiB is refused in time, within a bounded memory, before any key was checked.
func TestZstdBomb(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Redis: lab.Redis(t).URL()})
	var frame bytes.Buffer
	w, err := zstd.NewWriter(&frame, zstd.WithWindowSize(8<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, io.LimitReader(letters{'a'}, 1<<26)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	bomb := bytes.Repeat(frame.Bytes(), 16) // frames that follow each other are one body
	r := f.Replicas[0]
	before, began := rss(t, r.PID(), "VmRSS"), time.Now()
	a := fleet.Ask(t, r.URL, "sk-nobody-"+strings.Repeat("x", 32), string(bomb), "Content-Encoding: zstd")
	took, grown := time.Since(began), rss(t, r.PID(), "VmHWM")-before
	t.Logf("%d bytes that would be 1 GiB: %d after %s, %d KiB more at the highest", len(bomb), a.Status, took, grown)
	if a.Status != 413 || took > 2*time.Second || grown > 64<<10 {
		t.Errorf("%d after %s, grown by %d KiB: %s", a.Status, took, grown, a.Body)
	}
}
