package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// looked is a replica with one backend of one slot, with prices and a usage log, and a key that has every scope.
type looked struct {
	*served
	t          *testing.T
	env        []string
	log, keyID string
}

const lookedCatalogue = "models:\n  qwen-7b: {price: {prompt: 0.2, cached: 0.05, completion: 0.6}, aliases: [small]}\n"

func newLooked(t *testing.T) *looked {
	t.Helper()
	dir := t.TempDir()
	catalogue, log := filepath.Join(dir, "models.yaml"), filepath.Join(dir, "usage.jsonl")
	if err := os.WriteFile(catalogue, []byte(lookedCatalogue), 0o600); err != nil {
		t.Fatal(err)
	}
	l := &looked{t: t, log: log, served: &served{redis: lab.Redis(t)}}
	sim := start(t, nil, "sim", "--listen", "127.0.0.1:0", "--model", "qwen-7b")
	engine := sim.find(&sim.stdout, `on (http://\S+)`)[1]
	l.env = []string{"HG_REDIS_URL=" + l.redis.URL(), "HG_CATALOG=" + catalogue}
	l.process = start(t, append([]string{"HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_NOTICE_TIME=0s", "HG_QUEUE_WAIT=1m", "HG_USAGE_LOG=" + log,
		"HG_BACKENDS=qwen-7b=" + engine + ";id=b1;slots=1", "HG_REPLICA_ID=r1"}, l.env...), "serve")
	l.public = "http://" + l.find(&l.stderr, `"listen":"([^"]+)"`)[1]
	l.find(&l.stderr, `"backend":"b1".*"message":"backend healthy"`)
	l.find(&l.stderr, `"message":"ready"`)
	must(t, l.env, "tenants", "create", "acme", "--budget", "100/month", "--parallel", "50")
	must(t, l.env, "teams", "create", "search", "--tenant", "acme", "--budget", "5/day", "--budget", "50/week")
	must(t, l.env, "users", "create", "bob", "--tenant", "acme")
	l.redis.CLI("HSET", "hg:{t:acme}:enduser:"+coordinator.SafeID("u:1"), "tpm", "1000000")
	l.redis.CLI("HSET", "hg:{t:acme}:tag:red", "budget_usd", "1", "period", "total")
	l.key = strings.TrimSpace(must(t, l.env, "keys", "create", "--tenant", "acme", "--team", "search", "--user", "bob", "--name", "ci", "--rpm", "1000", "--tags", "blue"))
	l.keyID = l.redis.CLI("HGET", coordinator.KeyRecord("acme", coordinator.HashKey(l.key)), "id")
	return l
}

// ask sends a request under a label and returns the answer's status when it is whole.
func (l *looked) ask(ctx context.Context, label string, tokens int, stream bool) int {
	body := fmt.Sprintf(`{"model":"small","user":"u:1","messages":[{"role":"user","content":"hi"}],"max_tokens":%d,"ignore_eos":true,"stream":%v}`, tokens, stream)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.public+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		l.t.Error(err)
		return 0
	}
	r.Header.Set("Authorization", "Bearer "+l.key)
	r.Header.Set("X-Request-Id", label)
	r.Header.Set("X-Headgate-Tags", "red")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		if ctx.Err() == nil {
			l.t.Errorf("%s: %v", label, err)
		}
		return 0 // the test ended it
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

func (l *looked) settled() {
	l.t.Helper()
	lab.Eventually(l.t, 20*time.Second, func() bool { return l.redis.CLI("HLEN", "hg:{t:acme}:open") == "0" }, "everything is settled")
}

// says runs a line that works and wants each pattern in what it prints.
func (l *looked) says(line string, patterns ...string) {
	l.t.Helper()
	status, out, diag := headgate(l.t, l.env, strings.Fields(line)...)
	if status != 0 {
		l.t.Fatalf("headgate %s: status %d: %s", line, status, diag)
	}
	for _, p := range patterns {
		if !regexp.MustCompile("(?m)" + p).MatchString(out) {
			l.t.Errorf("headgate %s: nothing like %s in\n%s%s", line, p, out, diag)
		}
	}
	if strings.Contains(out+diag, l.key) {
		l.t.Errorf("headgate %s shows the key", line)
	}
}

