package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/bench/load"
	"github.com/headgate/headgate/bench/peers"
)

// Who can be measured.
const (
	bare     = "nginx"
	lua      = "nginx+Lua"
	luaRedis = "nginx+Lua+Redis"
	headgate = "headgate"
	liteLLM  = "LiteLLM"
	direct   = "no proxy"
)

// bench is everything that runs, and the options.
type bench struct {
	rounds int
	window time.Duration
	out    string // directory of results

	site    peers.Site
	redis   *peers.Process
	engine  *exec.Cmd
	url     string // of the engines
	who     map[string]*peers.Process
	runs    map[string][]run // by who, since the last table
	verbose bool
	only    string
	table   string // that is being made
}

// engines is how many there are, and so how many candidates a placement has.
const engines = 8

// open starts engines and Redis; peers are started when they are first asked for.
func (b *bench) open() error {
	b.who, b.runs = map[string]*peers.Process{}, map[string][]run{}
	if err := b.site.Open(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.engine = exec.Command(self, "engine")
	b.engine.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	b.engine.Stderr = os.Stderr
	out, err := b.engine.StdoutPipe()
	if err != nil {
		return err
	}
	if err := b.engine.Start(); err != nil {
		return err
	}
	var ports [engines]int
	for i := range ports {
		if _, err := fmt.Fscan(out, &ports[i]); err != nil {
			return fmt.Errorf("engine: %w", err)
		}
		b.site.Engines = append(b.site.Engines, "127.0.0.1:"+strconv.Itoa(ports[i]))
	}
	b.url = "http://" + b.site.Engines[0]
	if b.redis, err = b.site.RedisServer(false); err != nil {
		return err
	}
	b.site.Redis = b.redis.Addr.String()
	b.site.Key, err = b.site.CreateKey(b.redisURL(), "acme")
	return err
}

func (b *bench) redisURL() string { return "redis://" + b.site.Redis + "/0" }

func (b *bench) close() {
	b.site.Close()
	if b.engine != nil && b.engine.Process != nil {
		_ = b.engine.Process.Kill()
		_ = b.engine.Wait()
	}
}

// peer is the running one of that name.
func (b *bench) peer(who string) (p *peers.Process, err error) {
	if p = b.who[who]; p != nil {
		if !p.Alive() {
			return nil, fmt.Errorf("%s ended: %s", who, p.Output())
		}
		return p, nil
	}
	switch who {
	case bare:
		p, err = b.site.Nginx(peers.Bare)
	case lua:
		p, err = b.site.Nginx(peers.Lua)
	case luaRedis:
		p, err = b.site.Nginx(peers.LuaRedis)
	case headgate:
		p, err = b.site.Headgate("r1", b.redisURL())
	case liteLLM:
		p, err = b.site.StartLiteLLM()
	default:
		err = errors.New("no peer has that name")
	}
	if err != nil {
		return nil, err
	}
	b.who[who] = p
	return p, nil
}

// stop ends a peer, so that the next one asked for is fresh.
func (b *bench) stop(who string) {
	if p := b.who[who]; p != nil {
		p.Kill()
		delete(b.who, who)
	}
}

// shape is what is asked, and how.
type shape struct {
	ask     load.Ask
	plan    load.Plan
	clients int
	ramp    time.Duration
	warm    time.Duration
	window  time.Duration
	least   int // requests that must be served in the window
}

// run is what one run of a shape showed.
type run struct {
	out    load.Outcome
	cpu    cpu
	redis  cpu
	rest   time.Duration // of the benchmark itself and its engines
	memory int64         // resident at the end
}

// measure runs the shape through who. One that served too little is made again, twice at most: on a machine with other
// work the processor may have been elsewhere. One with errors is not. // I2
func (b *bench) measure(who string, s shape) (r run, err error) {
	for range 3 {
		if r, err = b.once(who, s); !errors.Is(err, errTooLittle) {
			return r, err
		}
		fmt.Fprintf(os.Stderr, "%s again: %v\n", who, err)
	}
	return r, err
}

func (b *bench) once(who string, s shape) (r run, err error) {
	p, err := b.peer(who)
	if err != nil {
		return r, err
	}
	if err := load.Tell(b.url, s.plan); err != nil {
		return r, err
	}
	s.ask.Key = b.site.Key
	var before, redisBefore, restBefore cpu
	job := load.Job{
		Addr: p.Addr, Requests: b.requests(s.ask, s.clients), Clients: s.clients, Ramp: s.ramp, Warm: s.warm, Window: s.window,
		Begin: func() { before, redisBefore, restBefore = cpuOf(p.PID), cpuOf(b.redis.PID), b.own() },
		End: func() {
			r.cpu, r.redis, r.rest = cpuOf(p.PID).minus(before), cpuOf(b.redis.PID).minus(redisBefore), b.own().minus(restBefore).total()
			r.memory = rss(p.PID)
		},
	}
	if s.ask.Stream {
		job.Least = s.plan.Tokens * load.EventBytes
	}
	if r.out, err = load.Run(job); err != nil {
		return r, err
	}
	if b.verbose {
		fmt.Fprintf(os.Stderr, "%-16s %v; %.1f us each (%.1f sys), Redis %.1f, ours %.0f %%\n", who, r.out, per(r.cpu.total(), r.out.Served),
			per(r.cpu.sys, r.out.Served), per(r.redis.total(), r.out.Served), 100*float64(r.rest)/float64(r.out.Window))
	}
	if err := refuse(r.out, s.least); err != nil {
		return r, fmt.Errorf("%w; it said: %s", err, p.Output())
	}
	b.runs[who] = append(b.runs[who], r)
	return r, nil
}

// refuse says why a run does not count.
func refuse(out load.Outcome, least int) error {
	if out.Errors > 0 {
		return fmt.Errorf("a run that does not count: %v", out)
	}
	if out.Served < least {
		return fmt.Errorf("%w: %v (at least %d were due)", errTooLittle, out, least)
	}
	return nil
}

var errTooLittle = errors.New("a run that served too little")

// own is what the clients and the engines used: they share a processor with Redis.
func (b *bench) own() cpu { return cpuOf(b.engine.Process.Pid).plus(selfCPU()) }

func selfCPU() cpu {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return cpu{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}
}

// requests are different enough that their prompts share no beginning; large ones are few.
func (b *bench) requests(ask load.Ask, clients int) (all [][]byte) {
	n := min(clients, 64)
	if ask.Bytes > 200_000 {
		n = 8
	}
	for i := range n {
		ask.Salt = i
		all = append(all, ask.Wire())
	}
	return all
}

// build builds headgate, unless HEADGATE names one.
func build(dir string) (string, error) {
	if path := os.Getenv("HEADGATE"); path != "" {
		return path, nil
	}
	path := filepath.Join(dir, "headgate")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "github.com/headgate/headgate/cmd/headgate")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
}

// quantile of durations, in milliseconds.
func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Microseconds()) / 1000
}

// line prints a row of a Markdown table.
func line(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		switch v := c.(type) {
		case float64:
			texts[i] = strconv.FormatFloat(v, 'f', digits(v), 64)
		default:
			texts[i] = fmt.Sprint(v)
		}
	}
	fmt.Println("| " + strings.Join(texts, " | ") + " |")
}

func digits(v float64) int {
	switch {
	case v >= 100:
		return 0
	case v >= 10:
		return 1
	}
	return 2
}

func header(cells ...any) {
	line(cells...)
	fmt.Println(strings.Repeat("|---", len(cells)) + "|")
}
