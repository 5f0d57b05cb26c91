package fleet

import (
	"os/exec"
	"syscall"
	"time"
)

// process is one run of a replica's program.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it was reaped
}

// start runs the program; what it writes goes behind what the one before wrote.
func (r *Replica) start() error {
	p := &process{cmd: exec.Command(r.args[0], r.args[1:]...), ended: make(chan struct{})}
	p.cmd.Env = r.env
	p.cmd.Stdout, p.cmd.Stderr = &r.output, &r.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	r.processMu.Lock()
	defer r.processMu.Unlock()
	r.process = p
	return nil
}

func (r *Replica) running() *process {
	r.processMu.Lock()
	defer r.processMu.Unlock()
	return r.process
}

// Kill is kill -9; it returns when the process is gone.
func (r *Replica) Kill() {
	p := r.running()
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Restart starts the program again, with the same addresses and files, killing it first if it runs. It may not be ready yet.
func (r *Replica) Restart() {
	r.t.Helper()
	r.Kill()
	if err := r.start(); err != nil {
		r.t.Fatal(err)
	}
}

// Stop freezes the process, Cont lets it go on.
func (r *Replica) Stop() { _ = r.running().cmd.Process.Signal(syscall.SIGSTOP) }
func (r *Replica) Cont() { _ = r.running().cmd.Process.Signal(syscall.SIGCONT) }

// Term sends SIGTERM.
func (r *Replica) Term() { _ = r.running().cmd.Process.Signal(syscall.SIGTERM) }

// WaitExit returns the exit code.
func (r *Replica) WaitExit(timeout time.Duration) int {
	r.t.Helper()
	p := r.running()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(timeout):
		r.t.Fatalf("%s still runs after %v", r.Name, timeout)
		return -1
	}
}

// PID of the process.
func (r *Replica) PID() int { return r.running().cmd.Process.Pid }

// UsageLog is the file it writes usage lines to.
func (r *Replica) UsageLog() string { return r.usage }

// Command is a headgate command with the fleet's variables that was not started yet.
func (f *Fleet) Command(args ...string) *exec.Cmd {
	f.t.Helper()
	cmd := exec.Command(Binary(f.t), args...)
	cmd.Env = f.env
	return cmd
}
