// Package ports gives out TCP ports of the loopback to servers that tests and benches start, stop and start again.
//
// They come from below the range the system takes for outgoing connections (32768 and up on Linux), so that no client sits
// on one while its server is away. Each process has blocks of its own, which it holds by listening on the first port of each.
//
// Invariants:
//
//	I1. No two processes are given the same port while both run (TestTwoProcessesShareNoPort).
//	I2. A port is given once per process, and nobody listened on it when it was (TestAPortIsGivenOnce).
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const (
	firstPort = 11000
	lastPort  = 32000
	blockSize = 100
)

var given struct {
	mu      sync.Mutex
	next    int
	end     int // of the block; next == end: another block is needed
	holders []net.Listener
}

// Free returns a port of 127.0.0.1 that stays this process's to listen on, as often as it likes, until it ends.
func Free() (int, error) {
	given.mu.Lock()
	defer given.mu.Unlock()
	for {
		if given.next == given.end {
			if err := claim(); err != nil {
				return 0, err
			}
		}
		port := given.next
		given.next++
		if !taken(port) {
			return port, nil
		}
	}
}

// Addr is Free as host:port.
func Addr() (string, error) {
	port, err := Free()
	return Loopback(port), err
}

// Loopback is 127.0.0.1:port.
func Loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// claim takes the next block nobody holds, beginning anywhere: processes that start together seldom meet.
func claim() error {
	const blocks = (lastPort - firstPort) / blockSize
	begin := rand.IntN(blocks)
	for i := range blocks {
		first := firstPort + (begin+i)%blocks*blockSize
		if l, err := listen(first); err == nil {
			given.holders = append(given.holders, l) // until the process ends
			given.next, given.end = first+1, first+blockSize
			return nil
		}
	}
	return errors.New("ports: every block of ports is held by somebody")
}

// taken tells a server from elsewhere that stands inside the block. It is asked for, not listened beside: a process that is
// being started by another goroutine keeps a copy of every listener open for a moment after it was closed.
func taken(port int) bool {
	c, err := net.DialTimeout("tcp4", Loopback(port), time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func listen(port int) (net.Listener, error) { return net.Listen("tcp4", Loopback(port)) }
