package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// ask sends one command over a connection of its own and returns the reply as text: bulk and simple strings and integers
// as they are, the elements of an array on lines. It is for the lab's own questions, not for the code under test.
func ask(addr string, args ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return "", err
	}
	return readReply(bufio.NewReader(conn))
}

func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", errors.New("lab: empty reply line")
	}
	switch kind, rest := line[0], line[1:]; kind {
	case '-':
		return "", errors.New(rest)
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		text := make([]byte, n+2)
		_, err = io.ReadFull(r, text)
		return string(text[:n]), err
	case '*':
		n, err := strconv.Atoi(rest)
		if err != nil {
			return "", err
		}
		var lines []string
		for range n {
			item, err := readReply(r)
			if err != nil {
				return "", err
			}
			lines = append(lines, item)
		}
		return strings.Join(lines, "\n"), nil
	default:
		return rest, nil
	}
}
