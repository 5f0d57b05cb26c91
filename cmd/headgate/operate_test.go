package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// served is a replica with one engine, ready, and a key.
type served struct {
	*process
	redis           *lab.RedisServer
	public, private string
	key             string
}

func serve(t *testing.T, more ...string) *served {
	t.Helper()
	return serveOn(t, lab.Redis(t), more...)
}

func serveOn(t *testing.T, on *lab.RedisServer, more ...string) *served {
	t.Helper()
	s := &served{redis: on}
	sim := start(t, nil, "sim", "--listen", "127.0.0.1:0", "--model", "qwen-7b")
	engine := sim.find(&sim.stdout, `on (http://\S+)`)[1]
	redis := "HG_REDIS_URL=" + s.redis.URL()
	s.process = start(t, append([]string{redis, "HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_NOTICE_TIME=0s",
		"HG_BACKENDS=qwen-7b=" + engine + ";id=b1", "HG_REPLICA_ID=r1"}, more...), "serve")
	s.public = "http://" + s.find(&s.stderr, `"listen":"([^"]+)"`)[1]
	s.private = "http://" + s.find(&s.stderr, `"admin":"([^"]+)"`)[1]
	s.find(&s.stderr, `"backend":"b1".*"message":"backend healthy"`)
	s.find(&s.stderr, `"message":"ready"`)
	s.key = strings.TrimSpace(must(t, []string{redis}, "keys", "create", "--tenant", "acme"))
	return s
}

// stream asks for a long answer and returns when its first event is there.
func stream(t *testing.T, url, key string) *bufio.Reader {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions",
		strings.NewReader(`{"model":"qwen-7b","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":4000,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	body := bufio.NewReader(answer.Body)
	if line, err := body.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
		t.Fatalf("first line %q: %v", line, err)
	}
	return body
}

// TestSecondSignalCutsAndBills: M3. The stream gets an error event, its usage line is written, nothing stays reserved.
func TestSecondSignalCutsAndBills(t *testing.T) {
	usage := filepath.Join(t.TempDir(), "usage.jsonl")
	p := serve(t, "HG_DRAIN_TIME=1h", "HG_USAGE_LOG="+usage)
	body := stream(t, p.public, p.key)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.find(&p.stderr, `"running":1,.*"message":"draining"`)
	p.again(syscall.SIGTERM, `"message":"ending at once`)
	if status := p.wait(); status != statusFailed {
		t.Fatalf("status %d", status)
	}
	p.find(&p.stderr, `"level":"warn","cut":1,.*"message":"ending at once`)
	rest, _ := io.ReadAll(body)
	if !strings.Contains(string(rest), `"code":"shutdown"`) || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream ends with %q", rest[max(0, len(rest)-200):])
	}
	text, err := os.ReadFile(usage)
	if err != nil || !regexp.MustCompile(`(?m)^\{.*"outcome":"shutdown".*"completion_tokens":[1-9]`).Match(text) {
		t.Errorf("usage log: %s %v", text, err)
	}
	if open := p.redis.CLI("EXISTS", "hg:{t:acme}:open"); strings.TrimSpace(open) != "0" {
		t.Error("the request is still reserved in redis")
	}
	if !strings.HasSuffix(p.stderr.String(), "headgate: ended at once, as the second signal asked\n") {
		t.Error("the end does not say why its status is 1")
	}
}

// TestDevSaysWhatItWaitsFor, and ends at once when told twice.
func TestDevSaysWhatItWaitsFor(t *testing.T) {
	p := start(t, []string{"HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_DRAIN_TIME=1h"}, "dev")
	url := p.find(&p.stdout, `(?m)^  url +(http\S+)/v1$`)[1]
	key := p.find(&p.stdout, `(?m)^  key +(\S+)$`)[1]
	stream(t, url, key)
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.find(&p.stderr, `(?m)^waiting for 1 request; ctrl-c again to end at once$`)
	p.again(syscall.SIGINT, `"message":"ending at once`)
	if status := p.wait(); status != statusFailed {
		t.Fatalf("status %d", status)
	}
}

// again sends the second signal, until the process takes it for one of its own.
func (p *process) again(sig os.Signal, told string) {
	p.t.Helper()
	for range 5 {
		_ = p.cmd.Process.Signal(sig)
		for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
			if strings.Contains(p.stderr.String(), told) {
				return
			}
		}
	}
	p.t.Fatal("the second signal is not taken")
}

