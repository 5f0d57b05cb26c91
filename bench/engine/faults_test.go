package engine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

const streamed = `{"prompt":"x","max_tokens":10,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`

func TestFaults(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	count := func(body string) int { return strings.Count(body, `"text":"`) }
	for _, c := range []struct {
		fault Fault
		check func(status int, body string, err error) bool
	}{
		{Fault{Kind: "500"}, func(status int, body string, err error) bool {
			return status == 500 && strings.Contains(body, `"code":500`) && err == nil
		}},
		{Fault{Kind: "503"}, func(status int, body string, err error) bool { return status == 503 && err == nil }},
		{Fault{Kind: CloseBeforeHead}, func(status int, body string, err error) bool { return errors.Is(err, io.EOF) && status == 0 }},
		{Fault{Kind: CloseAfterHead}, func(status int, body string, err error) bool {
			return status == 200 && body == "" && errors.Is(err, io.ErrUnexpectedEOF)
		}},
		{Fault{Kind: Cut, After: 3}, func(status int, body string, err error) bool {
			return count(body) == 3 && errors.Is(err, io.ErrUnexpectedEOF)
		}},
		{Fault{Kind: Reset, After: 3}, func(status int, body string, err error) bool {
			return count(body) <= 3 && errors.Is(err, syscall.ECONNRESET)
		}},
		{Fault{Kind: ErrorEvent, After: 3}, func(status int, body string, err error) bool {
			return count(body) == 3 && strings.Contains(body, `data: {"error":{`) && strings.HasSuffix(body, "data: [DONE]\n\n") &&
				!strings.Contains(body, `"usage"`) && err == nil
		}},
		{Fault{Kind: ErrorEvent}, func(status int, body string, err error) bool {
			return status == 200 && count(body) == 0 && strings.HasPrefix(body, `data: {"error":{`) && err == nil
		}},
		{Fault{Kind: NoUsage}, func(status int, body string, err error) bool {
			return count(body) == 10 && !strings.Contains(body, `"usage"`) && strings.HasSuffix(body, "data: [DONE]\n\n") && err == nil
		}},
		{Fault{Kind: NoDone}, func(status int, body string, err error) bool {
			return count(body) == 10 && strings.Contains(body, `"usage"`) && !strings.Contains(body, "[DONE]") && err == nil
		}},
		{Fault{Kind: Garbage}, func(status int, body string, err error) bool { return status == 0 && err != nil }},
		{Fault{Kind: Garbage, After: 2}, func(status int, body string, err error) bool { return count(body) == 2 && err != nil }},
		{Fault{Kind: Slow, Delay: 2 * time.Millisecond}, func(status int, body string, err error) bool { return count(body) == 10 && err == nil }},
		{Fault{Kind: Cut, After: 50}, func(status int, body string, err error) bool { return count(body) == 10 && err != nil }},
	} {
		c.fault.Times = 1
		if err := s.SetFault(c.fault); err != nil {
			t.Fatal(err)
		}
		if status, body, err := post(t, s.URL+"/v1/completions", streamed); !c.check(status, body, err) {
			t.Errorf("%+v: %d %q %v", c.fault, status, body, err)
		}
		lab.Eventually(t, 5*time.Second, func() bool {
			seen := s.Seen()
			return seen[len(seen)-1].Outcome == c.fault.Kind
		}, "%+v is in the log", c.fault)
		if status, body, err := post(t, s.URL+"/v1/completions", streamed); status != 200 || len(events(t, body)) != 11 || err != nil {
			t.Errorf("after %+v: %d %q %v", c.fault, status, body, err)
		}
	}
	lab.Eventually(t, 5*time.Second, func() bool { return s.Running()+s.Waiting() == 0 }, "no slot is held")
}

func TestFaultsOfWholeAnswers(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	for kind, want := range map[string]error{Cut: io.ErrUnexpectedEOF, Reset: syscall.ECONNRESET} {
		s.SetFault(Fault{Kind: kind, Times: 1})
		if status, _, err := post(t, s.URL+"/v1/completions", `{"prompt":"x"}`); !errors.Is(err, want) {
			t.Errorf("%s: %d %v", kind, status, err)
		}
	}
}

func TestHangsKeepTheClientUntilItLeaves(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	for _, f := range []Fault{{Kind: HangBeforeHead, Times: 1}, {Kind: HangStream, After: 2, Times: 1}} {
		s.SetFault(f)
		client := http.Client{Timeout: 300 * time.Millisecond}
		resp, err := client.Post(s.URL+"/v1/completions", "application/json", strings.NewReader(strings.Replace(streamed, `:10`, `:2000`, 1)))
		if (err != nil) != (f.Kind == HangBeforeHead) {
			t.Fatal(f.Kind, err)
		}
		if err == nil {
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if n := strings.Count(string(body), `"text":"`); err == nil || n != 2 {
				t.Fatalf("%s: %d events, %v", f.Kind, n, err)
			}
		}
		lab.Eventually(t, 5*time.Second, func() bool {
			seen := s.Seen()
			return seen[len(seen)-1].Outcome == f.Kind && s.Running() == 0
		}, "%s ends with its client", f.Kind)
	}
}

func TestRefuseClosesThePortAndOpensItAgain(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	if resp, err := http.Get(s.URL + "/health"); err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	if status, _, err := post(t, s.URL+"/sim/faults", `[{"kind":"refuse"},{"kind":"unhealthy"},{"kind":"503","times":1}]`); status != 204 || err != nil {
		t.Fatal(status, err)
	}
	if _, err := http.Get(s.URL + "/health"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatal(err)
	}
	if err := s.SetFault(Fault{Kind: Unhealthy}); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(s.URL + "/health")
	if err != nil || resp.StatusCode != 503 {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	if err := s.SetFault(Fault{Kind: "nonsense"}); err == nil {
		t.Fatal("an unknown fault was taken")
	}
	if status, body, _ := post(t, s.URL+"/sim/faults", `{"kind":"slow","delay":"1x"}`); status != 400 {
		t.Fatal(status, body)
	}
}

// A client that leaves a slow stream ends it, also where all tokens are there and what is left of them would fit into the
// connection: half of it is closed here, so that the engine can still write.
func TestSlowEndsWithItsClient(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	if err := s.SetFault(Fault{Kind: Slow, Delay: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body := `{"prompt":"tell","max_tokens":40,"ignore_eos":true,"stream":true}`
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: e\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, 5*time.Second, func() bool { return s.Running() == 0 }, "all tokens are there")
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, 5*time.Second, func() bool { return s.Seen()[0].Outcome != "" }, "the stream ends")
	if got := s.Seen()[0].Outcome; got != "abort" {
		t.Errorf("outcome %q", got)
	}
}
