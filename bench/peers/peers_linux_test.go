package peers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/load"
)

// TestPeers: each nginx passes answers and streams whole, keeps out a wrong key, asks the engine for usage where it does the
// gateway's work, and writes it down; what is left of it ends with the site. I1, I2, I3
func TestPeers(t *testing.T) {
	t.Parallel()
	e, err := load.NewEngine(2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	defer func() { cancel(); <-done }()
	s := &Site{Key: "sk-acme-" + strings.Repeat("k", 32)}
	for _, port := range e.Ports {
		s.Engines = append(s.Engines, fmt.Sprintf("127.0.0.1:%d", port))
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	kinds := []string{Bare}
	if _, err := nginxModules(Lua); err == nil { // where the module is not installed there is nothing to hold
		redis, err := s.RedisServer(false)
		if err != nil {
			t.Fatal(err)
		}
		s.Redis = redis.Addr.String()
		kinds = append(kinds, Lua, LuaRedis)
	}
	var started []*Process
	for _, kind := range kinds {
		p, err := s.Nginx(kind)
		if err != nil {
			t.Fatal(err)
		}
		started = append(started, p)
		s.holds(t, kind, p.Addr)
	}
	s.Close()
	for _, p := range started {
		if p.Alive() || syscall.Kill(p.PID, 0) == nil {
			t.Errorf("%s still runs", p.Name)
		}
	}
}

func (s *Site) holds(t *testing.T, kind string, at netip.AddrPort) {
	t.Helper()
	engine := "http://" + s.Engines[0]
	if err := load.Tell(engine, load.Plan{Tokens: 5}); err != nil {
		t.Fatal(err)
	}
	before, _ := load.AskStats(engine)
	for _, ask := range []load.Ask{{Key: s.Key, Bytes: 300, Tokens: 10}, {Key: s.Key, Bytes: 100_000, Stream: true, Tokens: 10}} {
		job := load.Job{Addr: at, Requests: [][]byte{ask.Wire()}, Clients: 3, Warm: 50 * time.Millisecond, Window: 200 * time.Millisecond}
		for served, end := 0, time.Now().Add(20*time.Second); served < 3; { // one window may pass while others have the processor
			out, err := load.Run(job)
			if served += out.Served; err != nil || out.Errors > 0 || time.Now().After(end) {
				t.Fatalf("%s: %v, %v", kind, out, err)
			}
		}
	}
	after, err := load.AskStats(engine)
	if streams := after.Streams - before.Streams; err != nil || streams == 0 || (kind != Bare) != (after.AskedUsage-before.AskedUsage == streams) {
		t.Errorf("%s: the engine had %+v after %+v, %v", kind, after, before, err)
	}
	request, _ := http.NewRequestWithContext(t.Context(), "POST", "http://"+at.String()+"/v1/chat/completions", strings.NewReader(`{"model":"qwen-7b","messages":[]}`))
	request.Header.Set("Authorization", "Bearer sk-acme-"+strings.Repeat("x", 32))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	if answer.StatusCode != 401 {
		t.Errorf("%s: a wrong key got %d", kind, answer.StatusCode)
	}
	if kind == Bare {
		return
	}
	const line = `"prompt_tokens":25000,"cached_tokens":0,"completion_tokens":100,"usage_source":"backend"`
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if text, _ := os.ReadFile(s.UsageLog(kind)); strings.Contains(string(text), line) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: no usage line with the engine's figures", kind)
		}
	}
}
