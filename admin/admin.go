// Package admin is the second port: whether the process lives, whether it should get requests, its metrics, and what the
// pools can do and have to do.
//
// Invariants:
//
//	A1. /livez and /readyz are open to everybody and tell no secret; everything else needs the token, where there is one.
//	A2. /readyz names everything that is not ready, and answers within checkTime whatever hangs.
//	A3. What clients send makes no new time series: labels come from routes, the catalogue and the backends.
//	A4. What is not there yet is a 404 in JSON.
//	A5. A change of what is not ready is one line in the log, naming it; what goes on is none.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/coordinator"
)

// checkTime bounds one /readyz: load balancers ask every second or two and give up soon.
const checkTime = time.Second

// Check is one condition of being ready.
type Check struct {
	Name  string
	Ready func(context.Context) error // nil: ready; the text of the error is shown
	Needs string                      // the check without which this one says nothing: while that fails this one is left out
	Mild  bool                        // its failing is shown as a warning, and the replica is ready all the same
}

// Config of the admin port.
type Config struct {
	Token  string // "": none needed; config allows that on loopback addresses only
	Checks []Check
	Watch  time.Duration // how long Watch gives all checks together where that is more than checkTime

	Capacity func() []coordinator.Capacity // must not block; nil: /capacity is not there
}

// Server answers on the admin port.
type Server struct {
	cfg      Config
	token    [sha256.Size]byte
	mux      *http.ServeMux
	draining atomic.Bool
	failing  atomic.Pointer[[]string] // names, as Watch saw them last; nil: it has not looked yet
	metrics  *Metrics
	log      zerolog.Logger
}

// New returns a server that shows metrics.
func New(cfg Config, metrics *Metrics, log zerolog.Logger) *Server {
	s := &Server{cfg: cfg, token: sha256.Sum256([]byte(cfg.Token)), mux: http.NewServeMux(), metrics: metrics, log: log}
	s.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]bool{"live": true})
	})
	s.mux.HandleFunc("GET /readyz", s.ready)
	s.mux.Handle("GET /metrics", s.guard(metrics.handler()))
	if cfg.Capacity != nil {
		s.mux.Handle("GET /capacity", s.guard(http.HandlerFunc(s.capacity)))
	}
	s.mux.Handle("/", s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "not_found_error", "route_not_found", "there is nothing at "+r.Method+" "+r.URL.Path)
	})))
	return s
}

// Drain makes the replica not ready from now on.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.metrics.ready.Set(0)
}

// Handler is the admin port without its listener.
func (s *Server) Handler() http.Handler { return s.mux }

// Serve answers on l until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: s.mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ready runs all checks at once. // A2
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTime)
	defer cancel()
	faults, warnings := s.faults(ctx)
	if s.draining.Load() {
		faults["draining"] = "this replica is shutting down"
	}
	status := http.StatusOK
	if len(faults) > 0 {
		status = http.StatusServiceUnavailable
	}
	reply(w, status, struct {
		Ready    bool              `json:"ready"`
		NotReady map[string]string `json:"not_ready"`
		Warnings map[string]string `json:"warnings,omitempty"`
	}{len(faults) == 0, faults, warnings})
}

// faults returns what is not ready, and what else is amiss, by name. A check that does not answer in time is a fault; it is
// left behind.
func (s *Server) faults(ctx context.Context) (faults, warnings map[string]string) {
	var mu sync.Mutex
	open := map[string]string{}
	for _, c := range s.cfg.Checks {
		open[c.Name] = "no answer in time"
	}
	var wg sync.WaitGroup
	for _, c := range s.cfg.Checks {
		wg.Go(func() {
			err := c.Ready(ctx)
			mu.Lock()
			defer mu.Unlock()
			if delete(open, c.Name); err != nil {
				open[c.Name] = err.Error()
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	faults, warnings = map[string]string{}, map[string]string{}
	for _, c := range s.cfg.Checks {
		text, fails := open[c.Name]
		switch _, moot := open[c.Needs]; {
		case !fails || moot:
		case c.Mild:
			warnings[c.Name] = text
		default:
			faults[c.Name] = text
		}
	}
	return faults, warnings
}

// guard lets a request pass that has the token. // A1
func (s *Server) guard(next http.Handler) http.Handler {
	if s.cfg.Token == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		given := sha256.Sum256([]byte(token)) // equal lengths, so that the time tells nothing
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(given[:], s.token[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, http.StatusUnauthorized, "authentication_error", "invalid_admin_token", "this needs Authorization: Bearer and the token of HG_ADMIN_TOKEN")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func fail(w http.ResponseWriter, status int, kind, code, message string) {
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	reply(w, status, map[string]body{"error": {Message: message, Type: kind, Code: code}})
}

func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}
