package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/cluster"
)

// engineVariable makes this test binary an engine: its value is an engineSpec.
const engineVariable = "HEADGATE_FAULTS_ENGINE"

func TestMain(m *testing.M) {
	if text := os.Getenv(engineVariable); text != "" {
		if err := beEngine(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fleet.Main(m)
}

// engineSpec is what an engine process is told.
type engineSpec struct {
	ID, Listen, Consul string
	Log                string // file it appends to, see noted
	Slots              int    // as registered; the engine itself has room for more, so that one too many would show
	Speed              float64
	Loading            bool // begins unhealthy and answers no request until its faults are cleared
}

// beEngine runs a simulated engine, registered in Consul until it is told to end.
func beEngine(text string) error {
	var spec engineSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	e, err := engine.New(engine.Options{Models: []string{"qwen"}, Slots: 4 * spec.Slots, Speed: spec.Speed})
	if err != nil {
		return err
	}
	if spec.Loading {
		if err := e.SetFault(engine.Fault{Kind: engine.Unhealthy}, engine.Fault{Kind: engine.HangBeforeHead}); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(spec.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", spec.Listen)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { _ = e.Run(ctx) }()
	go func() { _ = http.Serve(l, noted(e, log)) }()
	host, port, _ := net.SplitHostPort(spec.Listen)
	number, _ := strconv.Atoi(port)
	return cluster.Register(ctx, spec.Consul, cluster.Registration{ID: spec.ID, Service: "vllm", Address: host, Port: number,
		HealthURL: "http://" + spec.Listen + "/health",
		Meta:      map[string]string{"model": "qwen", "pool": "qwen", "slots": strconv.Itoa(spec.Slots)}}, zerolog.Nop())
}

// noted writes a line when a generation begins and when it ends: "b <time in ns> <request id>", "e …". It is written before
// the request is worked on, so it is there whatever becomes of the process.
func noted(e *engine.Engine, log *os.File) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/") || r.Method != http.MethodPost {
			e.ServeHTTP(w, r)
			return
		}
		id := r.Header.Get("X-Request-Id")
		fmt.Fprintf(log, "b %d %s\n", time.Now().UnixNano(), id)
		defer func() { fmt.Fprintf(log, "e %d %s\n", time.Now().UnixNano(), id) }()
		e.ServeHTTP(w, r)
	})
}

// engineProcess is one engine as the harness has it.
type engineProcess struct {
	engineSpec
	t testing.TB

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
}

func newEngine(t testing.TB, spec engineSpec) *engineProcess {
	t.Helper()
	spec.Listen = lab.FreeAddr(t)
	spec.Log = filepath.Join(t.TempDir(), spec.ID+".log")
	p := &engineProcess{engineSpec: spec, t: t}
	p.start()
	t.Cleanup(p.kill)
	return p
}

// start starts it, and returns when it listens.
func (p *engineProcess) start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	text, err := json.Marshal(p.engineSpec)
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.ended = exec.Command(os.Args[0]), make(chan struct{})
	p.cmd.Env = append(os.Environ(), engineVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, ended chan struct{}) { _ = cmd.Wait(); close(ended) }(p.cmd, p.ended)
	lab.Eventually(p.t, 30*time.Second, func() bool {
		c, err := net.Dial("tcp", p.Listen)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, "engine %s listens", p.ID)
}

// kill is kill -9.
func (p *engineProcess) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (p *engineProcess) signal(s os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(s)
}

// fault replaces the faults it plays; none ends them.
func (p *engineProcess) fault(faults ...engine.Fault) {
	p.t.Helper()
	text, _ := json.Marshal(faults)
	answer, err := http.Post("http://"+p.Listen+"/sim/faults", "application/json", strings.NewReader(string(text)))
	if err != nil {
		p.t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		p.t.Fatalf("engine %s takes no fault %s: %s", p.ID, text, answer.Status)
	}
}

// generation is one request as an engine had it.
type generation struct {
	id         string // <label>-<8 hex digits of the rid>-<attempt>
	begun, end time.Time
}

// label of the client's request, and the beginning of its rid.
func (g generation) label() (label, rid string) {
	if parts := strings.Split(g.id, "-"); len(parts) >= 3 {
		return strings.Join(parts[:len(parts)-2], "-"), parts[len(parts)-2]
	}
	return g.id, ""
}

// generations are all it was given, in order; one whose process died under it ended with the next one's begin, or now.
func (p *engineProcess) generations() []generation {
	f, err := os.Open(p.Log)
	if err != nil {
		return nil
	}
	defer f.Close()
	var all []generation
	at := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.SplitN(lines.Text(), " ", 3)
		if len(fields) != 3 {
			continue
		}
		ns, _ := strconv.ParseInt(fields[1], 10, 64)
		if fields[0] == "b" {
			at[fields[2]] = len(all)
			all = append(all, generation{id: fields[2], begun: time.Unix(0, ns)})
		} else if i, ok := at[fields[2]]; ok {
			all[i].end = time.Unix(0, ns)
		}
	}
	return all
}