// read runs a line with --json into v.
func (l *looked) read(v any, line string) {
	l.t.Helper()
	out := must(l.t, l.env, append(strings.Fields(line), "--json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		l.t.Fatalf("headgate %s: %v: %s", line, err, out)
	}
}

// shown is what explain --json says, as far as it is tested.
type shown struct {
	State    string
	Found_in string
	Refusal  *coordinator.RefusalLine
	Request  *coordinator.RecordLine
	Open     *struct {
		Pool, Backend  string
		Ahead, Waiting int64
	}
	Scopes_now []struct {
		Scope   string
		Policy  bool
		RPM     *struct{ Limit, Used, Remaining, Reset_ms int64 }
		Budgets []struct {
			Period, Ends_at       string
			Limit_nusd, Left_nusd *int64
		}
	}
	Weighed_now *struct {
		MU       float64
		Waiting  int64
		Backends []struct {
			Backend, Why_not string
			Chosen           bool
			Score_s          float64
			Slots            int64
		}
	}
}

// TestLookingAtAFleet: one request that ran, one that runs, one that waits and one that was refused, explained, added up and
// audited while they run and after.
func TestLookingAtAFleet(t *testing.T) {
	t.Parallel()
	l := newLooked(t)
	if status := l.ask(t.Context(), "ran-1", 5, false); status != 200 {
		t.Fatalf("status %d", status)
	}
	l.settled()
	ctx, cut := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.ask(ctx, "runs-1", 4000, true) })
	lab.Eventually(t, 20*time.Second, func() bool { return l.redis.CLI("HGET", "hg:{p:qwen-7b}:backend:b1", "held") == "1" }, "it runs")
	waited := make(chan int, 1)
	go func() { waited <- l.ask(t.Context(), "waits-1", 5, false) }()
	lab.Eventually(t, 20*time.Second, func() bool { return l.redis.CLI("ZCARD", "hg:{p:qwen-7b}:queue") == "1" }, "it waits")

	var x shown
	l.says("explain waits-1", `^WAITS  for \S+ in the queue of pool qwen-7b: 0 ahead of it, 1 waiting in all$`, `b1 .*0 of 1 .*out: no free slot`, `^hold +\d+ tokens, 0\.0\d+ USD$`)
	if l.read(&x, "explain waits-1 --tenant acme"); x.State != "waiting" || x.Open == nil || x.Open.Waiting != 1 || x.Open.Pool != "qwen-7b" || x.Request.Model != "qwen-7b" ||
		x.Request.Team != "search" || x.Weighed_now == nil || x.Weighed_now.MU < 1 || x.Weighed_now.Backends[0].Why_not != "no_free_slot" {
		t.Errorf("%+v", x)
	}
	l.says("explain runs-1", `^RUNS  for \S+ on backend b1, attempt 1$`, `^  key:key_\S+ +998 of 1,000|^  key:key_\S+ +997 of 1,000`)
	l.says("status", `^redis 127\.\S+  \d+\.\S+, standalone master, .*noeviction`, `^  r1-\S+ +\S+ ago +1 +1`, `^pool qwen-7b: 1 backend, 1 of 1 slot held, others run 0, 1 waiting \(acme 1\)$`,
		`^  b1 +full +1 of 1 `, `^  acme +2 open requests$`)
	if status, out, _ := headgate(t, l.env, "audit"); status != 0 || !strings.Contains(out, "(open)  2 requests") {
		t.Errorf("audit while they run: %d %s", status, out)
	}
	cut()
	wg.Wait()
	if status := <-waited; status != 200 {
		t.Fatalf("the one that waited: %d", status)
	}
	l.settled()

	l.says("explain ran-1", `^OK  200 from backend b1$`, `^charged +0\.0000\d+ USD; held 0\.\d+ USD`, `team search, user bob, key key_\S+ \(ci\), end user u:1, tags red blue`,
		`^  in|^ +in key:key_\S+, user:bob:\S+, team:search:\S+`, `^placed +on b1, of 1 weighed; 1 attempt; `, `^→ b1 `, `^  tag:blue +no policy`, `^  tag:red .* total: 0\.\d+ USD, 0 reserved, 0\.9\d+ left of 1`)
	l.says("explain waits-1", `^OK `, `queued [1-9]`)
	must(t, l.env, "teams", "set", "search", "--tenant", "acme", "rpm=1")
	for i, want := range []int{200, 429} {
		if status := l.ask(t.Context(), fmt.Sprintf("limited-%d", i), 5, false); status != want {
			t.Fatalf("limited-%d: %d", i, status)
		}
	}
	l.settled()
	l.refused()
	l.sums()
	l.audits()
}

