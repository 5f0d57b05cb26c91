package gateway

import (
	"net"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// engineSocketState is what an idle socket shows without reading it.
type engineSocketState uint8

const (
	engineQuiet engineSocketState = iota // nothing to read
	engineSpoke                          // bytes are there
	engineGone                           // ended or broken
)

// engineSocket asks the kernel about a TCP connection. The closures are made once per connection.
type engineSocket struct {
	raw      syscall.RawConn
	lookFn   func(fd uintptr)
	ackedFn  func(fd uintptr)
	state    engineSocketState
	ackedSum int64
	ackedOK  bool
	patience time.Duration // as set; 0 = the kernel's, a quarter of an hour

	inbox engineInbox
}

func (s *engineSocket) open(c *net.TCPConn) (err error) {
	s.raw, err = c.SyscallConn()
	s.lookFn, s.ackedFn = s.lookAt, s.ackedAt
	if err == nil {
		s.inbox.open(s.raw)
	}
	return err
}

// giveUpAfter has the kernel end the connection when the other side acknowledged nothing for so long. A kernel that cannot is
// as patient as before.
func (s *engineSocket) giveUpAfter(d time.Duration) {
	if s.patience == d {
		return
	}
	s.patience = d
	_ = s.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// look peeks without blocking: one system call, no deadline involved.
func (s *engineSocket) look() engineSocketState {
	s.state = engineGone
	if err := s.raw.Control(s.lookFn); err != nil {
		return engineGone
	}
	return s.state
}

func (s *engineSocket) lookAt(fd uintptr) {
	var b [1]byte
	for {
		n, _, e := unix.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b[0])), 1,
			unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.EAGAIN:
			s.state = engineQuiet
		case e == 0 && n > 0:
			s.state = engineSpoke
		}
		return
	}
}

// acked returns the bytes acknowledged by the peer's kernel since the start. It also works after a reset.
func (s *engineSocket) acked() (n int64, known bool) {
	s.ackedOK = false
	if err := s.raw.Control(s.ackedFn); err != nil {
		return 0, false
	}
	return s.ackedSum, s.ackedOK
}

func (s *engineSocket) ackedAt(fd uintptr) {
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.Bytes_acked == 0 { // the connect itself counts one: 0 = a kernel before 4.1
		return
	}
	s.ackedSum, s.ackedOK = int64(info.Bytes_acked)-1, true
}
