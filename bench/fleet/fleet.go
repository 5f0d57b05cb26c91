// Package fleet runs headgate as its users do: the built program, several replicas as processes, on real Redis and real
// Consul. Tests and long runs use it; it is no part of the product.
//
// Invariants:
//
//	I1. A fleet that was handed out is ready: every replica says so itself.
//	I2. No replica outlives the test that started it.
package fleet

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// Options say what the replicas share.
type Options struct {
	Replicas  int      // default 1
	Redis     string   // URL
	Consul    string   // host:port; "" = none
	Catalogue string   // the models file's text; "" = none
	Env       []string // further HG_ variables, NAME=value

	Each    func(i int) []string // variables of replica i, from 0, alone; nil = none
	Program string               // path of the program; "" = built from this tree
	Under   []string             // a command that runs the program given behind it: prlimit --nofile=256
}

// Fleet is a number of replicas with one configuration.
type Fleet struct {
	Replicas []*Replica
	t        testing.TB
	env      []string
	each     func(i int) []string
	command  []string // the program, and what runs it
}

// Start runs the replicas and returns when all are ready.
func Start(t testing.TB, o Options) *Fleet {
	t.Helper()
	f := &Fleet{t: t, env: append(os.Environ(), "HG_REDIS_URL="+o.Redis, "HG_CONSUL_ADDR="+o.Consul), each: o.Each}
	if o.Program == "" {
		o.Program = Binary(t)
	}
	f.command = append(append(f.command, o.Under...), o.Program)
	if o.Catalogue != "" {
		path := filepath.Join(t.TempDir(), "catalogue.yaml")
		if err := os.WriteFile(path, []byte(o.Catalogue), 0o600); err != nil {
			t.Fatal(err)
		}
		f.env = append(f.env, "HG_CATALOG="+path)
	}
	// Tests count what engines are asked: who wants probes says so. On a machine full of tests a call waits longer for a
	// processor than for Redis: the most with which an answer still comes within a second.
	f.env = append(append(f.env, "HG_PROBE_IDLE=0s", "HG_REDIS_TIMEOUT=900ms"), o.Env...)
	for range max(o.Replicas, 1) {
		f.Add()
	}
	for _, r := range f.Replicas {
		r.WaitReady()
	}
	return f
}

// Add starts one more replica; it may not be ready yet.
func (f *Fleet) Add() *Replica {
	f.t.Helper()
	r := &Replica{
		t:     f.t,
		Name:  fmt.Sprintf("r%d", len(f.Replicas)+1),
		URL:   "http://" + lab.FreeAddr(f.t),
		Admin: "http://" + lab.FreeAddr(f.t),
		usage: filepath.Join(f.t.TempDir(), "usage.jsonl"),
	}
	r.args = append(append([]string{}, f.command...), "serve")
	r.env = append(append([]string{}, f.env...),
		"HG_LISTEN="+strings.TrimPrefix(r.URL, "http://"), "HG_ADMIN_LISTEN="+strings.TrimPrefix(r.Admin, "http://"),
		"HG_REPLICA_ID="+r.Name, "HG_USAGE_LOG="+r.usage, "HG_SPOOL_DIR="+f.t.TempDir())
	if f.each != nil {
		r.env = append(r.env, f.each(len(f.Replicas))...)
	}
	if err := r.start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		r.Kill()
		if f.t.Failed() {
			f.t.Logf("--- %s\n%s", r.Name, r.output.String())
		}
	})
	f.Replicas = append(f.Replicas, r)
	return r
}

// Run runs a headgate command against the fleet's Redis and returns its standard output without the last line end.
func (f *Fleet) Run(args ...string) string {
	f.t.Helper()
	cmd := exec.Command(Binary(f.t), args...)
	cmd.Env = f.env
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		f.t.Fatalf("headgate %s: %v: %s", strings.Join(args, " "), err, diag.String())
	}
	return strings.TrimRight(out.String(), "\n")
}

// Key creates an API key: Key("--tenant", "acme", "--rpm", "60").
func (f *Fleet) Key(args ...string) string {
	f.t.Helper()
	return f.Run(append([]string{"keys", "create"}, args...)...)
}

