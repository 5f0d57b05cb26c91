package bench

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/scripted"
)

// TestHDR1_HopByHopStopsHere: the case's engine and its three requests, on one connection where it is kept.
func TestHDR1_HopByHopStopsHere(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	script := scripted.Script{scripted.StreamHead("Connection: close, X-Internal", "X-Internal: 7", "Keep-Alive: timeout=1", "Set-Cookie: a=b", "Server: engine")}
	for _, e := range scripted.S3() {
		script = append(script, scripted.Chunk(e))
	}
	l.play(script.Then(scripted.End(), scripted.Close()))
	body := l.req(`"stream":true`)
	fields := func(more ...string) []string {
		return append([]string{"X-Drop-Me: 1", "Keep-Alive: timeout=5", "TE: trailers", "Proxy-Authorization: Basic Zm9v", "Cookie: c=d",
			"Proxy-Connection: keep-alive", "Upgrade: h2c", "Forwarded: for=1.2.3.4", "Accept-Encoding: gzip, br"}, more...)
	}
	c, long := l.dial(), strings.Repeat("x", 5000)
	for i, f := range [][]string{
		fields("Connection: keep-alive, X-Drop-Me", "X-Request-Id: "+l.tenant+"-123"),
		fields("X-Request-Id: "+long, "Connection: X-Drop-Me"),
		fields("X-Request-Id: "+l.tenant+"-124", "Connection: close"),
	} {
		c.post(body, f...)
		a := c.answer()
		text, err := io.ReadAll(a.Body)
		want := strings.Replace(strings.Join(scripted.S3(), ""), scripted.U(10, 3), "", 1)
		if err != nil || string(text) != want {
			t.Errorf("request %d: %q %v", i, text, err)
		}
		for _, name := range []string{"X-Internal", "Keep-Alive", "Set-Cookie", "Server"} {
			if v := a.Header.Get(name); v != "" {
				t.Errorf("request %d: the client sees %s: %s", i, name, v)
			}
		}
		if a.Header.Get("Content-Length") != "" || len(a.TransferEncoding) != 1 {
			t.Errorf("request %d: framing %v and Content-Length %q", i, a.TransferEncoding, a.Header.Get("Content-Length"))
		}
		id := a.Header.Get("X-Request-Id")
		if sent := strings.TrimPrefix(f[len(f)-2], "X-Request-Id: "); i == 1 && (id == long || len(id) != 32) || i == 2 && id != sent {
			t.Errorf("request %d: X-Request-Id %q", i, id)
		} else if i == 0 && id != l.tenant+"-123" {
			t.Errorf("request %d: X-Request-Id %q", i, id)
		}
		l.charged(l.line(id), "ok", "backend", 10, 3)
		q := l.requests()[i]
		if !strings.HasPrefix(q.ID(), id+"-") {
			t.Errorf("request %d: the engine got the id %q", i, q.ID())
		}
		if q.Told != int64(len(q.Body)) || !strings.Contains(string(q.Body), "include_usage") {
			t.Errorf("request %d: the engine was told %d bytes and got %q", i, q.Told, q.Body)
		}
		if a.Close != (i == 2) {
			t.Errorf("request %d: the connection closes: %v", i, a.Close)
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.in.ReadByte(); err != io.EOF {
		t.Errorf("the connection is still open: %v", err)
	}
	received := l.b[0].Received()
	for _, name := range []string{"x-drop-me", "keep-alive", "te:", "proxy-", "authorization", "cookie", "upgrade", "forwarded", "accept-encoding", strings.ToLower(l.key)} {
		for line := range strings.SplitSeq(received, "\r\n") {
			if strings.HasPrefix(strings.ToLower(line), "get ") || strings.HasPrefix(strings.ToLower(line), "accept-encoding: gzip") {
				continue
			}
			if strings.Contains(strings.ToLower(line), name) && !strings.HasPrefix(line, "{") {
				t.Errorf("the engine sees %q", line)
			}
		}
	}
	if strings.Contains(received, l.key) {
		t.Error("the engine sees the key")
	}
}

// TestHDR1_EachAttemptHasItsOwnID: an engine refuses an id that still runs.
func TestHDR1_EachAttemptHasItsOwnID(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 4)
	seen := map[string]bool{}
	for range 3 {
		l.play(nil, scripted.JSON(200, scripted.J(10, 3)))
		if a := fleet.Ask(t, l.Replicas[0].URL, l.key, l.req(), "X-Request-Id: "+l.tenant); a.Status != 200 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	for _, q := range l.requests() {
		if seen[q.ID()] || !strings.HasPrefix(q.ID(), l.tenant+"-") {
			t.Errorf("the engine got the id %q again", q.ID())
		}
		seen[q.ID()] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d attempts, want 6", len(seen))
	}
}

// TestHDR2_Credentials: the case's table and a few rows more.
func TestHDR2_Credentials(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4, "--name", "alpha", "--rpm", "1000", "--budget", "1/month")
	alpha, beta := l.key, l.Key("--tenant", l.tenant, "--name", "beta", "--models", l.model, "--rpm", "1000", "--budget", "1/month")
	basic := base64.StdEncoding.EncodeToString([]byte(alpha + ":"))
	swapped := strings.Map(func(c rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz", c) {
			return c - 'a' + 'A'
		}
		return c
	}, alpha)
	rows := []struct {
		fields []string
		status int
	}{
		{[]string{"Authorization: Bearer " + alpha}, 200},
		{[]string{"authorization: bearer " + alpha}, 200},
		{[]string{"Authorization: BEARER   " + alpha}, 200},
		{[]string{"X-Api-Key: " + alpha}, 200},
		{[]string{"x-api-key:" + alpha + " "}, 200},
		{[]string{"Authorization: Bearer " + alpha, "X-Api-Key: " + alpha}, 200},
		{[]string{"Authorization: Bearer " + alpha, "Authorization: bearer " + alpha}, 200},
		{[]string{"Authorization: Bearer " + swapped}, 401},
		{[]string{"Authorization: Bearer"}, 401},
		{[]string{"Authorization: Bearer "}, 401},
		{[]string{"Authorization: " + alpha}, 401},
		{[]string{"Authorization: Basic " + basic}, 401},
		{[]string{"X-Api-Key: Bearer " + alpha}, 401},
		{[]string{"X-Api-Key:"}, 401},
		{[]string{"Cookie: key=" + alpha}, 401},
		{[]string{"Authorization: Bearer " + alpha + "x"}, 401},
		{[]string{"Authorization: Bearer " + alpha[:len(alpha)-1]}, 401},
		{nil, 401},
		{[]string{"Authorization: Bearer " + alpha, "X-Api-Key: " + beta}, 400},
		{[]string{"Authorization: Bearer " + alpha, "Authorization: Bearer " + beta}, 400},
		{[]string{"X-Api-Key: " + alpha, "X-Api-Key: " + beta}, 400},
		{[]string{"Authorization: Bearer " + alpha, "Authorization: Bearer " + rand.Text() + rand.Text()}, 400},
	}
	served := 0
	for _, row := range rows {
		c, id := l.dial(), l.id()
		body := l.req()
		c.send(append(row.fields, "Content-Type: application/json", "X-Request-Id: "+id, "Content-Length: "+strconv.Itoa(len(body))), body)
		a := c.answer()
		text, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != row.status {
			t.Errorf("%q: %d %v, want %d: %s", row.fields, a.StatusCode, err, row.status, text)
		}
		line := l.line(id)
		if row.status == 200 {
			served++
			l.charged(line, "ok", "backend", 10, 3)
			continue
		}
		if line.Outcome != "rejected" || line.Status != row.status {
			t.Errorf("%q: %s", row.fields, line.Raw)
		}
		if !strings.Contains(string(text), `{"error":{"message":`) || (row.status == 401) != (a.Header.Get("WWW-Authenticate") == "Bearer") {
			t.Errorf("%q: %v %s", row.fields, a.Header, text)
		}
		secretless(t, string(text)+headerText(a.Header)+line.Raw, alpha, beta)
	}
	if n := len(l.requests()); n != served {
		t.Errorf("the engine was given %d requests, want %d", n, served)
	}
	if spent := l.books(); spent != int64(served)*38_000 {
		t.Errorf("spent %d, want %d", spent, served*38_000)
	}
	for _, r := range l.Replicas {
		secretless(t, r.Output(), alpha, beta)
	}
	for _, line := range l.Lines() {
		secretless(t, line.Raw, alpha, beta)
	}
	if n := l.counted(); n != served {
		t.Errorf("%d requests are counted against the keys' limits, want %d", n, served)
	}
}

