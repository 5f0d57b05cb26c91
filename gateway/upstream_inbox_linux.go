package gateway

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// engineInbox reads a connection into memory that is lent to it only for as long as a system call takes. It asks the kernel to
// tell with each read whether there is more, so that no read is made only to find that there is nothing.
type engineInbox struct {
	raw    syscall.RawConn
	readFn func(fd uintptr) bool
	reader engineReader // of the receive that goes on

	message unix.Msghdr
	piece   unix.Iovec
	told    struct { // by the kernel, as laid out by it
		unix.Cmsghdr
		left int32 // bytes behind those that were read; 1 also for the end of the connection
		_    int32
	}
}

func (x *engineInbox) open(raw syscall.RawConn) {
	x.raw, x.readFn = raw, x.readAt
	_ = raw.Control(func(fd uintptr) { // before Linux 4.18 nothing is told, and the next read looks
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_INQ, 1)
	})
}

// receive reads until the reader wants no more. It returns early, with an error, at the deadline and when the connection
// is closed here.
func (s *engineSocket) receive(_ *net.TCPConn, r engineReader) error {
	s.inbox.reader = r
	err := s.inbox.raw.Read(s.inbox.readFn)
	s.inbox.reader = nil
	return err
}

// readAt is called at once, and then each time the kernel has announced something; true ends that.
func (x *engineInbox) readAt(fd uintptr) (done bool) {
	for {
		n, more, errno := x.read(fd, x.reader.lend())
		var err error
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			x.reader.takeBack()
			return false
		case errno != 0:
			err = os.NewSyscallError("recvmsg", errno)
		case n == 0:
			err = io.EOF
		}
		if !x.reader.took(n, err) {
			return true
		}
		if !more {
			x.reader.takeBack()
			return false
		}
	}
}

// read is one system call. more is true unless the kernel said that it has handed over all.
func (x *engineInbox) read(fd uintptr, b []byte) (n int, more bool, errno syscall.Errno) {
	x.piece.Base = &b[0]
	x.piece.SetLen(len(b))
	x.message = unix.Msghdr{Iov: &x.piece, Control: (*byte)(unsafe.Pointer(&x.told))}
	x.message.SetIovlen(1)
	x.message.SetControllen(int(unsafe.Sizeof(x.told)))
	r, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&x.message)), unix.MSG_DONTWAIT)
	x.piece.Base = nil
	if errno != 0 {
		return 0, false, errno
	}
	told := x.message.Controllen > 0 && x.told.Level == unix.IPPROTO_TCP && x.told.Type == unix.TCP_CM_INQ
	return int(r), !told || x.told.left > 0, 0
}
