package main

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/headgate/headgate/bench/lab"
)

// TestSimJudgesItsFlags: M1.
func TestSimJudgesItsFlags(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for args, c := range map[string]struct {
		status int
		want   string
	}{
		"--speed 0":                     {2, "--speed 0: want more than 0"},
		"--speed -1":                    {2, "--speed -1: want more than 0"},
		"--slots 0":                     {2, "--slots 0: want 1 or more"},
		"--max-model-len 1":             {2, "--max-model-len 1: want 2 or more"},
		"--profile h100":                {2, "--profile h100: want one of 70b-2xh100, 8b-a100, 8b-h100"},
		"--fault smoke":                 {2, "--fault smoke: want a status from 400 to 599 or one of refuse, close_before_head"},
		"--fault 399":                   {2, "--fault 399: want a status"},
		"--fault cut:x":                 {2, "want kind[:after[:times]] with whole numbers"},
		"--fault cut:1:2:3":             {2, "want kind[:after[:times]]"},
		"--listen " + l.Addr().String(): {1, "--listen: " + l.Addr().String() + " is taken by another process (set --listen to another port)"},
	} {
		status, out, diag := headgate(t, nil, append([]string{"sim"}, strings.Fields(args)...)...)
		if status != c.status || !strings.Contains(diag, c.want) || strings.Count(diag, "\n") != 1 || out != "" {
			t.Errorf("sim %s: %d %q %q, want %d %s", args, status, out, diag, c.status, c.want)
		}
	}
}

// TestSimFailsOnDemand: once each, in order, then never again.
func TestSimFailsOnDemand(t *testing.T) {
	p := start(t, nil, "sim", "--listen", "127.0.0.1:0", "--model", "m", "--speed", "100", "--fault", "503:0:1", "--fault", "cut:1:1")
	url := p.find(&p.stdout, `on (http://\S+)`)[1]
	ask := `curl -sN ` + url + `/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":4}' || true`
	if body := shell(t, ask); !strings.Contains(body, `503`) || strings.Contains(body, "data: ") {
		t.Errorf("the first: %s", body)
	}
	if body := shell(t, ask); strings.Count(body, "data: ") != 1 {
		t.Errorf("the second: %s", body)
	}
	if body := shell(t, ask); !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("the third: %s", body)
	}
}

// TestSimSaysThatConsulIsMissing, once, and registers when it comes.
func TestSimSaysThatConsulIsMissing(t *testing.T) {
	p := start(t, nil, "sim", "--listen", "127.0.0.1:0", "--id", "e1", "--consul", "127.0.0.1:1")
	p.find(&p.stderr, `"level":"warn",.*"consul":"127\.0\.0\.1:1","service":"e1",.*not registered yet`)
	if status := p.end(syscall.SIGTERM); status != 0 {
		t.Fatalf("status %d", status)
	}
	if n := strings.Count(p.stderr.String(), "not registered yet"); n != 1 {
		t.Fatalf("said %d times", n)
	}
	consul := lab.Consul(t)
	q := start(t, nil, "sim", "--listen", "127.0.0.1:0", "--id", "e1", "--consul", consul.Addr)
	q.find(&q.stderr, `"service":"e1",.*"message":"registered"`)
}
