package lab

import (
	"testing"

	"github.com/headgate/headgate/bench/ports"
)

// FreePort returns a port of 127.0.0.1 for a listener that the lab does not start itself. It stays the test binary's until it ends.
func FreePort(t testing.TB) int { return freePort(t) }

// FreeAddr is FreePort as host:port.
func FreeAddr(t testing.TB) string { return loopback(freePort(t)) }

// freePort returns a port nobody else is given.
func freePort(t testing.TB) int {
	t.Helper()
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func loopback(port int) string { return ports.Loopback(port) }
