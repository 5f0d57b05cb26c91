package load

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// poller is an epoll instance and the sockets in it. One goroutine uses it.
type poller struct {
	fd     int
	events []syscall.EpollEvent
	socks  []*socket // by file descriptor
}

// socket is one connection: what is still to be written, and whom to tell.
type socket struct {
	fd      int
	rest    []byte // not yet taken by the kernel; nil: nothing
	ready   func(s *socket)
	waiting bool // asked to be told when it can be written
}

func newPoller() (*poller, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &poller{fd: fd, events: make([]syscall.EpollEvent, 1024)}, nil
}

// add watches s for bytes, and from now on owns its file descriptor.
func (p *poller) add(s *socket) error {
	for len(p.socks) <= s.fd {
		p.socks = append(p.socks, nil)
	}
	p.socks[s.fd] = s
	return syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_ADD, s.fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(s.fd)})
}

// wait runs what is ready, and returns after at most d.
func (p *poller) wait(d time.Duration) error {
	n, err := syscall.EpollWait(p.fd, p.events, int(d.Milliseconds()))
	if err == syscall.EINTR {
		return nil
	}
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	for _, e := range p.events[:n] {
		s := p.socks[e.Fd]
		if s == nil {
			continue // closed by one before it
		}
		if e.Events&syscall.EPOLLOUT != 0 && s.rest != nil {
			p.write(s, nil)
		}
		if e.Events&^syscall.EPOLLOUT != 0 {
			s.ready(s)
		}
	}
	return nil
}

// write hands b on behind what is not yet written; it keeps b until the kernel took it. An error shows at the next read.
func (p *poller) write(s *socket, b []byte) {
	if s.rest != nil {
		s.rest = append(s.rest[:len(s.rest):len(s.rest)], b...)
		b = s.rest
	}
	for len(b) > 0 {
		n, err := syscall.Write(s.fd, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			if err != syscall.EAGAIN {
				b = nil
			}
			break
		}
		b = b[n:]
	}
	s.rest = b
	if len(b) == 0 {
		s.rest = nil
	}
	if want := s.rest != nil; want != s.waiting {
		s.waiting = want
		events := uint32(syscall.EPOLLIN)
		if want {
			events |= syscall.EPOLLOUT
		}
		_ = syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_MOD, s.fd, &syscall.EpollEvent{Events: events, Fd: int32(s.fd)})
	}
}

// close ends the connection; with reset at once and without the port's minute of rest.
func (p *poller) close(s *socket, reset bool) {
	if s.fd < 0 {
		return
	}
	if reset {
		_ = syscall.SetsockoptLinger(s.fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	}
	p.socks[s.fd] = nil
	_ = syscall.Close(s.fd)
	s.fd, s.rest = -1, nil
}

// free closes everything.
func (p *poller) free() {
	for _, s := range p.socks {
		if s != nil {
			p.close(s, true)
		}
	}
	_ = syscall.Close(p.fd)
}

// connect begins a connection to addr; writing waits until it stands.
func connect(addr netip.AddrPort) (fd int, err error) {
	fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	err = syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()})
	if err != nil && err != syscall.EINPROGRESS {
		_ = syscall.Close(fd)
		return -1, fmt.Errorf("connect %v: %w", addr, err)
	}
	return fd, nil
}

// listen takes a free port of the loopback interface.
func listen() (fd, port int, err error) {
	fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("socket: %w", err)
	}
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = syscall.Listen(fd, 16384)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return -1, 0, fmt.Errorf("listen: %w", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return -1, 0, fmt.Errorf("listen: %w", err)
	}
	return fd, name.(*syscall.SockaddrInet4).Port, nil
}
