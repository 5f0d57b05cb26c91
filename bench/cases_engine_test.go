package bench

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/scripted"
)

// raw is an answer written as it stands.
func raw(parts ...string) scripted.Script {
	var s scripted.Script
	for _, p := range parts {
		s = append(s, scripted.Write(p))
	}
	return s
}

// TestLIFE3_OddEngines: answers that no good engine gives. Each is the first attempt's; a good engine has the second. Either
// the client gets what was meant, or it gets the good engine's answer, whole, once.
func TestLIFE3_OddEngines(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 8, "--budget", "100/month")
	const chunkedEvents = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
	s3, j := strings.Join(scripted.S3(), ""), scripted.J(10, 3)
	sized := func(n int, body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", n, body)
	}
	long := "X-Padding: " + strings.Repeat("p", 60_000) + "\r\n"
	zipped := func(text string, flush bool) string {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		for part := range strings.SplitAfterSeq(text, "\n\n") {
			_, _ = w.Write([]byte(part))
			if flush {
				_ = w.Flush()
			}
		}
		_ = w.Close()
		return out.String()
	}
	const once, again = 1, 2 // attempts
	for name, c := range map[string]struct {
		stream   bool
		script   scripted.Script
		attempts int
	}{
		"HTTP/1.0 with a length":       {false, raw("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + fmt.Sprint(len(j)) + "\r\n\r\n" + j).Then(scripted.Close()), once},
		"HTTP/1.0 until its end":       {false, raw("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n", j).Then(scripted.Close()), once},
		"HTTP/1.0, cut":                {false, raw("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n", j[:len(j)-9]).Then(scripted.Close()), again},
		"HTTP/1.0 stream":              {true, raw("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", s3).Then(scripted.Close()), once},
		"HTTP/1.0 stream, reset":       {true, raw("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", s3[:100]).Then(scripted.Reset()), again},
		"a stream with a length":       {true, raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s", len(s3), s3)), once},
		"redirect 301":                 {false, raw("HTTP/1.1 301 Moved\r\nLocation: http://" + l.b[0].Addr + "/elsewhere\r\nContent-Length: 0\r\n\r\n"), again},
		"redirect 307":                 {true, raw("HTTP/1.1 307 Moved\r\nLocation: /v1/chat/completions\r\nContent-Length: 2\r\n\r\nhi"), again},
		"not modified":                 {false, raw("HTTP/1.1 304 Not Modified\r\n\r\n"), again},
		"interim heads":                {true, append(raw("HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"), scripted.Stream(scripted.S3()...)...), once},
		"a large head":                 {true, raw(chunkedEvents+long+"\r\n", "").Then(scripted.Chunk(s3), scripted.End()), once},
		"a head without an end":        {true, raw(chunkedEvents+long+long, strings.Repeat(long, 4)).Then(scripted.Hang()), again},
		"many header lines":            {true, raw(chunkedEvents+strings.Repeat("X-A: b\r\n", 2000)+"\r\n").Then(scripted.Chunk(s3), scripted.End()), again},
		"no HTTP":                      {false, raw("220 mail.example ESMTP\r\n").Then(scripted.Hang()), again},
		"HTTP/2":                       {false, raw("HTTP/2 200\r\n\r\n").Then(scripted.Hang()), again},
		"two framings":                 {true, raw(chunkedEvents + "Content-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), again},
		"two lengths":                  {false, raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), again},
		"length too large":             {false, raw(sized(len(j)+1, j)).Then(scripted.Close()), again},
		"length too small":             {false, raw(sized(len(j)-1, j)), again}, // its JSON is cut
		"bytes behind the answer":      {false, raw(sized(len(j), j+"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")), once},
		"no body":                      {false, raw(sized(0, "")), again},
		"no content":                   {true, raw("HTTP/1.1 204 No Content\r\n\r\n"), once},
		"an error inside a 200":        {false, scripted.JSON(200, `{"error":{"message":"engine died"}}`), again},
		"the old error inside a 200":   {false, scripted.JSON(200, `{"object":"error","message":"engine died","code":500}`), again},
		"no JSON":                      {false, scripted.JSON(200, `<html>ok</html>`), again},
		"error null":                   {false, scripted.JSON(200, `{"error":null,`+j[1:]), once},
		"an error event first":         {true, scripted.Stream(`data: {"error":{"message":"engine died"}}`+"\n\n", scripted.D), again},
		"the same in one write":        {true, scripted.Stream(`data: {"error":{"message":"engine died"}}` + "\n\n" + scripted.D), again},
		"a named error event":          {true, scripted.Stream("event: error\ndata: oh no\n\n"), again},
		"JSON in place of a stream":    {true, scripted.JSON(200, j), once},
		"a stream in place of JSON":    {false, scripted.Stream(scripted.S3()...), once},
		"odd case of the type":         {true, raw("HTTP/1.1 200 OK\r\ncontent-type: TEXT/Event-Stream ;charset=utf-8\r\nTRANSFER-encoding: Chunked\r\n\r\n").Then(scripted.Chunk(s3), scripted.End()), once},
		"chunk extensions, a trailer":  {true, raw(chunkedEvents+"\r\n", fmt.Sprintf("%X;a=b\r\n%s\r\n0\r\nX-Sum: 1\r\n\r\n", len(s3), s3)), once},
		"gzip":                         {false, raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", len(zipped(j, false))) + zipped(j, false)), once},
		"gzip, cut":                    {false, raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n" + zipped(j, false)[:60]).Then(scripted.Close()), again},
		"gzip that is none":            {false, raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"), again},
		"a gzip stream":                {true, raw(chunkedEvents+"Content-Encoding: x-gzip\r\n\r\n").Then(scripted.Chunk(zipped(s3, true)), scripted.End()), once},
		"an encoding nobody asked for": {true, raw(chunkedEvents+"Content-Encoding: br\r\n\r\n").Then(scripted.Chunk("\x1b\x00"), scripted.End()), again},
	} {
		second, body, want := scripted.JSON(200, j), l.req(), j
		if c.stream {
			second, body, want = scripted.Stream(scripted.S3()...), l.reqS(), s3
		}
		l.play(c.script, second)
		switch name {
		case "JSON in place of a stream":
			want = j
		case "a stream in place of JSON":
			want = strings.Replace(s3, scripted.U(10, 3), "", 1)
		case "error null":
			want = `{"error":null,` + j[1:]
		case "no content":
			want = ""
		}
		before := len(l.requests())
		a, line := l.ask(body)
		if a.Err != nil || a.Body != want || a.Header.Get("Content-Encoding") != "" || line.Attempts != c.attempts || len(l.requests())-before != c.attempts {
			t.Errorf("%s: %d %v, %d requests, got\n%q\nwant\n%q\n%s", name, a.Status, a.Err, len(l.requests())-before, a.Body, want, line.Raw)
		}
		if name != "no content" {
			l.charged(line, "ok", "backend", 10, 3)
		}
		for _, q := range l.requests()[before:] {
			if q.Target != "/v1/chat/completions" {
				t.Errorf("%s: an engine was asked for %s", name, q.Target)
			}
		}
	}
	l.books()
}

// TestLIFE3_RefusalsPassAsTheyAre: an engine's 4xx in any dress is the client's, in one attempt.
func TestLIFE3_RefusalsPassAsTheyAre(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 8, "--budget", "1/month")
	for name, c := range map[string]struct{ contentType, body string }{
		"JSON":               {"application/json", `{"error":{"message":"no"}}`},
		"old JSON":           {"application/json", `{"object":"error","message":"no"}`},
		"called a stream":    {"text/event-stream", `{"error":{"message":"no"}}`},
		"an event":           {"text/event-stream", `data: {"error":{"message":"no"}}` + "\n\n"},
		"HTML":               {"text/html", "<html>no</html>"},
		"nothing":            {"application/json", ""},
		"broken JSON":        {"application/json", `{"error":`},
		"an error as a text": {"application/json", `{"error":"Unauthorized"}`},
	} {
		for _, stream := range []bool{false, true} {
			l.play(scripted.Answer(422, c.contentType, c.body), scripted.JSON(200, scripted.J(10, 3)))
			a, line := l.ask(l.req(fmt.Sprintf(`"stream":%v`, stream)))
			if a.Status != 422 || a.Body != c.body || a.Header.Get("Content-Type") != c.contentType || line.Attempts != 1 || line.Outcome != "rejected" {
				t.Errorf("%s: %d %v %q %s", name, a.Status, a.Header, a.Body, line.Raw)
			}
			l.costs(line, 0)
		}
	}
	if spent := l.books(); spent != 0 {
		t.Errorf("spent %d", spent)
	}
}

// TestLIFE3_BothFail: what the client is told when no attempt succeeds.
func TestLIFE3_BothFail(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 8, "--budget", "1/month")
	for name, c := range map[string]struct {
		script   scripted.Script
		status   int
		code     string
		attempts int
	}{
		"no byte":        {nil, 502, "upstream_error", 2},
		"500":            {scripted.JSON(500, `{"error":{"message":"secret path /opt/engine"}}`), 502, "upstream_error", 2},
		"503":            {scripted.JSON(503, `{}`), 503, "queue_full", 2},
		"504":            {scripted.JSON(504, `{}`), 504, "timeout", 1},
		"redirect":       {raw("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"), 502, "upstream_error", 2},
		"error in a 200": {scripted.JSON(200, `{"error":{"message":"secret path /opt/engine"}}`), 502, "upstream_error", 2},
		"error event":    {scripted.Stream(`data: {"error":{"message":"secret path /opt/engine"}}` + "\n\n"), 502, "upstream_error", 2},
	} {
		for _, stream := range []bool{false, true} {
			l.play(c.script)
			a, line := l.ask(l.req(fmt.Sprintf(`"stream":%v`, stream)))
			if a.Status != c.status || !strings.Contains(a.Body, `"code":"`+c.code+`"`) || a.Header.Get("Content-Type") != "application/json" || strings.Contains(a.Body, "secret") || line.Attempts != c.attempts {
				t.Errorf("%s: %d %v %s: %s", name, a.Status, a.Header, a.Body, line.Raw)
			}
			if (a.Status == 503) != (a.Header.Get("Retry-After") != "") {
				t.Errorf("%s: %d with Retry-After %q", name, a.Status, a.Header.Get("Retry-After"))
			}
			l.costs(line, 0)
		}
	}
	if spent := l.books(); spent != 0 {
		t.Errorf("spent %d", spent)
	}
}

// TestLIFE2_AnErrorInMidStream: the engine's error event passes, the outcome says so, and a [DONE] behind it changes nothing.
func TestLIFE2_AnErrorInMidStream(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 8, "--budget", "1/month")
	fault := `data: {"error":{"message":"engine died","type":"InternalServerError","param":null,"code":500}}` + "\n\n"
	beside := strings.Replace(scripted.E("b"), `"choices"`, `"error":{"message":"x"},"choices"`, 1)
	for name, events := range map[string][]string{
		"alone":              {scripted.E("a"), fault},
		"before [DONE]":      {scripted.E("a"), fault, scripted.D},
		"beside choices":     {scripted.E("a"), beside, scripted.D},
		"behind the finish":  {scripted.E("a"), scripted.F, fault},
		"an event by name":   {scripted.E("a"), "event: error\ndata: {\"message\":\"x\"}\n\n"},
		"with usage behind":  {scripted.E("a"), fault, scripted.U(10, 3), scripted.D},
		"in the first write": {scripted.E("a") + fault + scripted.D},
	} {
		l.play(scripted.Stream(events...), scripted.Stream(scripted.S3()...))
		a, line := l.ask(l.reqS())
		if a.Status != 200 || a.Body != strings.Join(events, "") || line.Outcome != "upstream_error" || line.Attempts != 1 {
			t.Errorf("%s: %d %q: %s", name, a.Status, a.Body, line.Raw)
		}
		l.charged(line, "upstream_error", line.UsageSource, line.Prompt, line.Completion)
		if line.Completion < 1 {
			t.Errorf("%s: what was made is not charged: %s", name, line.Raw)
		}
	}
	l.books()
}

// TestLIFE2_Clocks: an engine that is silent before its first event, in mid-answer, or longer than a whole answer may take.
// A timeout is never repeated.
func TestLIFE2_Clocks(t *testing.T) {
	t.Parallel()
	w := cases(t).beside(t, "HG_FIRST_TOKEN_TIMEOUT=1s", "HG_REQUEST_TIMEOUT=3s", "HG_STREAM_SILENCE=1s")
	head := scripted.StreamHead()
	j := scripted.J(10, 3)
	comments := scripted.Script{head}
	for range 100 {
		comments = append(comments, scripted.Chunk(": processing\n\n"), scripted.Pause(50*time.Millisecond))
	}
	slow := scripted.Script{scripted.Head(200, "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(j)))}
	for i := range len(j) {
		slow = append(slow, scripted.Write(j[i:i+1]), scripted.Pause(20*time.Millisecond))
	}
	steady := scripted.Script{head}
	for range 35 { // longer than any clock, and never silent
		steady = append(steady, scripted.Chunk(scripted.E("a")), scripted.Pause(100*time.Millisecond))
	}
	for name, c := range map[string]struct {
		stream bool
		script scripted.Script
		status int
	}{
		"stream, no head":           {true, scripted.Script{scripted.Hang()}, 504},
		"stream, head alone":        {true, scripted.Script{head, scripted.Hang()}, 504},
		"stream, comments alone":    {true, comments, 504},
		"stream, half an event":     {true, scripted.Script{head, scripted.Chunk("data: {"), scripted.Hang()}, 504},
		"whole, no head":            {false, scripted.Script{scripted.Hang()}, 504},
		"whole, head alone":         {false, scripted.Script{slow[0], scripted.Hang()}, 504},
		"whole, half a body":        {false, scripted.Script{slow[0], scripted.Write(j[:50]), scripted.Hang()}, 504},
		"whole, byte by byte":       {false, slow, 504},
		"stream, longer than all":   {true, steady.Then(scripted.Chunk(scripted.F+scripted.U(10, 3)+scripted.D), scripted.End()), 200},
		"stream asked, JSON is due": {true, scripted.Script{slow[0], scripted.Pause(1200 * time.Millisecond), scripted.Write(j)}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, w, 2, 8, "--budget", "1/month")
			l.play(c.script, scripted.JSON(200, j))
			body := l.req()
			if c.stream {
				body = l.reqS()
			}
			began := time.Now()
			a, line := l.ask(body)
			t.Logf("%d after %s", a.Status, time.Since(began))
			if a.Status != c.status || line.Attempts != 1 || len(l.requests()) != 1 {
				t.Fatalf("%d %s, %d requests: %s", a.Status, a.Body, len(l.requests()), line.Raw)
			}
			if c.status == 200 {
				l.charged(line, "ok", "backend", 10, 3)
			} else {
				if line.Outcome != "timeout" || !strings.Contains(a.Body, `"code":"timeout"`) || !strings.Contains(a.Body, `"type":"timeout"`) {
					t.Errorf("%s: %s", a.Body, line.Raw)
				}
				l.costs(line, 0)
				l.goneWithin(l.requests()[0], began, 6*time.Second)
			}
			l.books()
		})
	}
}
