package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// process is a headgate of its own: this test binary, told to be it.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr lab.Output
	ended          chan struct{}
}

func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), ended: make(chan struct{})}
	p.cmd.Env = append([]string{asMain + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("headgate %s\nstdout: %s\nstderr: %s", strings.Join(args, " "), p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// find waits until the output matches and returns the match.
func (p *process) find(in *lab.Output, pattern string) []string {
	p.t.Helper()
	form := regexp.MustCompile(pattern)
	var match []string
	lab.Eventually(p.t, 30*time.Second, func() bool {
		match = form.FindStringSubmatch(in.String())
		return match != nil
	}, "output like %s", pattern)
	return match
}

// end sends a signal and returns the exit status.
func (p *process) end(sig os.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
	return p.wait()
}

func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(30 * time.Second):
		p.t.Fatal("still running")
		return -1
	}
}

// TestDevLinesWorkAsTheyStand is the first thing anybody does: what dev prints is given to a shell.
func TestDevLinesWorkAsTheyStand(t *testing.T) {
	p := start(t, []string{"HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0"}, "dev")
	plain := p.find(&p.stdout, `(?m)^  (curl http\S+/v1/chat/completions .*)$`)[1]
	streamed := p.find(&p.stdout, `(?m)^  (curl -N http\S+/v1/chat/completions .*)$`)[1]
	key := p.find(&p.stdout, `(?m)^  key +(sk-dev-[0-9A-Za-z]{40})$`)[1]

	var answer struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct{ Completion_tokens int }
	}
	body := shell(t, plain)
	if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.Choices) != 1 || answer.Choices[0].Message.Content == "" || answer.Usage.Completion_tokens == 0 {
		t.Fatalf("%s\n%s\n%v", plain, body, err)
	}
	if body := shell(t, streamed); !strings.HasPrefix(body, "data: {") || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Fatalf("%s\n%s", streamed, body)
	}
	for _, stream := range []string{"false", "true"} {
		line := p.find(&p.stdout, `(?m)^\{"time":.*"stream":`+stream+`,.*\}$`)[0]
		var record struct {
			Outcome, Tenant, Model    string
			Cost_nusd, Prompt_tokens  int64
			Completion_tokens, Status int64
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.Outcome != "ok" || record.Tenant != "dev" || record.Status != 200 ||
			record.Cost_nusd != 200*record.Prompt_tokens+600*record.Completion_tokens || record.Completion_tokens == 0 {
			t.Fatalf("usage record %s: %v", line, err)
		}
	}
	admin := p.find(&p.stdout, `admin +(http://\S+)`)[1]
	if status, body := fetch(t, admin+"/readyz"); status != 200 {
		t.Fatalf("readyz: %d %s", status, body)
	}
	want := `headgate_requests_total{outcome="ok",route="/v1/chat/completions",status="200"} 2`
	if _, body := fetch(t, admin+"/metrics"); !strings.Contains(body, want) {
		t.Fatalf("metrics: no %s", want)
	}
	if status := p.end(syscall.SIGINT); status != 0 {
		t.Fatalf("ctrl-c: status %d", status)
	}
	if errors := p.stderr.String(); errors != "" || strings.Count(p.stdout.String(), key) != 3 {
		t.Fatalf("stderr %q", errors)
	}
}

// TestDevUsesWhatTheEnvironmentSets: a Redis, an engine and no price are the user's, and the lines still work.
func TestDevUsesWhatTheEnvironmentSets(t *testing.T) {
	redis := lab.Redis(t)
	sim := start(t, nil, "sim", "--listen", "127.0.0.1:0", "--model", "my-model")
	engine := sim.find(&sim.stdout, `on (http://\S+)`)[1]
	p := start(t, []string{"HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_REDIS_URL=" + redis.URL(),
		"HG_BACKENDS=mine=" + engine + ";id=b1"}, "dev")
	if body := shell(t, p.find(&p.stdout, `(?m)^  (curl http\S+ .*)$`)[1]); !strings.Contains(body, `"model":"my-model"`) {
		t.Fatalf("answer: %s", body)
	}
	line := p.find(&p.stdout, `(?m)^\{"time":.*\}$`)[0]
	if !strings.Contains(line, `"backend":"b1"`) || !strings.Contains(line, `"cost_nusd":null`) {
		t.Fatalf("usage record: %s", line)
	}
	if keys := redis.CLI("HLEN", "hg:{t:dev}:keys"); strings.TrimSpace(keys) != "1" {
		t.Fatalf("keys in the user's redis: %s", keys)
	}
}

// shell runs a line the way a person would.
func shell(t *testing.T, line string) string {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		return withoutCurl(t, line)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "sh", "-c", line).Output()
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return string(out)
}

// withoutCurl does what the line says.
func withoutCurl(t *testing.T, line string) string {
	t.Helper()
	url := regexp.MustCompile(`http://\S+`).FindString(line)
	body := regexp.MustCompile(`-d '([^']*)'`).FindStringSubmatch(line)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body[1]))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range regexp.MustCompile(`-H '([^:]+): ([^']*)'`).FindAllStringSubmatch(line, -1) {
		r.Header.Set(h[1], h[2])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// TestTakenPortIsOneLine: M1, for the commonest accident.
func TestTakenPortIsOneLine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	for _, command := range []string{"dev", "serve"} {
		p := start(t, []string{"HG_LISTEN=" + addr, "HG_ADMIN_LISTEN=127.0.0.1:0"}, command)
		if status := p.wait(); status != 1 {
			t.Errorf("%s: status %d", command, status)
		}
		if want := "headgate: HG_LISTEN: " + addr + " is taken by another process (set HG_LISTEN to another port)\n"; p.stderr.String() != want {
			t.Errorf("%s: stderr %q", command, p.stderr.String())
		}
	}
}

