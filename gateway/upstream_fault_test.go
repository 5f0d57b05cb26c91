package gateway

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

// What the kernel says when this side has no socket left is told from what an engine did.
func TestOurOwnShortageIsNoEnginesFault(t *testing.T) {
	t.Parallel()
	dial := func(err syscall.Errno) error {
		return fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", err)})
	}
	for err, ours := range map[syscall.Errno]bool{syscall.EMFILE: true, syscall.ENFILE: true, syscall.EADDRNOTAVAIL: true, syscall.ENOBUFS: true,
		syscall.ECONNREFUSED: false, syscall.ETIMEDOUT: false, syscall.EHOSTUNREACH: false} {
		if got := shortOfSockets(dial(err)); got != ours {
			t.Errorf("%v: ours %v", err, got)
		}
	}
}
