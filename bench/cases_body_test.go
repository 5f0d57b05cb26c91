package bench

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/scripted"
)

// TestBODY1_AFieldMayAppearOnlyOnce: the case's four bodies, then every field the gateway acts on, repeated plainly and
// with an escape in its name. None reaches an engine or a counter.
func TestBODY1_AFieldMayAppearOnlyOnce(t *testing.T) {
	t.Parallel()
	l, big := newLane(t, cases(t), 1, 4, "--rpm", "1000", "--tpm", "1000000", "--budget", "1/month"), newLane(t, cases(t), 1, 4)
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	model := `"model":"` + l.model + `"`
	type bad struct{ body, field string }
	bodies := []bad{
		{`{` + model + `,"model":"` + big.model + `",` + messages + `}`, "model"},
		{`{` + model + `,"mod\u0065l":"` + big.model + `",` + messages + `}`, "model"},
		{`{` + model + `,"stream":false,"stream":true,` + messages + `}`, "stream"},
		{`{` + model + `,"max_tokens":1,"max_tokens":100000,` + messages + `}`, "max_tokens"},
	}
	for field, value := range map[string]string{
		"model": `"` + l.model + `"`, "messages": `[]`, "stream": "false", "stream_options": "null", "max_tokens": "1",
		"max_completion_tokens": "1", "n": "1", "best_of": "1", "user": `"u"`, "priority": "0", "cache_salt": `"s"`,
	} {
		escaped := fmt.Sprintf(`\u%04x%s`, field[0], field[1:])
		plain := `{` + model + `,` + messages + `,"` + field + `":` + value + `}`
		if field != "model" && field != "messages" {
			plain = plain[:len(plain)-1] + `,"` + field + `":` + value + `}`
		}
		bodies = append(bodies, bad{plain, field})
		bodies = append(bodies, bad{`{` + model + `,` + messages + `,"` + escaped + `":` + value + `}`, field})
	}
	for _, b := range bodies {
		a, line := l.ask(b.body)
		if a.Status != 400 || !strings.Contains(a.Body, `"type":"invalid_request_error"`) || !strings.Contains(a.Body, `"param":"`+b.field+`"`) {
			t.Errorf("%s: %d %s", b.body, a.Status, a.Body)
		}
		if line.Outcome != "rejected" || line.Attempts != 0 {
			t.Errorf("%s: %s", b.body, line.Raw)
		}
		l.costs(line, 0)
	}
	if n := len(l.requests()) + len(big.requests()); n != 0 {
		t.Errorf("engines were given %d requests", n)
	}
	if found := l.counters(); found != "" {
		t.Errorf("counters were touched: %s", found)
	}
	below := `{` + model + `,` + messages + `,"max_tokens":5,"metadata":{"a":1,"a":2}}`
	if a, line := l.ask(below); a.Status != 200 || line.Outcome != "ok" {
		t.Errorf("a repeated name below the top: %d %s", a.Status, a.Body)
	}
	if got := string(l.requests()[0].Body); got != below {
		t.Errorf("the engine got %s, want %s", got, below)
	}
}

// TestBODY2_BodiesArriveWhole: the case's sizes, with a length and in chunks of 1,000 bytes. The first attempt is answered
// 503, so that each body is sent twice.
func TestBODY2_BodiesArriveWhole(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 4)
	var bodies []string
	for _, size := range []int{65_535, 65_536, 65_537, 131_072, 1_048_576, 10_485_760} {
		bodies = append(bodies, fleet.Chat(l.model, strings.Repeat("w", size-len(fleet.Chat(l.model, "")))))
	}
	image := `[{"type":"text","text":"what?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 5_000_000) + `"}}]`
	bodies = append(bodies, strings.Replace(l.req(), `"hi"`, image, 1))
	var slowest, extra time.Duration
	for _, body := range bodies {
		for _, chunked := range []bool{false, true} {
			began := time.Now() // how long the way to an engine is without a gateway, on this machine, now
			l.uploadTo("http://"+l.b[0].Addr, body, "direct-1", chunked)
			direct := time.Since(began)
			l.play(scripted.JSON(503, `{"error":{"message":"full"}}`), scripted.JSON(200, scripted.J(10, 3)))
			before := len(l.requests())
			id := l.id()
			began = time.Now()
			a := l.upload(body, id, chunked)
			slowest, extra = max(slowest, time.Since(began)), max(extra, time.Since(began)-10*direct)
			line := l.line(id)
			if a.Status != 200 || a.Body != scripted.J(10, 3) || line.Attempts != 2 {
				t.Errorf("%d bytes, chunked %v: %d %s: %s", len(body), chunked, a.Status, a.Body, line.Raw)
			}
			l.charged(line, "ok", "backend", 10, 3)
			sent := l.requests()
			if len(sent) != before+2 {
				t.Fatalf("%d requests for two attempts", len(sent)-before)
			}
			for _, q := range sent {
				if !strings.HasPrefix(q.ID(), id+"-") {
					continue
				}
				if sha256.Sum256(q.Body) != sha256.Sum256([]byte(body)) || q.Told != int64(len(body)) {
					t.Errorf("%d bytes, chunked %v: attempt %d got %d bytes and was told %d", len(body), chunked, q.Attempt(), len(q.Body), q.Told)
				}
			}
		}
	}
	t.Logf("slowest of 14 bodies with two attempts: %s", slowest)
	if extra > 2*time.Second {
		t.Errorf("a body took %s longer than ten ways without a gateway", extra)
	}
	before := len(l.requests())
	for _, chunked := range []bool{false, true} {
		id := l.id()
		a := l.upload(fleet.Chat(l.model, strings.Repeat("w", 33<<20)), id, chunked)
		if line := l.line(id); a.Status != 413 || !strings.Contains(a.Body, "body_too_large") || line.Outcome != "rejected" {
			t.Errorf("33 MiB, chunked %v: %d %v %s", chunked, a.Status, a.Err, a.Body)
		}
	}
	if n := len(l.requests()) - before; n != 0 {
		t.Errorf("engines were given %d bodies that are too large", n)
	}
	if spent := l.books(); spent != 14*38_000 {
		t.Errorf("spent %d, want %d", spent, 14*38_000)
	}
}

