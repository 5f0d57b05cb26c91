package admin

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// TestReadinessIsToldOncePerChange: A5.
func TestReadinessIsToldOncePerChange(t *testing.T) {
	var redis, eviction, announcements error
	var log bytes.Buffer
	m := NewMetrics(Sources{})
	s := New(Config{Checks: []Check{
		{Name: "redis", Ready: func(context.Context) error { return redis }},
		{Name: "eviction_policy", Needs: "redis", Ready: func(context.Context) error { return eviction }},
		{Name: "announcements", Needs: "redis", Mild: true, Ready: func(context.Context) error { return announcements }},
	}}, m, zerolog.New(&log))
	var names []string
	look := func(ready, want string) {
		t.Helper()
		log.Reset()
		names = s.look(t.Context(), names)
		if n := strings.Count(log.String(), "\n"); want == "" && n != 0 || want != "" && (n != 1 || !strings.Contains(log.String(), want)) {
			t.Fatalf("told %q, want %q once", log.String(), want)
		}
		shows(t, s, "headgate_ready "+ready)
		if fault := s.Fault(); (fault == nil) != (ready == "1") {
			t.Fatalf("ready %s, but the fault is %v", ready, fault)
		}
	}
	if s.Fault() == nil {
		t.Fatal("no fault before the first look")
	}
	redis = errors.New("gone")
	look("0", `"level":"info","redis":"gone","message":"not ready yet"`)
	look("0", "")
	if text := shows(t, s, `headgate_check_up{check="redis"} 0`); strings.Contains(text, `check="eviction_policy"`) {
		t.Fatal("something is known of eviction while redis is gone")
	}
	redis, eviction = nil, errors.New("evicts")
	look("0", `"eviction_policy":"evicts","message":"not ready"`)
	eviction = nil
	look("1", `"message":"ready"`)
	look("1", "")
	shows(t, s, `headgate_check_up{check="redis"} 1`)
	shows(t, s, `headgate_check_up{check="eviction_policy"} 1`)
	announcements = errors.New("unheard") // whose part it is says so in the log
	look("1", "")
	shows(t, s, `headgate_check_up{check="announcements"} 0`)
	s.Drain()
	shows(t, s, "headgate_ready 0")
	look("0", "")
}

// shows returns the metrics and fails without the line.
func shows(t *testing.T, s *Server, line string) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(w.Body.String(), line+"\n") {
		t.Fatalf("metrics lack %s", line)
	}
	return w.Body.String()
}