// TestOneSignalSentTwiceIsOne: wrappers that pass ctrl-c on double it; the end is in order all the same.
func TestOneSignalSentTwiceIsOne(t *testing.T) {
	p := start(t, []string{"HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0"}, "dev")
	p.find(&p.stdout, `press ctrl-c`)
	for range 2 {
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	if status := p.wait(); status != 0 || p.stderr.String() != "" {
		t.Fatalf("status %d: %s", status, p.stderr.String())
	}
}

// TestDevIsForTheOtherTerminalToo: the line it prints makes headgate and redis-cli mean this instance.
func TestDevIsForTheOtherTerminalToo(t *testing.T) {
	p := start(t, []string{"HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0"}, "dev")
	line := p.find(&p.stdout, `(?m)^  (export HG_REDIS_URL=redis://\S+; alias .*)$`)[1]
	out := shell(t, asMainLine+"\n"+line+"\nheadgate tenants list\nredis-cli EXISTS 'hg:{t:dev}'")
	if !strings.Contains(out, "dev") || !strings.HasSuffix(out, "1\n") {
		t.Fatalf("%s\nprints %q", line, out)
	}
}

// asMainLine lets aliases work in a script and the test binary be headgate.
const asMainLine = "shopt -s expand_aliases 2>/dev/null; export " + asMain + "=1"

// TestDevWithoutItsRedisSaysSo in one line, before it prints anything else.
func TestDevWithoutItsRedisSaysSo(t *testing.T) {
	t.Parallel()
	p := start(t, []string{"HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_REDIS_URL=redis://127.0.0.1:1/0"}, "dev")
	if status := p.wait(); status != statusFailed || p.stdout.String() != "" ||
		p.stderr.String() != "headgate: redis at 127.0.0.1:1 not reached: dial tcp 127.0.0.1:1: connect: connection refused\n" {
		t.Fatalf("%d %q %q", status, p.stdout.String(), p.stderr.String())
	}
}

// TestServeSaysWhatItRunsWith and what is missing, and leaves quietly when Redis was never there.
func TestServeSaysWhatItRunsWith(t *testing.T) {
	p := start(t, []string{"HG_REDIS_URL=redis://bob:s3cret@127.0.0.1:1/0", "HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0",
		"HG_NOTICE_TIME=0s", "HG_REPLICA_ID=r1"}, "serve")
	p.find(&p.stderr, `"replica":"r1-[0-9a-f]{8}","listen":"[^"]+","admin":"[^"]+","redis":"127\.0\.0\.1:1","models":0,"usage_log":"stdout",.*"message":"serving"`)
	p.find(&p.stderr, `"level":"warn",.*no engine can be found: neither HG_CONSUL_ADDR nor HG_BACKENDS is set`)
	p.find(&p.stderr, `"level":"info",.*"redis":"redis unavailable",.*"message":"not ready yet"`)
	if status := p.end(syscall.SIGTERM); status != 0 {
		t.Fatalf("status %d", status)
	}
	p.find(&p.stderr, `"notice_ms":0,`)
	p.find(&p.stderr, `"drain_ms":60000,`)
	log := p.stderr.String()
	if strings.Contains(log, `"level":"error"`) || strings.Contains(log, `pool \"\"`) || strings.Contains(log, "s3cret") || strings.Contains(log, "settlements") {
		t.Fatalf("log: %s", log)
	}
	if n := strings.Count(log, "never reached"); n != 1 {
		t.Fatalf("said %d times that redis was never reached: %s", n, log)
	}
}

// TestUsageLogRotatesOnSIGHUP: what was renamed is left alone, the path is there again.
func TestUsageLogRotatesOnSIGHUP(t *testing.T) {
	usage := filepath.Join(t.TempDir(), "usage.jsonl")
	p := serve(t, "HG_USAGE_LOG="+usage)
	ask := func(label string) {
		line := fmt.Sprintf(`curl %s/v1/chat/completions -H 'Authorization: Bearer %s' -H 'X-Request-Id: %s' -d '{"model":"qwen-7b","messages":[{"role":"user","content":"hi"}],"max_tokens":1}'`, p.public, p.key, label)
		if body := shell(t, line); !strings.Contains(body, `"chat.completion"`) {
			t.Fatalf("%s: %s", label, body)
		}
	}
	has := func(path, label string) func() bool {
		return func() bool {
			text, _ := os.ReadFile(path)
			return strings.Contains(string(text), `"request_id":"`+label+`"`)
		}
	}
	ask("before")
	lab.Eventually(t, 10*time.Second, has(usage, "before"), "the first line")
	if err := os.Rename(usage, usage+".1"); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.find(&p.stderr, `"message":"usage log opened anew"`)
	ask("after")
	lab.Eventually(t, 10*time.Second, has(usage, "after"), "the second line in the new file")
	if has(usage+".1", "after")() || has(usage, "before")() {
		t.Fatal("lines are in the wrong file")
	}
	if status := p.end(syscall.SIGTERM); status != 0 {
		t.Fatalf("status %d", status)
	}
}

// TestReadyAnswersForHealthChecks: by exit status, with the reasons.
func TestReadyAnswersForHealthChecks(t *testing.T) {
	p := serve(t)
	env := []string{"HG_ADMIN_LISTEN=" + strings.TrimPrefix(p.private, "http://")}
	if out := must(t, env, "ready"); out != "ready\n" {
		t.Fatalf("%q", out)
	}
	p.redis.CLI("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	lab.Eventually(t, 10*time.Second, func() bool {
		status, out, diag := headgate(t, env, "ready")
		return status == 1 && out == "" && diag == "headgate: not ready: eviction_policy: maxmemory-policy is allkeys-lru: it would evict budgets and limits; set it to noeviction\n"
	}, "not ready with the reason")
	p.find(&p.stderr, `"level":"warn",.*"eviction_policy":"maxmemory-policy is allkeys-lru.*"message":"not ready"`)
	if status := p.end(syscall.SIGTERM); status != 0 {
		t.Fatalf("status %d", status)
	}
	if status, _, diag := headgate(t, env, "ready"); status != 1 || !strings.Contains(diag, "no replica answers at 127.0.0.1:") {
		t.Fatalf("%d %s", status, diag)
	}
}