// refused: the refused request is in the usage log alone.
func (l *looked) refused() {
	t := l.t
	t.Helper()
	if status, out, diag := headgate(t, l.env, "explain", "limited-1"); status != 1 || out != "" || !strings.Contains(diag, "not found") || !strings.Contains(diag, "--usage-log") {
		t.Errorf("without its log: %d %s%s", status, out, diag)
	}
	lab.Eventually(t, 10*time.Second, func() bool { text, _ := os.ReadFile(l.log); return bytes.Contains(text, []byte("limited-1")) }, "its line")
	line := "explain limited-1 --usage-log " + l.log
	l.says(line, `^REFUSED  429 rate_limit_exceeded by team:search: rpm 1, 0 left; again in \d`, `^→ team:search +0 of 1, more in \S+ +- +- +\d{4}-`)
	var x shown
	if l.read(&x, line); x.State != "refused" || x.Refusal == nil || x.Refusal.By != "team:search" || x.Refusal.For != "rpm" || x.Refusal.Limit != 1 || x.Refusal.Remaining != 0 ||
		x.Refusal.ResetMS <= 0 || x.Refusal.ResetMS > 60_000 || x.Weighed_now != nil || len(x.Scopes_now) != 7 {
		t.Errorf("%+v %+v", x, x.Refusal)
	}
	team := x.Scopes_now[2]
	if team.Scope != "team:search" || team.RPM == nil || team.RPM.Used != 1 || team.RPM.Remaining != 0 || len(team.Budgets) != 2 || *team.Budgets[0].Limit_nusd != 5e9 || team.Budgets[0].Ends_at == "" {
		t.Errorf("%+v", team)
	}
	before := "explain --key ci --tenant acme --model small --prompt-tokens 1000 --max-tokens 100"
	l.says(before, `^WOULD BE REFUSED  by team:search: rpm 1, 0 left`)
	must(t, l.env, "teams", "set", "search", "--tenant", "acme", "rpm=")
	l.says(before, `^WOULD PASS  limits and budgets, holding 0\.00026 USD$`, `^weighed now, for 15 MU; 0 wait`, `^→ b1 +\S+`)
	l.says("explain --key ci --model small --max-tokens 10000000", `^WOULD BE REFUSED  by team:search: budget of 5 USD.*; never ends by itself`)
	if _, out, diag := headgate(t, l.env[:1], "explain", "--key", "ci", "--model", "qwen-7b"); !strings.HasPrefix(out, "WOULD BE REFUSED  by its model") || !strings.HasPrefix(diag, "warning: HG_CATALOG is not set here") {
		t.Errorf("without prices: %s%s", out, diag)
	}
	l.says("explain --key ci --model nope", `^WOULD BE REFUSED  by the gateway: neither the catalogue nor a backend knows the model$`)
	l.redis.CLI("HSET", "hg:{p:qwen-7b}:backend:b1", "cooldown_until", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "failures", "3")
	l.says("explain --key-id "+l.keyID+" --model qwen-7b", `b1 .*out: cooling down for (59m|1h0m)`)
	l.says("status", `^  b1 +cooling_down (59m|1h0m)\S+ \(3 failures\)`)
	l.redis.CLI("HDEL", "hg:{p:qwen-7b}:backend:b1", "cooldown_until", "failures")
}

// sums: usage says what the counters say.
func (l *looked) sums() {
	t := l.t
	t.Helper()
	var sums struct {
		Rows []struct {
			Tenant, Team, Key, Tag, Outcome, Day                                         string
			Requests, Not_ok, Prompt_tokens, Cached_tokens, Completion_tokens, Cost_nusd int64
		}
		Counters []struct {
			Kind, Period                                           string
			Spent_nusd, Requests, Prompt_tokens, Completion_tokens int64
		}
	}
	l.read(&sums, "usage --team search --tenant acme --by team,day")
	if len(sums.Counters) != 3 || len(sums.Rows) == 0 {
		t.Fatalf("%+v", sums)
	}
	row, counter := sums.Rows[0], sums.Counters[0]
	for _, more := range sums.Rows[1:] { // midnight
		row.Requests, row.Cost_nusd, row.Prompt_tokens = row.Requests+more.Requests, row.Cost_nusd+more.Cost_nusd, row.Prompt_tokens+more.Prompt_tokens
	}
	if counter = sums.Counters[1]; row.Requests != 4 || row.Not_ok != 1 || row.Requests != counter.Requests || row.Cost_nusd != counter.Spent_nusd || row.Cost_nusd == 0 ||
		row.Prompt_tokens != counter.Prompt_tokens {
		t.Errorf("%+v", sums)
	}
	l.says("usage --by tenant", `^TENANT +REQUESTS +NOT OK`, `^acme +4 +1 +0 `)
	l.says("usage --key ci --by key", `^key_\S+ \(ci\) +4 +1 `, `^counter of key "key_\S+" of tenant "acme" +\d{4}-\d\d +0\.\d+ USD`)
	l.says("usage --tenant acme --by tag", `^blue +4 `, `^red +4 `)
	l.says("usage --tenant acme --by tag --tag red --model qwen-7b --end-user u:1", `^red +4 `)
	l.says("usage --tenant acme --since 2020-01-01 --until 2020-02-01 --by model", `^total +0 `)
	l.says("usage --by outcome --usage-log "+l.log, `^ok +3 `, `^rejected +1 `, `^total +5 `)
	if status, _, diag := headgate(t, l.env, "usage", "--tenant", "acmee"); status != 0 || diag != "warning: tenant \"acmee\": not found\n" {
		t.Errorf("a tenant typed wrong: %d %s", status, diag)
	}
	torn := filepath.Join(t.TempDir(), "torn.jsonl")
	text, err := os.ReadFile(l.log)
	if err = errors.Join(err, os.WriteFile(torn, append(text, `{"time":"2026-`...), 0o600)); err != nil {
		t.Fatal(err)
	}
	status, out, diag := headgate(t, l.env, "usage", "--by", "outcome", "--usage-log", torn)
	if status != 1 || !regexp.MustCompile(`(?m)^total +5 `).MatchString(out) || !regexp.MustCompile(`^headgate: records that cannot be read and are not in the sums: 1, the first: .*torn.jsonl: line \d+: .*\n$`).MatchString(diag) {
		t.Errorf("a torn line: %d %s%s", status, out, diag)
	}
}

