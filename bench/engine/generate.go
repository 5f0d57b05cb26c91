package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// call is one generation request on its way through the handler.
type call struct {
	engine *Engine
	parse  parser
	w      http.ResponseWriter
	r      *http.Request
	fault  Fault
	seen   *Seen
	begun  bool // the head went out
}

// errClientGone ends a request whose client left; errFault one that was broken on purpose, as far as it should go.
var (
	errClientGone = errors.New("engine: the client left")
	errFault      = errors.New("engine: fault")
)

// generate answers a route that computes: read, perhaps fail on demand, validate, generate.
func (e *Engine) generate(parse parser) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client left while sending
		}
		c := &call{engine: e, parse: parse, w: w, r: r, fault: e.takeFault(), seen: e.seen.add(r, body)} // I5
		c.note(c.run(body))
	}
}

// note files the end of the call; "" is noted later.
func (c *call) note(outcome string) {
	if outcome != "" {
		c.engine.seen.update(c.seen, func(s *Seen) { s.Ended, s.Outcome = time.Now(), outcome })
	}
}

// run returns the outcome for the log.
func (c *call) run(body []byte) string {
	if done := c.failEarly(); done {
		return c.fault.Kind
	}
	g, invalid := c.parse(c.engine, c.r, body)
	if invalid == nil {
		g.id = g.prefix + requestID(c.r)
		invalid = c.engine.submit(g.id, g.seqs)
	}
	if invalid != nil {
		c.refuse(invalid)
		return "rejected"
	}
	if g.background {
		c.detach(g)
	}
	var err error
	if g.stream {
		err = g.events(c)
	} else {
		err = c.whole(g)
	}
	if g.background {
		return "" // its end is noted by who waits for it
	}
	return c.end(g, err)
}

// end frees what the generation holds and returns its outcome.
func (c *call) end(g *generation, err error) string {
	output, cached := 0, 0
	for _, s := range g.seqs {
		output += int(s.generated.Load())
		cached = max(cached, int(s.cached.Load()))
	}
	c.engine.seen.update(c.seen, func(s *Seen) { s.Prompt, s.Cached, s.Output = g.promptTokens, cached, output })
	switch {
	case errors.Is(err, errFault):
		c.engine.leave(g.id, "error", g.seqs)
		return c.fault.Kind
	case err != nil:
		c.engine.leave(g.id, "abort", g.seqs)
		return "abort"
	}
	c.engine.leave(g.id, "abort", nil)
	if g.after != nil {
		g.after(c)
	}
	if c.fault.Kind != "" {
		return c.fault.Kind
	}
	return "ok"
}

// await blocks until there is news of the request's sequences.
func (c *call) await(g *generation) error {
	select {
	case <-g.news:
		return nil
	case <-c.r.Context().Done():
		return errClientGone
	}
}

// firstToken notes when the first token was there.
func (c *call) firstToken() {
	c.engine.seen.update(c.seen, func(s *Seen) {
		if s.FirstToken.IsZero() {
			s.FirstToken = time.Now()
		}
	})
}

func (c *call) head(status int) {
	c.begun = true
	c.engine.seen.update(c.seen, func(s *Seen) { s.Status = status })
	c.w.WriteHeader(status)
}

func (c *call) refuse(err *apiError) {
	body := err.body()
	if c.r.URL.Path == messagesPath {
		body = err.messagesBody()
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.head(err.status)
	c.w.Write(body)
}

// failEarly plays faults that strike before anything was generated.
func (c *call) failEarly() bool {
	f := c.fault
	if status := f.status(); status != 0 {
		c.pause()
		c.refuse(&apiError{status, "InternalServerError", "Internal server error", ""})
		return true
	}
	switch f.Kind {
	case CloseBeforeHead:
		c.pause()
		c.hangUp(false)
	case HangBeforeHead:
		<-c.r.Context().Done()
	case CloseAfterHead:
		c.pause()
		c.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		c.head(http.StatusOK)
		http.NewResponseController(c.w).Flush()
		c.hangUp(false)
	case Garbage:
		if f.After > 0 {
			return false
		}
		c.pause()
		c.hangUp(false, "\x00\x01 this is not HTTP \xff\xfe\r\n\r\n")
	default:
		return false
	}
	return true
}

// pause waits the fault's Delay.
func (c *call) pause() {
	if c.fault.Delay > 0 {
		wait(c.r.Context(), c.fault.Delay)
	}
}

// hangUp ends the connection where it stands: with a reset, or with the plain end of the bytes, after last.
func (c *call) hangUp(reset bool, last ...string) {
	if c.begun { // a flush before would send a head
		http.NewResponseController(c.w).Flush()
	}
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for _, text := range last {
		io.WriteString(conn, text)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		tcp.SetLinger(0)
	}
	conn.Close()
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// requestID is the client's label, or 32 random hex digits.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// usage of the request so far.
func (c *call) usage(g *generation, output int) string {
	details := ""
	if !c.engine.opts.HideCached {
		cached := 0
		for _, s := range g.seqs {
			cached = max(cached, int(s.cached.Load()))
		}
		details = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, min(cached, g.promptTokens))
	}
	return fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%s}`,
		g.promptTokens, g.promptTokens+output, output, details) // I3
}
