package ports

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

func TestAPortIsGivenOnce(t *testing.T) {
	seen := map[int]bool{}
	for range 3 * blockSize {
		port, err := Free()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port < firstPort || port >= lastPort {
			t.Fatalf("port %d: given before %v", port, seen[port])
		}
		seen[port] = true
		l, err := net.Listen("tcp4", Loopback(port))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

// The test binary runs itself: its children, while all of them run, are given ports side by side.
func TestTwoProcessesShareNoPort(t *testing.T) {
	const many = "PORTS_OF_A_CHILD"
	if os.Getenv(many) != "" {
		for range 2 * blockSize {
			port, err := Free()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println("port", port)
		}
		fmt.Println("done")
		_, _ = os.Stdin.Read(make([]byte, 1)) // holds its blocks until the parent has seen all
		return
	}
	seen := map[int]int{}
	for child := range 4 {
		c := exec.Command(os.Args[0], "-test.run", "^TestTwoProcessesShareNoPort$")
		c.Env = append(os.Environ(), many+"=1")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); _ = c.Wait() })
		var text bytes.Buffer
		for b := make([]byte, 4096); !bytes.Contains(text.Bytes(), []byte("done")); {
			n, err := out.Read(b)
			if err != nil {
				t.Fatalf("%v: %s", err, &text)
			}
			text.Write(b[:n])
		}
		for line := range bytes.Lines(text.Bytes()) {
			port, err := strconv.Atoi(string(bytes.TrimSpace(bytes.TrimPrefix(line, []byte("port ")))))
			if err != nil {
				continue
			}
			if other, twice := seen[port]; twice {
				t.Errorf("port %d was given to child %d and to child %d", port, other, child)
			}
			seen[port] = child
		}
	}
	if len(seen) < 4*2*blockSize {
		t.Errorf("%d ports in all", len(seen))
	}
}