// TestServeLeavesInOrder: M3. Not ready at once, serving for the notice time, exit status 0, nothing left behind.
func TestServeLeavesInOrder(t *testing.T) {
	redis := lab.Redis(t)
	sim := start(t, nil, "sim", "--listen", "127.0.0.1:0", "--model", "qwen-7b")
	engine := sim.find(&sim.stdout, `on (http://\S+)`)[1]
	env := []string{"HG_REDIS_URL=" + redis.URL(), "HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_NOTICE_TIME=2s",
		"HG_DRAIN_TIME=5s", "HG_BACKENDS=qwen-7b=" + engine + ";id=b1", "HG_REPLICA_ID=r1"}
	p := start(t, env, "serve")
	public := "http://" + p.find(&p.stderr, `"listen":"([^"]+)"`)[1]
	private := "http://" + p.find(&p.stderr, `"admin":"([^"]+)"`)[1]
	lab.Eventually(t, 20*time.Second, func() bool { status, _ := fetch(t, private+"/readyz"); return status == 200 }, "ready")
	key := strings.TrimSpace(must(t, env[:1], "keys", "create", "--tenant", "acme"))
	line := fmt.Sprintf(`curl %s/v1/chat/completions -H 'Authorization: Bearer %s' -d '{"model":"qwen-7b","messages":[{"role":"user","content":"hi"}]}'`, public, key)
	lab.Eventually(t, 20*time.Second, func() bool { return strings.Contains(shell(t, line), `"chat.completion"`) }, "an answer")

	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, time.Second, func() bool {
		status, body := fetch(t, private+"/readyz")
		return status == 503 && strings.Contains(body, `"draining"`)
	}, "not ready at once")
	if body := shell(t, line); !strings.Contains(body, `"chat.completion"`) {
		t.Fatalf("in the notice time: %s", body)
	}
	if status, _ := fetch(t, private+"/livez"); status != 200 {
		t.Fatal("not alive in the notice time")
	}
	if status := p.wait(); status != 0 {
		t.Fatalf("status %d", status)
	}
	for _, name := range []string{"hg:{t:acme}:open", "hg:{t:acme}:reservations", "hg:{t:acme}:parallel", "hg:{p:qwen-7b}:replicas"} {
		if got := strings.TrimSpace(redis.CLI("EXISTS", name)); got != "0" {
			t.Errorf("%s is left behind", name)
		}
	}
	if keys := redis.CLI("KEYS", "hg:replica:*"); strings.TrimSpace(keys) != "" {
		t.Errorf("left behind: %s", keys)
	}
	if status := sim.end(syscall.SIGTERM); status != 0 {
		t.Errorf("sim: status %d", status)
	}
}

// TestSecondSignalEndsAtOnce: M3.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	p := start(t, []string{"HG_REDIS_URL=" + lab.Redis(t).URL(), "HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_NOTICE_TIME=1h"}, "serve")
	p.find(&p.stderr, `"message":"serving"`)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.find(&p.stderr, `not ready, still serving`)
	p.again(syscall.SIGTERM, `"message":"ending at once`)
	if status := p.wait(); status != statusFailed {
		t.Fatalf("status %d", status)
	}
}

// TestEvictingRedisIsNotReady: a Redis that throws counters away is named.
func TestEvictingRedisIsNotReady(t *testing.T) {
	redis := lab.Redis(t)
	p := start(t, []string{"HG_REDIS_URL=" + redis.URL(), "HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0"}, "serve")
	private := "http://" + p.find(&p.stderr, `"admin":"([^"]+)"`)[1]
	is := func(want int, text string) {
		t.Helper()
		lab.Eventually(t, 20*time.Second, func() bool {
			status, body := fetch(t, private+"/readyz")
			return status == want && strings.Contains(body, text)
		}, "readyz is %d with %q", want, text)
	}
	is(200, `"ready":true`)
	redis.CLI("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	is(503, "maxmemory-policy is allkeys-lru")
	redis.CLI("ACL", "SETUSER", "default", "-config")
	is(503, "maxmemory-policy is allkeys-lru") // from INFO
	redis.CLI("ACL", "SETUSER", "default", "+config")
	redis.CLI("CONFIG", "SET", "maxmemory-policy", "noeviction")
	is(200, `"ready":true`)
}

// TestSimRegisters: in Consul with a passing check while it runs, gone when it ends.
func TestSimRegisters(t *testing.T) {
	consul := lab.Consul(t)
	p := start(t, nil, "sim", "--listen", "127.0.0.1:0", "--model", "qwen-7b,qwen-lora", "--slots", "3", "--pool", "qwen", "--id", "e1", "--consul", consul.Addr)
	url := "http://" + consul.Addr + "/v1/health/service/vllm?passing"
	lab.Eventually(t, 20*time.Second, func() bool {
		_, body := fetch(t, url)
		return strings.Contains(body, `"e1"`) && strings.Contains(body, `"qwen-7b,qwen-lora"`) && strings.Contains(body, `"slots": "3"`)
	}, "registered")
	if status := p.end(syscall.SIGTERM); status != 0 {
		t.Fatalf("status %d", status)
	}
	if _, body := fetch(t, url); strings.TrimSpace(body) != "[]" {
		t.Fatalf("still registered: %s", body)
	}
	q := start(t, nil, "sim", "--listen", "0.0.0.0:0", "--consul", consul.Addr)
	if status := q.wait(); status != 2 || !strings.Contains(q.stderr.String(), "give --advertise") {
		t.Fatalf("status %d: %s", status, q.stderr.String())
	}
}