// Lines are the usage lines of all replicas, in no order between replicas.
func (f *Fleet) Lines() []Line {
	var all []Line
	for _, r := range f.Replicas {
		all = append(all, r.Lines()...)
	}
	return all
}

// WaitLines returns the lines when there are at least n.
func (f *Fleet) WaitLines(n int) []Line {
	f.t.Helper()
	lab.Eventually(f.t, 20*time.Second, func() bool { return len(f.Lines()) >= n }, "%d usage lines", n)
	return f.Lines()
}

// Replica is one process.
type Replica struct {
	Name, URL, Admin string

	t      testing.TB
	usage  string
	args   []string
	env    []string
	output lab.Output

	processMu sync.Mutex // of what Restart replaces
	process   *process

	linesMu   sync.Mutex
	lines     []Line // read so far
	linesRead int64  // bytes
}

// WaitReady returns when /readyz says so.
func (r *Replica) WaitReady() {
	r.t.Helper()
	lab.Eventually(r.t, 30*time.Second, func() bool {
		select {
		case <-r.running().ended:
			r.t.Fatalf("%s ended: %s", r.Name, r.output.String())
		default:
		}
		return r.Ready()
	}, "%s is ready", r.Name)
}

// Ready asks /readyz once.
func (r *Replica) Ready() bool {
	answer, err := http.Get(r.Admin + "/readyz")
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == 200
}

// Output is what the process wrote so far, both streams.
func (r *Replica) Output() string { return r.output.String() }

// Lines are the usage lines written so far. The slice is shared: it is only read.
func (r *Replica) Lines() []Line {
	r.linesMu.Lock()
	defer r.linesMu.Unlock()
	text, err := readFrom(r.usage, r.linesRead)
	if err != nil {
		return r.lines
	}
	for raw := range bytes.Lines(text) {
		if !bytes.HasSuffix(raw, []byte("\n")) {
			break // still being written
		}
		r.linesRead += int64(len(raw))
		var l Line
		if err := json.Unmarshal(raw, &l); err != nil {
			r.t.Errorf("%s: a usage line that is no JSON: %v: %s", r.Name, err, raw)
			continue
		}
		l.Raw = string(raw)
		r.lines = append(r.lines, l)
	}
	return r.lines
}

func readFrom(path string, offset int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// Line is a usage record as read back.
type Line struct {
	Raw         string
	RequestID   string  `json:"request_id"`
	RID         string  `json:"rid"`
	Replica     string  `json:"replica"`
	Tenant      string  `json:"tenant"`
	Team        string  `json:"team"`
	KeyID       string  `json:"key_id"`
	Model       string  `json:"model"`
	Backend     string  `json:"backend"`
	Attempts    int     `json:"attempts"`
	Status      int     `json:"status"`
	Outcome     string  `json:"outcome"`
	ErrorCode   string  `json:"error_code"`
	Stream      bool    `json:"stream"`
	Prompt      int64   `json:"prompt_tokens"`
	Completion  int64   `json:"completion_tokens"`
	UsageSource string  `json:"usage_source"`
	CostNUSD    *int64  `json:"cost_nusd"`
	OverNUSD    int64   `json:"over_nusd"`
	Cache       string  `json:"cache"`
	QueueMS     int64   `json:"queue_ms"`
	RoundTrips  int     `json:"round_trips"`
	Replaces    bool    `json:"replaces"`
	DurationMS  float64 `json:"duration_ms"`
}

// Binary builds headgate once per test binary and returns its path.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var built bool // Main removes what was built

var build = sync.OnceValues(func() (string, error) {
	built = true
	dir, err := os.MkdirTemp("", "headgate-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "headgate")
	out, err := exec.Command("go", "build", "-o", path, "github.com/headgate/headgate/cmd/headgate").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

// Metric is the sum of all series of that name on /metrics; 0 when there is none.
func (r *Replica) Metric(name string) float64 {
	answer, err := http.Get(r.Admin + "/metrics")
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	var sum float64
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, _ := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		sum += v
	}
	return sum
}
