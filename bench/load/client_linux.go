package load

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"time"
)

// Job is a number of clients that ask without a pause: each sends its next request when the answer before has come to its
// end. // I3
type Job struct {
	Addr     netip.AddrPort
	More     []netip.AddrPort // clients take turns among Addr and these
	Requests [][]byte         // as they go over the wire; client i begins with the i-th, and each takes the next one after that
	Clients  int
	Ramp     time.Duration // over which the clients begin, evenly
	Warm     time.Duration // before anything counts, the ramp included
	Window   time.Duration // what is counted
	Least    int           // bytes an answer's body has at least; a shorter one is broken
	Hold     bool          // answers do not end: an answer counts as served with its first byte, and stays open

	Begin func() // when the window begins, on the goroutine of the clients
	End   func() // when it ends, while everything still runs
}

// Outcome is what the clients saw in the window; errors are counted at any time.
type Outcome struct {
	Served    int
	Errors    int
	FirstErr  string
	BodyBytes int64
	Window    time.Duration
	Whole     []time.Duration // from sending to the last byte
	TTFB      []time.Duration // from sending to the first byte of the body
	Open      int             // held when the window ended
}

// asking is one client.
type asking struct {
	sock   socket
	addr   netip.AddrPort
	next   int // request
	sentAt time.Time
	answer answer
	busy   bool
}

// clients is a running Job.
type clients struct {
	job     Job
	poll    *poller
	all     []asking
	scratch []byte
	out     Outcome
	now     time.Time
	count   bool
	stop    bool
	busy    int
	begun   int
}

// Run does the job. An error means that it could not be done at all; what went wrong with requests is in the outcome.
func Run(job Job) (Outcome, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := newPoller()
	if err != nil {
		return Outcome{}, err
	}
	defer p.free()
	c := &clients{job: job, poll: p, all: make([]asking, job.Clients), scratch: make([]byte, 256<<10)}
	start := time.Now()
	err = c.until(start, start.Add(job.Warm))
	if err != nil {
		return c.out, err
	}
	if job.Hold {
		err = c.settle(start)
	}
	if err != nil {
		return c.out, err
	}
	if job.Begin != nil {
		job.Begin()
	}
	c.count = true
	from := time.Now()
	if err := c.until(start, from.Add(job.Window)); err != nil {
		return c.out, err
	}
	c.out.Window = time.Since(from)
	c.out.Open = c.busy
	if job.End != nil {
		job.End()
	}
	c.count, c.stop = false, true
	for end := time.Now().Add(10 * time.Second); c.busy > 0 && !job.Hold && time.Now().Before(end); {
		if err := p.wait(10 * time.Millisecond); err != nil {
			return c.out, err
		}
	}
	return c.out, nil
}

// settle waits until every client holds an answer.
func (c *clients) settle(start time.Time) error {
	for end := time.Now().Add(30 * time.Second); c.out.Served < c.job.Clients; {
		c.now = time.Now()
		if err := c.begin(start); err != nil {
			return err
		}
		if c.out.Errors > 0 {
			return fmt.Errorf("a stream could not be opened: %s", c.out.FirstErr)
		}
		if c.now.After(end) {
			return fmt.Errorf("%d of %d streams have had a first byte", c.out.Served, c.job.Clients)
		}
		if err := c.poll.wait(time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (c *clients) until(start, end time.Time) error {
	for {
		c.now = time.Now()
		if !c.now.Before(end) {
			return nil
		}
		if err := c.begin(start); err != nil {
			return err
		}
		wait := 10 * time.Millisecond
		if c.begun < c.job.Clients {
			wait = time.Millisecond
		}
		if err := c.poll.wait(min(wait, max(end.Sub(c.now), time.Millisecond))); err != nil {
			return err
		}
	}
}

// begin starts the clients whose turn has come.
func (c *clients) begin(start time.Time) error {
	due := c.job.Clients
	if c.job.Ramp > 0 {
		due = min(due, int(int64(c.job.Clients)*int64(c.now.Sub(start))/int64(c.job.Ramp))+1)
	}
	for ; c.begun < due; c.begun++ {
		a := &c.all[c.begun]
		a.next = c.begun
		a.addr = c.job.Addr
		if n := c.begun % (len(c.job.More) + 1); n > 0 {
			a.addr = c.job.More[n-1]
		}
		if err := c.dial(a); err != nil {
			return err
		}
		c.send(a)
	}
	return nil
}

func (c *clients) dial(a *asking) error {
	fd, err := connect(a.addr)
	if err != nil {
		return err
	}
	a.sock = socket{fd: fd, ready: func(*socket) { c.read(a) }}
	return c.poll.add(&a.sock)
}

func (c *clients) send(a *asking) {
	request := c.job.Requests[a.next%len(c.job.Requests)]
	a.next++
	a.sentAt, a.busy = time.Now(), true
	a.answer = answer{}
	c.busy++
	c.poll.write(&a.sock, request)
}

func (c *clients) read(a *asking) {
	n, err := syscall.Read(a.sock.fd, c.scratch)
	if err == syscall.EAGAIN || err == syscall.EINTR {
		return
	}
	if n <= 0 {
		c.fail(a, fmt.Errorf("the connection ended: %w", errors.Join(err, errors.New("in an answer"))))
		return
	}
	if !a.busy {
		c.fail(a, errors.New("bytes behind an answer"))
		return
	}
	before, first := a.answer.bytes, a.answer.bytes == 0
	done, err := a.answer.take(c.scratch[:n])
	if c.count {
		c.out.BodyBytes += int64(a.answer.bytes - before)
	}
	if first && a.answer.bytes > 0 && err == nil {
		if c.count || c.job.Hold {
			c.out.TTFB = append(c.out.TTFB, time.Since(a.sentAt))
		}
		if c.job.Hold {
			c.out.Served++
		}
	}
	if err == nil && done {
		err = a.answer.judge(c.job.Least)
	}
	switch {
	case err != nil:
		c.fail(a, err)
	case done && c.job.Hold:
		c.fail(a, errors.New("a held stream ended"))
	case done:
		c.finish(a)
	}
}

func (c *clients) finish(a *asking) {
	a.busy = false
	c.busy--
	if c.count {
		c.out.Served++
		c.out.Whole = append(c.out.Whole, time.Since(a.sentAt))
	}
	if !c.stop {
		c.send(a)
	}
}

// fail counts an error, whenever it happens, and begins anew.
func (c *clients) fail(a *asking, err error) {
	if c.stop && !a.busy {
		c.poll.close(&a.sock, true)
		return
	}
	c.out.Errors++
	if c.out.FirstErr == "" {
		c.out.FirstErr = err.Error()
	}
	if a.busy {
		c.busy--
		a.busy = false
	}
	c.poll.close(&a.sock, true)
	if c.stop || c.job.Hold || c.out.Errors > 1000 {
		return
	}
	if c.dial(a) == nil {
		c.send(a)
	}
}

func (o Outcome) String() string {
	return fmt.Sprintf("%d served in %v, %d open, %d errors %s", o.Served, o.Window.Round(time.Millisecond), o.Open, o.Errors, o.FirstErr)
}
