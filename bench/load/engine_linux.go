package load

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Engine answers chat requests on several ports. What it does is told it over HTTP, by Tell.
//
//	a request with "stream":true  an event stream of Tokens events, the first TTFT after the request, the others a Pace
//	                              apart, then a finish, usage and [DONE]; with no Pace all of it in one write
//	any other                     a whole answer at once
//	GET /set?…                    takes a Plan for the requests from now on
//	GET /stats                    Stats as text
//	GET anything else             what a gateway may ask an engine for: models, health, metrics
type Engine struct {
	Ports []int

	poll     *poller
	plan     Plan
	stats    Stats
	scratch  []byte
	wheel    [wheelSlots][]*answering // by the millisecond they are due
	ticked   int64                    // the millisecond the wheel has come to
	inflight int
	start    time.Time
}

// Plan is how streams are answered.
type Plan struct {
	TTFT, Pace time.Duration // Pace 0: the whole stream at once
	Tokens     int
}

// Stats are totals since the start.
type Stats struct {
	Requests   int64
	Streams    int64
	AskedUsage int64 // streams whose body had include_usage near its beginning or its end
	BodyBytes  int64
}

const wheelSlots = 4096

// answering is a connection of a client of the engine.
type answering struct {
	sock    socket
	head    []byte // of a head that came in pieces
	left    int    // of the body
	stream  bool
	asked   bool
	sent    int // tokens
	due     int64
	began   int64
	plan    Plan
	running bool
}

// NewEngine listens on so many ports.
func NewEngine(ports int) (*Engine, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	e := &Engine{poll: p, plan: Plan{Tokens: 1}, scratch: make([]byte, 1<<20), start: time.Now()}
	for range ports {
		fd, port, err := listen()
		if err != nil {
			return nil, err
		}
		e.Ports = append(e.Ports, port)
		if err := p.add(&socket{fd: fd, ready: e.accept}); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Run serves until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer e.poll.free()
	for ctx.Err() == nil {
		wait := 100 * time.Millisecond
		if e.inflight > 0 {
			wait = time.Millisecond
		}
		if err := e.poll.wait(wait); err != nil {
			return err
		}
		e.tick()
	}
	return nil
}

func (e *Engine) accept(l *socket) {
	for {
		fd, _, err := syscall.Accept4(l.fd, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		c := &answering{}
		c.sock = socket{fd: fd, ready: func(*socket) { e.read(c) }}
		if e.poll.add(&c.sock) != nil {
			_ = syscall.Close(fd)
		}
	}
}

func (e *Engine) read(c *answering) {
	n, err := syscall.Read(c.sock.fd, e.scratch)
	if err == syscall.EAGAIN || err == syscall.EINTR {
		return
	}
	if n <= 0 {
		e.drop(c)
		return
	}
	for b := e.scratch[:n]; len(b) > 0; {
		if c.left > 0 {
			b = e.body(c, b)
			continue
		}
		if len(c.head) > 0 {
			c.head = append(c.head, b...)
			b, c.head = c.head, nil
		}
		end := bytes.Index(b, []byte("\r\n\r\n"))
		if end < 0 {
			c.head = append([]byte(nil), b...)
			return
		}
		head := b[:end+4]
		b = b[end+4:]
		if bytes.HasPrefix(head, []byte("GET ")) {
			target, _, _ := bytes.Cut(head[4:], []byte(" "))
			e.poll.write(&c.sock, e.inform(string(target)))
			continue
		}
		c.left, c.stream, c.asked = lengthOf(head), false, false
		c.look(b[:min(len(b), 1024)])
		if c.left == 0 {
			e.answer(c)
		}
	}
}

func (c *answering) look(b []byte) {
	c.stream = c.stream || bytes.Contains(b, []byte(`"stream":true`)) || bytes.Contains(b, []byte(`"stream": true`))
	c.asked = c.asked || bytes.Contains(b, []byte("include_usage"))
}

// body takes its part of b and returns what is behind it.
func (e *Engine) body(c *answering, b []byte) []byte {
	n := min(c.left, len(b))
	c.left -= n
	e.stats.BodyBytes += int64(n)
	if c.left == 0 {
		c.look(b[max(0, n-256):n])
		e.answer(c)
	}
	return b[n:]
}

func lengthOf(head []byte) int {
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if len(name) == len("content-length") && strings.EqualFold(string(name), "content-length") {
			n, _ := strconv.Atoi(string(bytes.TrimSpace(value)))
			return n
		}
	}
	return 0
}

func (e *Engine) answer(c *answering) {
	e.stats.Requests++
	if !c.stream {
		e.poll.write(&c.sock, wholeAnswer)
		return
	}
	e.stats.Streams++
	if c.asked {
		e.stats.AskedUsage++
	}
	c.plan = e.plan
	if c.plan.Pace <= 0 {
		e.poll.write(&c.sock, streamAtOnce(c.plan.Tokens))
		return
	}
	if c.running { // a second request before the first was answered
		e.drop(c)
		return
	}
	e.inflight++
	c.sent, c.running, c.began = 0, true, e.now()
	e.schedule(c, c.began+max(1, c.plan.TTFT.Milliseconds()))
}

func (e *Engine) now() int64 { return time.Since(e.start).Milliseconds() }

func (e *Engine) schedule(c *answering, due int64) {
	c.due = max(due, e.ticked+1)
	slot := c.due % wheelSlots
	e.wheel[slot] = append(e.wheel[slot], c)
}

// tick sends what is due.
func (e *Engine) tick() {
	for now := e.now(); e.ticked < now; {
		e.ticked++
		slot := &e.wheel[e.ticked%wheelSlots]
		due := *slot
		*slot = nil
		for _, c := range due {
			switch {
			case c.sock.fd < 0:
			case c.due > e.ticked: // in a later round
				*slot = append(*slot, c)
			default:
				e.token(c)
			}
		}
		if *slot == nil && cap(due) > 0 {
			*slot = due[:0]
		}
	}
}

// token sends the next event. // I2
func (e *Engine) token(c *answering) {
	switch {
	case c.sent == 0:
		e.poll.write(&c.sock, firstToken)
	case c.sent < c.plan.Tokens:
		e.poll.write(&c.sock, nextToken)
	default:
		e.poll.write(&c.sock, streamEnd)
		e.inflight--
		c.running = false
		return
	}
	e.schedule(c, c.began+(c.plan.TTFT+time.Duration(c.sent+1)*c.plan.Pace).Milliseconds())
	c.sent++
}

func (e *Engine) drop(c *answering) {
	if c.running {
		e.inflight--
		c.running = false
	}
	e.poll.close(&c.sock, false)
}

// inform answers what is asked with GET.
func (e *Engine) inform(target string) []byte {
	path, query, _ := strings.Cut(target, "?")
	switch path {
	case "/set":
		plan, err := parsePlan(query)
		if err != nil {
			return respond(400, err.Error())
		}
		e.plan = plan
		return respond(200, "ok")
	case "/stats":
		s := e.stats
		return respond(200, fmt.Sprintf("%d %d %d %d", s.Requests, s.Streams, s.AskedUsage, s.BodyBytes))
	case "/v1/models":
		return respond(200, models)
	case "/metrics":
		return respond(200, fmt.Sprintf("vllm:num_requests_running{model_name=%q} %d\nvllm:num_requests_waiting{model_name=%q} 0\nvllm:kv_cache_usage_perc{model_name=%q} 0.1\n",
			Model, e.inflight/len(e.Ports), Model, Model))
	case "/health":
		return respond(200, "")
	}
	return respond(404, `{"detail":"Not Found"}`)
}

func respond(status int, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %d Whatever\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}