// TestRedisSaysWhyItCannotBeUsed: what a person can mend is in the one line.
func TestRedisSaysWhyItCannotBeUsed(t *testing.T) {
	t.Parallel()
	redis := lab.Redis(t)
	try := func(url, want string) {
		t.Helper()
		status, _, diag := headgate(t, []string{"HG_REDIS_URL=" + url}, "keys", "list")
		if status != 1 || !strings.Contains(diag, want) || strings.Contains(diag, "not reached") || strings.Count(diag, "\n") != 1 || strings.Contains(diag, "wrong@") {
			t.Errorf("%s: %d %s", url, status, diag)
		}
	}
	try("redis://"+redis.Addr+"/9999", "refuses: DB index is out of range")
	redis.CLI("CONFIG", "SET", "requirepass", "s3cret")
	try(redis.URL(), "refuses: NOAUTH")
	try("redis://:wrong@"+redis.Addr+"/0", "refuses: WRONGPASS")
	redis.Stop()
	defer redis.Cont()
	try(redis.URL(), "does not answer: nothing came in 5s (does it want TLS? then rediss://)")
}

// TestWhatRedisDidNotTakeIsSpooled: a stream ends while Redis is away, the replica ends too; the next one here settles it.
func TestWhatRedisDidNotTakeIsSpooled(t *testing.T) {
	redis := lab.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	dir := filepath.Join(t.TempDir(), "spool")
	p := serveOn(t, redis, "HG_SPOOL_DIR="+dir, "HG_USAGE_LOG="+dir+".jsonl", "HG_DRAIN_TIME=30s")
	body := stream(t, p.public, p.key)
	redis.Kill()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.find(&p.stderr, `"running":1,.*"message":"draining"`)
	p.again(syscall.SIGTERM, `"message":"ending at once`)
	_, _ = io.Copy(io.Discard, body)
	p.wait()
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) == 0 {
		t.Fatal("nothing is spooled")
	}
	redis.Restart()
	spent := func() string {
		return redis.CLI("HGET", "hg:{t:acme}:spend:tenant:acme:"+time.Now().UTC().Format("2006-01"), "completion_tokens")
	}
	if n := spent(); n != "" && n != "0" {
		t.Fatalf("settled before: %s", n)
	}
	serveOn(t, redis, "HG_SPOOL_DIR="+dir)
	lab.Eventually(t, 20*time.Second, func() bool { n := spent(); return n != "" && n != "0" }, "the spooled settlement is applied")
}
