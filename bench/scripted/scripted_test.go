package scripted_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/scripted"
)

const patience = 10 * time.Second

func dial(t *testing.T, s *scripted.Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func TestBytesAreTheScripts(t *testing.T) { // I1
	t.Parallel()
	s := scripted.Start(t)
	s.Play(scripted.Begin(scripted.S3()...).Then(scripted.Pause(time.Millisecond), scripted.Write("odd"), scripted.Close()))
	c := dial(t, s)
	send(t, c, "POST /x HTTP/1.1\r\nX-Request-Id: a-b-2\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n")
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	want := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, e := range scripted.S3() {
		want += chunked(e)
	}
	if string(got) != want+"odd" {
		t.Errorf("got\n%q\nwant\n%q", got, want+"odd")
	}
	q := s.Requests()[0]
	if !q.GoneAt().IsZero() {
		t.Error("we closed, and it counts as the peer's leaving")
	}
	if string(q.Body) != "abcd" || q.Told != -1 || q.Attempt() != 2 || q.Method != "POST" || q.Target != "/x" || q.Written() != int64(len(want)+3) {
		t.Errorf("%s %s, body %q of %d, attempt %d, %d written", q.Method, q.Target, q.Body, q.Told, q.Attempt(), q.Written())
	}
}

func chunked(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

func TestReceivedIsEverything(t *testing.T) { // I2
	t.Parallel()
	s := scripted.Start(t, "m")
	first := "POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
	c := dial(t, s)
	in := bufio.NewReader(c)
	for range 2 { // kept alive
		send(t, c, first)
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != scripted.J(10, 3) {
			t.Fatalf("%s %v", body, err)
		}
	}
	send(t, c, "half of a")
	for _, path := range []string{"/health", "/metrics", "/v1/models"} {
		answer, err := http.Get("http://" + s.Addr + path)
		if err != nil || answer.StatusCode != 200 {
			t.Fatalf("%s: %v %v", path, answer, err)
		}
		answer.Body.Close()
	}
	if n := len(s.Requests()); n != 2 {
		t.Errorf("%d requests for the script, want 2", n)
	}
	want := first + first + "half of a"
	for deadline := time.Now().Add(patience); !strings.HasPrefix(s.Received(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("received %q", s.Received())
		}
	}
}

func TestAPeerThatLeavesIsNoticed(t *testing.T) { // I3
	t.Parallel()
	s := scripted.Start(t)
	after := make(chan struct{})
	s.Play(scripted.Script{scripted.StreamHead(), scripted.Hang(), scripted.Do(func() { close(after) })})
	c := dial(t, s)
	send(t, c, "POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
	if _, err := io.ReadFull(c, make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	q := s.Requests()[0]
	if !q.GoneAt().IsZero() {
		t.Error("gone although it is there")
	}
	c.Close()
	select {
	case <-q.Gone():
	case <-time.After(patience):
		t.Fatal("not noticed")
	}
	if q.GoneAt().IsZero() {
		t.Error("no time")
	}
	select {
	case <-after:
		t.Error("the script went on")
	default:
	}
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	s := scripted.Start(t)
	s.SetIdleClose(30 * time.Millisecond)
	c := dial(t, s)
	send(t, c, "POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
	if got, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(got), scripted.J(10, 3)) {
		t.Errorf("%q %v", got, err)
	}
}

func TestRefuseAndBegin(t *testing.T) {
	t.Parallel()
	s := scripted.Start(t)
	for range 3 {
		c := dial(t, s)
		send(t, c, "POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
		if _, err := io.ReadFull(c, make([]byte, 20)); err != nil {
			t.Fatal(err)
		}
		if err := s.Refuse(true); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("an open connection ends with %v", err)
		}
		if late, err := net.Dial("tcp", s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialled %v, %v", late, err)
		}
		if err := s.Refuse(false); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLateClose(t *testing.T) {
	t.Parallel()
	s := scripted.Start(t)
	s.SetLateClose(true)
	c := dial(t, s)
	in := bufio.NewReader(c)
	send(t, c, "POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	send(t, c, "POST /b HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
	if _, err := in.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the second request sees %v, want a reset", err)
	}
	if n := len(s.Requests()); n != 1 {
		t.Errorf("%d requests were read", n)
	}
}
