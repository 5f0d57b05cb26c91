package lab

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports come from below the range the system takes for outgoing connections (32768 and up on Linux), so that no client of
// another test sits on one between the moment it was found free and the moment the server binds it.
const (
	firstPort = 11000
	lastPort  = 32000
)

var ports struct {
	mu   sync.Mutex
	next int
}

// FreePort returns a port for a listener that the lab does not start itself: a second one of a server, say. What is said of
// freePort holds.
func FreePort(t testing.TB) int { return freePort(t) }

// freePort returns a port nobody listened on just now. Another test binary may still be faster: whoever starts a server
// checks that it is its own which answers, and tries again with another port.
func freePort(t testing.TB) int {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.next == 0 {
		ports.next = firstPort + rand.IntN(lastPort-firstPort)
	}
	for range lastPort - firstPort {
		port := ports.next
		if ports.next++; ports.next > lastPort {
			ports.next = firstPort
		}
		l, err := net.Listen("tcp4", loopback(port))
		if err != nil {
			continue
		}
		l.Close()
		return port
	}
	t.Fatalf("lab: no free port between %d and %d", firstPort, lastPort)
	return 0
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
