package scripted

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// Refuse ends the server as kill -9 does, with all connections, and begins it anew. Meanwhile connections are refused, and
// nobody else gets the port: it is bound, but nothing listens there.
func (s *Server) Refuse(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || on == (s.bound != nil) {
		return nil
	}
	if on {
		s.listener.Close()
		for _, c := range s.conns {
			c.tcp.SetLinger(0)
			c.tcp.Close()
		}
		var err error
		s.bound, err = bind(s.Addr)
		for end := time.Now().Add(time.Second); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // a process that is being started holds a copy of the listener until it has begun
			s.bound, err = bind(s.Addr)
		}
		return err
	}
	defer func() { s.bound.Close(); s.bound = nil }()
	if err := syscall.Listen(int(s.bound.Fd()), 128); err != nil {
		return err
	}
	l, err := net.FileListener(s.bound)
	if err != nil {
		return err
	}
	s.listener = l
	s.serving.Go(func() { s.accept(l) })
	return nil
}

// bind takes a port of IPv4 without listening.
func bind(addr string) (*os.File, error) {
	tcp, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	to := &syscall.SockaddrInet4{Port: tcp.Port}
	copy(to.Addr[:], tcp.IP.To4())
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, to)
	}
	if err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("bind %s: %w", addr, err)
	}
	return os.NewFile(uintptr(fd), addr), nil
}