// audits: all agree; a counter that was changed by hand is named; what cannot be asked is status 2.
func (l *looked) audits() {
	t := l.t
	t.Helper()
	l.says("audit --tenant acme --usage-log "+l.log, `^acme: 4 charged requests, 0\.\d+ USD; \d+ counters agree$`)
	l.redis.CLI("HINCRBY", "hg:{t:acme}:spend:tag:red:total", "spent_nusd", "-7")
	status, out, diag := headgate(t, l.env, "audit", "--period", "total")
	if status != 1 || !regexp.MustCompile(`(?m)^  counter +tag:red:total: spent_nusd is \d+, the records say \d+ \(-7\)$`).MatchString(out) || diag != "headgate: audit: 1 difference in 1 tenant\n" {
		t.Errorf("a changed counter: %d %s%s", status, out, diag)
	}
	var all []coordinator.TenantAudit
	_, out, _ = headgate(t, l.env, "audit", "--tenant", "acme", "--json")
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 || len(all[0].Differences) != 1 || all[0].Differences[0].Kind != "counter" ||
		all[0].Differences[0].Counter != "tag:red:total" || all[0].Differences[0].Redis-all[0].Differences[0].Records != -7 {
		t.Errorf("%v %s", err, out)
	}
	l.says("audit --tenant acme --period 20", `agree$`)
	for _, line := range []string{"audit --tenant acmee", "audit --period 2026-13", "audit --period totl", "audit --usage-log /nowhere.jsonl", "audit --tenant acme --bogus", "audit now"} {
		if status, _, diag := headgate(t, l.env, strings.Fields(line)...); status != 2 || strings.Count(diag, "\n") != 1 {
			t.Errorf("%s: %d %s", line, status, diag)
		}
	}
	if status, _, _ := headgate(t, []string{"HG_REDIS_URL=redis://127.0.0.1:1/0"}, "audit"); status != 2 {
		t.Errorf("no redis: %d", status)
	}
	var in bytes.Buffer
	text, err := os.ReadFile(l.log)
	if err != nil {
		t.Fatal(err)
	}
	var printed, told bytes.Buffer
	in.Write(text[:len(text)/2])
	status = surroundings{environ: l.env, stdin: &in, stdout: &printed, stderr: &told}.run(t.Context(), []string{"audit", "--tenant", "acme", "--period", "20", "--usage-log", "-"})
	if status != 1 || !strings.Contains(printed.String(), "unlogged") || !strings.Contains(printed.String(), "standard input: line") {
		t.Errorf("half a log: %d %s%s", status, printed.String(), told.String())
	}
}

// TestLookingNeedsTheRightWords: one line each, and the command line's status.
func TestLookingNeedsTheRightWords(t *testing.T) {
	t.Parallel()
	env := []string{"HG_REDIS_URL=" + lab.SharedRedis(t).URL()}
	for line, want := range map[string]string{
		"explain":                           "want a request id, or --key and --model",
		"explain x --model m --key k":       "not both",
		"explain --key k":                   "want a request id, or --key and --model",
		"usage --since yesterday":           "--since \"yesterday\": want a length as 24h or 7d",
		"usage --by colour --tenant acme":   `usage by "colour": want one of tenant, team`,
		"usage --usage-log - --usage-log -": "given twice",
		"status now":                        "want headgate status",
	} {
		status, out, diag := headgate(t, env, strings.Fields(line)...)
		if status != 2 || out != "" || !strings.Contains(diag, want) || strings.Count(diag, "\n") != 1 {
			t.Errorf("headgate %s: %d %s%s", line, status, out, diag)
		}
	}
	if status, _, diag := headgate(t, env, "explain", "nothing-like-it", "--tenant", "nobody"); status != 1 || !strings.Contains(diag, "not found") {
		t.Errorf("%d %s", status, diag)
	}
}