func headerText(h http.Header) string {
	var out strings.Builder
	_ = h.Write(&out)
	return out.String()
}

// secretless fails if a key's secret part is in the text, plainly, in base64 or in hex.
func secretless(t *testing.T, text string, keys ...string) {
	t.Helper()
	for _, k := range keys {
		secret := k[strings.LastIndexByte(k, '-')+1:]
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(k))[:32], hex.EncodeToString([]byte(secret))} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
				t.Errorf("a secret is in %.500s", text)
			}
		}
	}
}

// TestHDR3_Browsers: the case's preflight, an error a page can read, and an origin that is not allowed.
func TestHDR3_Browsers(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	preflight := func(origin string) *http.Response {
		c := l.dial()
		_, _ = io.WriteString(c, "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nOrigin: "+origin+"\r\nAccess-Control-Request-Method: POST\r\n"+
			"Access-Control-Request-Headers: authorization,content-type,x-stainless-os,x-stainless-retry-count,x-stainless-timeout\r\n\r\n")
		return c.answer()
	}
	a := preflight("https://app.example")
	if a.StatusCode != 204 || a.Header.Get("Access-Control-Allow-Origin") != "https://app.example" || !listed(a.Header, "Vary", "Origin") ||
		!listed(a.Header, "Access-Control-Allow-Methods", "POST") {
		t.Errorf("preflight: %d %v", a.StatusCode, a.Header)
	}
	for _, name := range []string{"authorization", "content-type", "x-stainless-os", "x-stainless-retry-count", "x-stainless-timeout"} {
		if !listed(a.Header, "Access-Control-Allow-Headers", name) {
			t.Errorf("preflight: %s is not allowed: %v", name, a.Header)
		}
	}
	refused := fleet.Ask(t, l.Replicas[0].URL, "sk-wrong", l.req(), "Origin: https://app.example")
	if refused.Status != 401 || refused.Header.Get("Access-Control-Allow-Origin") != "https://app.example" ||
		!listed(refused.Header, "Access-Control-Expose-Headers", "Retry-After") || !listed(refused.Header, "Access-Control-Expose-Headers", "X-Request-Id") {
		t.Errorf("401: %d %v", refused.Status, refused.Header)
	}
	for _, origin := range []string{"https://evil.example", "https://app.example.evil.example", "http://app.example", "https://app.example:444", "null"} {
		if a := preflight(origin); a.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s is allowed: %v", origin, a.Header)
		}
	}
	served, line := l.ask(l.req(), "Origin: https://app.example")
	if served.Status != 200 || served.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("%d %v", served.Status, served.Header)
	}
	l.charged(line, "ok", "backend", 10, 3)
	if strings.Contains(l.b[0].Received(), "OPTIONS") || len(l.requests()) != 1 {
		t.Error("the engine saw more than the one request")
	}
	if spent := l.books(); spent != 38_000 {
		t.Errorf("spent %d, want 38000", spent)
	}
}

// listed reports whether a list field names the value, in any case.
func listed(h http.Header, field, value string) bool {
	for item := range strings.SplitSeq(strings.Join(h.Values(field), ","), ",") {
		if strings.EqualFold(strings.TrimSpace(item), value) {
			return true
		}
	}
	return false
}
