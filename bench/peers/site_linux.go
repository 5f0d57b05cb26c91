package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"text/template"
	"time"

	"github.com/headgate/headgate/bench/ports"
)

//go:embed nginx.conf.tmpl litellm.yaml.tmpl *.lua
var files embed.FS

// Site is what all peers have in common.
type Site struct {
	Core    int      // the processor every peer is bound to
	Rest    int      // the processor of everything else
	Engines []string // host:port
	Key     string   // the API key that is let in; its tenant is acme
	Redis   string   // host:port
	Binary  string   // headgate
	LiteLLM string   // its program; "" = not installed
	Pools   int      // more pools of the same engines, each with a model of its own: headgate only

	dir     string
	running []*Process
}

// Open makes the site ready; nothing runs yet but what Redis needs for the naive scripts is there.
func (s *Site) Open() (err error) {
	s.dir, err = os.MkdirTemp("", "headgate-peers-")
	return err
}

// Close ends everything that was started.
func (s *Site) Close() {
	for i := len(s.running) - 1; i >= 0; i-- {
		s.running[i].Kill()
	}
	s.running = nil
	_ = os.RemoveAll(s.dir)
}

// Process is one peer.
type Process struct {
	Name string
	Addr netip.AddrPort // where it serves
	Took time.Duration  // from its start until it was ready
	PID  int

	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
}

// Kill ends it at once.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	<-p.done
}

// Alive reports whether it runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Output is the end of what it said.
func (p *Process) Output() string {
	text, _ := os.ReadFile(p.log.Name())
	return string(text[max(0, len(text)-2000):])
}

// command is a program to be started on a core.
type command struct {
	name  string
	core  int
	args  []string
	env   []string
	addr  netip.AddrPort
	ready func() error // nil: when addr takes connections
	wait  time.Duration
}

// start runs it and waits until it is ready. // I1
func (s *Site) start(c command) (*Process, error) {
	log, err := os.CreateTemp(s.dir, c.name+"-*.log")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("taskset", append([]string{"-c", strconv.Itoa(c.core)}, c.args...)...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	p := &Process{Name: c.name, Addr: c.addr, PID: cmd.Process.Pid, cmd: cmd, log: log, done: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }()
	s.running = append(s.running, p)
	if c.ready == nil {
		c.ready = func() error { return dials(c.addr.String()) }
	}
	if c.wait == 0 {
		c.wait = 20 * time.Second
	}
	for end := began.Add(c.wait); ; {
		err := c.ready()
		if err == nil {
			p.Took = time.Since(began)
			return p, nil
		}
		if !p.Alive() || time.Now().After(end) {
			p.Kill()
			return nil, fmt.Errorf("%s is not ready: %w: %s", c.name, err, p.Output())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func dials(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

// place writes one of the files of this package into dir; templates are filled in.
func place(dir, from, to string, with any) error {
	text, err := files.ReadFile(from)
	if err != nil {
		return err
	}
	if with != nil {
		form, err := template.New(from).Parse(string(text))
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := form.Execute(&b, with); err != nil {
			return err
		}
		text = b.Bytes()
	}
	return os.WriteFile(filepath.Join(dir, to), text, 0o600)
}

func freeAddr() (netip.AddrPort, error) {
	addr, err := ports.Addr()
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(addr)
}

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// run is a command that ends by itself; its output is returned.
func run(env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var diag bytes.Buffer
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(args[0]), err, diag.String())
	}
	return string(bytes.TrimSpace(out)), nil
}
