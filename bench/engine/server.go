package engine

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/headgate/headgate/bench/ports"
)

// Server is an Engine with a port of its own.
type Server struct {
	*Engine
	Addr string // host:port
	URL  string // http://host:port

	http   *http.Server
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	closed   bool
}

// keepAlive is when vLLM's server closes an idle connection.
const keepAlive = 5 * time.Second

// Start builds an engine, listens and serves until Close.
func Start(opts Options) (*Server, error) {
	e, err := New(opts)
	if err != nil {
		return nil, err
	}
	addr := e.opts.Listen
	if addr == "" {
		if addr, err = ports.Addr(); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		Engine: e,
		Addr:   l.Addr().String(),
		URL:    "http://" + l.Addr().String(),
		http:   &http.Server{Handler: e, IdleTimeout: keepAlive},
		cancel: cancel,
	}
	e.refuse = s.setRefused
	s.tasks.Go(func() { e.Run(ctx) })
	s.serve(l)
	return s, nil
}

// Close ends everything at once, like kill -9: open streams are cut.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	err := s.http.Close()
	s.cancel()
	s.tasks.Wait()
	return err
}

func (s *Server) serve(l net.Listener) {
	s.listener = l
	s.tasks.Go(func() { s.http.Serve(l) })
}

func (s *Server) setRefused(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errors.New("engine: closed")
	case on && s.listener != nil:
		s.listener.Close()
		s.listener = nil
		s.http.SetKeepAlivesEnabled(false) // closes idle connections; open streams go on
	case !on && s.listener == nil:
		l, err := net.Listen("tcp", s.Addr)
		if err != nil {
			return err
		}
		s.http.SetKeepAlivesEnabled(true)
		s.serve(l)
	}
	return nil
}
