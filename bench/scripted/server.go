// Package scripted stands in for an engine where a test must say which bytes go out, when, and how the connection ends.
// It speaks HTTP/1.1 over raw TCP: no library fills in a header, joins two writes or tidies up an end. Every request is
// kept as it came, with the moment its peer left. GET /health, /metrics and /v1/models are answered like an engine's;
// everything else is given to the script. Only tests use it.
//
// Invariants:
//
//	I1. Each step's bytes go out in one write, in the script's order, and nothing else does (TestBytesAreTheScripts).
//	I2. Received is every byte of every connection, also what was no request (TestReceivedIsEverything).
//	I3. A peer that leaves ends the script at its next step and is noticed at once, also during a pause
//	    (TestAPeerThatLeavesIsNoticed).
package scripted

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/ports"
)

// Server is one scripted engine. It is safe for concurrent use.
type Server struct {
	Addr string // host:port

	listener net.Listener
	models   []string

	mu        sync.Mutex
	answer    func(*Request) Script
	requests  []*Request
	conns     []*conn
	health    int
	running   int
	waiting   int
	idleClose time.Duration
	lateClose bool
	closed    bool
	bound     *os.File // the port, while connections are refused
	serving   sync.WaitGroup
}

// Start listens on a free port of 127.0.0.1 until the test ends. Without an Answer it answers J(10,3).
func Start(t testing.TB, models ...string) *Server {
	t.Helper()
	addr, err := ports.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return StartOn(t, addr, models...)
}

// StartOn is Start on an address.
func StartOn(t testing.TB, addr string, models ...string) *Server {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: l.Addr().String(), listener: l, models: models, health: 200}
	s.Answer(func(*Request) Script { return JSON(200, J(10, 3)) })
	s.serving.Go(func() { s.accept(l) })
	t.Cleanup(s.close)
	return s
}

// Answer sets what is played for each request from now on. fn is called when the whole request is there; it may be
// called by several connections at once. A nil script is a hang-up without a byte.
func (s *Server) Answer(fn func(*Request) Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = fn
}

// Play answers every request with one script.
func (s *Server) Play(script Script) { s.Answer(func(*Request) Script { return script }) }

// SetHealth sets the status of GET /health; 200 at first.
func (s *Server) SetHealth(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = status
}

// SetLoad sets what /metrics shows as running and waiting; 0 at first.
func (s *Server) SetLoad(running, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.waiting = running, waiting
}

// SetIdleClose closes connections that have waited d for their next request, without another read: what comes at that
// moment stays unread, as with a real server. It holds for waits that begin from now on; 0 = never.
func (s *Server) SetIdleClose(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idleClose = d
}

// SetLateClose makes every connection carry one request only: the next one that is sent on it finds it closed at that very
// moment, unread, which its sender sees as a reset. It holds for answers that end from now on.
func (s *Server) SetLateClose(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lateClose = on
}

// Requests are those that were given to a script so far, in the order of their last byte.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Request(nil), s.requests...)
}

// Received is every byte of every connection so far, one connection after the other.
func (s *Server) Received() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all strings.Builder
	for _, c := range s.conns {
		all.Write(c.received())
	}
	return all.String()
}

func (s *Server) accept(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		c := newConn(s, nc.(*net.TCPConn))
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			nc.Close()
			return
		}
		s.conns = append(s.conns, c)
		s.serving.Go(c.read)
		s.serving.Go(c.serve)
		s.mu.Unlock()
	}
}

func (s *Server) close() {
	s.mu.Lock()
	s.closed = true
	s.listener.Close()
	if s.bound != nil {
		s.bound.Close()
	}
	for _, c := range s.conns {
		c.tcp.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

// script chooses what is played for a request, and files it unless it is one of an engine's own pages.
func (s *Server) script(q *Request) Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, _, _ := strings.Cut(q.Target, "?")
	switch {
	case q.Method != "GET":
	case path == "/health":
		return Script{Write("HTTP/1.1 " + strconv.Itoa(s.health) + " Health\r\nContent-Length: 0\r\n\r\n")}
	case path == "/v1/models":
		return JSON(200, listing(s.models))
	case path == "/metrics":
		return Answer(200, "text/plain; version=0.0.4", fmt.Sprintf("vllm:num_requests_running %d\nvllm:num_requests_waiting %d\n", s.running, s.waiting))
	}
	s.requests = append(s.requests, q)
	answer := s.answer
	s.mu.Unlock()
	defer s.mu.Lock()
	return answer(q)
}

func listing(models []string) string {
	var items []string
	for _, m := range models {
		items = append(items, fmt.Sprintf(`{"id":%q,"object":"model","created":1,"owned_by":"vllm","max_model_len":8192}`, m))
	}
	return `{"object":"list","data":[` + strings.Join(items, ",") + `]}`
}
