package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// process is a child that lives no longer than this test binary. It owns no goroutine, so goleak has nothing to say about
// it, and it may be killed and started again with the same arguments.
type process struct {
	path string
	args []string
	dir  string // working directory; "" = the system's temporary one

	mu  sync.Mutex
	pid int      // 0 = not running
	log *os.File // stdout and stderr; unlinked, so that nothing stays behind
}

// binary returns the path of a program: the user's own on PATH goes first, then .tools/bin beside go.mod.
func binary(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if root, err := moduleRoot(); err == nil {
		if path, err := exec.LookPath(filepath.Join(root, ".tools", "bin", name)); err == nil {
			return path
		}
	}
	t.Fatalf("lab: %s is neither on PATH nor in .tools/bin: run `make tools`", name)
	return ""
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("lab: no go.mod above the working directory")
		}
		dir = parent
	}
}

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid != 0 {
		return fmt.Errorf("lab: %s is running already", filepath.Base(p.path))
	}
	log, err := os.CreateTemp("", "lab-*.log")
	if err != nil {
		return err
	}
	os.Remove(log.Name())
	if p.log != nil {
		p.log.Close()
	}
	p.log = log

	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = p.dir
	if cmd.Dir == "" {
		cmd.Dir = os.TempDir()
	}
	// A group of its own: an interrupt at the terminal ends the tests, and the warden ends the servers.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("lab: start %s: %w", p.path, err)
	}
	p.pid = cmd.Process.Pid
	cmd.Process.Release() // from here on the pid is reaped by wait4 alone
	return ward("add", strconv.Itoa(p.pid))
}

// alive reports whether the process still runs; a stopped one (SIGSTOP) does.
func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return false
	}
	var status syscall.WaitStatus
	if got, err := syscall.Wait4(p.pid, &status, syscall.WNOHANG, nil); got == p.pid || errors.Is(err, syscall.ECHILD) {
		p.reapedLocked()
		return false
	}
	return true
}

// kill sends SIGKILL and returns when the process is gone; it does nothing when there is none.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return
	}
	syscall.Kill(p.pid, syscall.SIGKILL)
	for {
		if _, err := syscall.Wait4(p.pid, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	p.reapedLocked()
}

// close is kill for good.
func (p *process) close() {
	p.kill()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log != nil {
		p.log.Close()
		p.log = nil
	}
}

func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return fmt.Errorf("lab: %s does not run", filepath.Base(p.path))
	}
	return syscall.Kill(p.pid, sig)
}

// output is the end of what the process wrote, for the message of a failed test.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log == nil {
		return ""
	}
	size, _ := p.log.Seek(0, io.SeekCurrent)
	from := max(0, size-2000)
	text, _ := io.ReadAll(io.NewSectionReader(p.log, from, size-from))
	return strings.TrimSpace(string(text))
}

func (p *process) reapedLocked() {
	ward("del", strconv.Itoa(p.pid))
	p.pid = 0
}

// wardenScript reads "add <pid>", "del <pid>" and "dir <path>" until the test binary is gone, however that came about, and
// then kills and removes what is left. I2
const wardenScript = `pids=" "
dirs=
while read -r op pid; do
	case $op in
	add) pids="$pids$pid " ;;
	del) pids=$(printf '%s' "$pids" | sed "s/ $pid / /") ;;
	dir) dirs="$dirs$pid
" ;;
	esac
done
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
printf '%s' "$dirs" | while read -r dir; do rm -rf -- "$dir"; done`

var warden struct {
	mu   sync.Mutex
	pipe *os.File
}

func ward(op, what string) error {
	warden.mu.Lock()
	defer warden.mu.Unlock()
	if warden.pipe == nil {
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		cmd := exec.Command("sh", "-c", wardenScript)
		cmd.Stdin = read
		cmd.Dir = os.TempDir()
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("lab: start the warden: %w", err)
		}
		cmd.Process.Release()
		read.Close()
		warden.pipe = write
	}
	_, err := fmt.Fprintf(warden.pipe, "%s %s\n", op, what)
	return err
}