// upload posts a body with its length, or in chunks of 1,000 bytes.
func (l *lane) upload(body, id string, chunked bool) fleet.Answer {
	l.t.Helper()
	return l.uploadTo(l.Replicas[0].URL, body, id, chunked)
}

func (l *lane) uploadTo(url, body, id string, chunked bool) fleet.Answer {
	l.t.Helper()
	r := fleet.Request(l.t, url+"/v1/chat/completions", l.key, body, "X-Request-Id: "+id)
	if chunked {
		r.ContentLength = -1
		r.Body = io.NopCloser(thousand{strings.NewReader(body)})
	}
	answer, err := fleet.Client.Do(r)
	if err != nil {
		return fleet.Answer{Err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return fleet.Answer{Status: answer.StatusCode, Header: answer.Header, Body: string(text), Err: err}
}

// thousand reads at most 1,000 bytes at once.
type thousand struct{ io.Reader }

func (r thousand) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), 1000)]) }

// TestBODY3_CompressedBodiesWithinABound: the five runs of the case, on a replica of its own whose memory is looked at.
func TestBODY3_CompressedBodiesWithinABound(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t).beside(t), 1, 4)
	body := l.req()
	whole := zipped(t, strings.NewReader(body))
	a, line := l.ask(string(whole), "Content-Encoding: gzip")
	if a.Status != 200 {
		t.Errorf("(a) %d %s", a.Status, a.Body)
	}
	l.charged(line, "ok", "backend", 10, 3)
	if sent := l.requests(); len(sent) != 1 || string(sent[0].Body) != body || sent[0].Told != int64(len(body)) || sent[0].Header("Content-Encoding") != nil {
		t.Errorf("(a) the engine got %d requests: %q", len(sent), l.b[0].Received())
	}
	for name, c := range map[string]struct {
		body, encoding string
		status         int
	}{
		"(b) cut":               {string(whole[:len(whole)-5]), "gzip", 400},
		"(b) no gzip at all":    {body, "gzip", 400},
		"(b) bytes behind it":   {string(whole) + "more", "gzip", 400},
		"(b) empty":             {"", "gzip", 400},
		"(c) unknown":           {body, "br2", 415},
		"(c) known and unknown": {string(whole), "br2, gzip", 415},
		"(d) zeros":             {string(zipped(t, io.LimitReader(letters{'\x00'}, 64<<20))), "gzip", 413},
	} {
		a, line := l.ask(c.body, "Content-Encoding: "+c.encoding)
		if a.Status != c.status || line.Outcome != "rejected" {
			t.Errorf("%s: %d %s: %s", name, a.Status, a.Body, line.Raw)
		}
		l.costs(line, 0)
	}
	member := zipped(t, io.LimitReader(letters{'a'}, 1<<24)) // members that follow each other are one body
	bomb := append(zipped(t, strings.NewReader(`"`)), bytes.Repeat(member, 64)...)
	before, began := rss(t, l.Replicas[0].PID(), "VmRSS"), time.Now()
	a, line = l.ask(string(bomb), "Content-Encoding: gzip")
	took, grown := time.Since(began), rss(t, l.Replicas[0].PID(), "VmHWM")-before
	t.Logf("(d) %d bytes that would be 1 GiB: %d after %s, %d KiB more at the highest", len(bomb), a.Status, took, grown)
	if a.Status != 413 || line.Outcome != "rejected" || took > 2*time.Second || grown > 64<<10 {
		t.Errorf("(d) %d after %s, grown by %d KiB: %s", a.Status, took, grown, a.Body)
	}
	if a, line = l.ask(body, "Content-Encoding: identity"); a.Status != 200 {
		t.Errorf("(e) %d %s", a.Status, a.Body)
	}
	l.charged(line, "ok", "backend", 10, 3)
	if n := len(l.requests()); n != 2 {
		t.Errorf("the engine was given %d requests, want 2", n)
	}
	if spent := l.books(); spent != 2*38_000 {
		t.Errorf("spent %d, want %d", spent, 2*38_000)
	}
}

func zipped(t *testing.T, from io.Reader) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := io.Copy(w, from); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// letters is an endless row of one byte.
type letters struct{ c byte }

func (l letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = l.c
	}
	return len(p), nil
}

// rss is a line of /proc/<pid>/status, in KiB: VmRSS is the memory now, VmHWM the most there was.
func rss(t *testing.T, pid int, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), name+":")
	if !ok {
		t.Fatalf("no %s in %s", name, text)
	}
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
