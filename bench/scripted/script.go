package scripted

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Script is what is done for one request, step by step. Behind the last step the connection waits for the next request.
type Script []Step

// Step does one thing. It returns false when the connection is over.
type Step func(*conn, *Request) bool

// Then is the script with further steps.
func (s Script) Then(steps ...Step) Script { return append(append(Script(nil), s...), steps...) }

// Write sends text in one write.
func Write(text string) Step {
	return func(c *conn, q *Request) bool {
		n, err := c.tcp.Write([]byte(text))
		q.written.Add(int64(n))
		if err != nil {
			c.left()
		}
		return err == nil
	}
}

// Chunk sends text as one chunk of a chunked body, in one write.
func Chunk(text string) Step { return Write(chunk(text)) }

func chunk(text string) string {
	return strconv.FormatInt(int64(len(text)), 16) + "\r\n" + text + "\r\n"
}

// End ends a chunked body in order.
func End() Step { return Write("0\r\n\r\n") }

// Pause waits; a peer that leaves meanwhile ends the script.
func Pause(d time.Duration) Step {
	return func(c *conn, _ *Request) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-c.gone:
			return false
		}
	}
}

// Until waits for ready to be closed; a peer that leaves meanwhile ends the script.
func Until(ready <-chan struct{}) Step {
	return func(c *conn, _ *Request) bool {
		select {
		case <-ready:
			return true
		case <-c.gone:
			return false
		}
	}
}

// Do runs fn between two writes, for what a test wants to note.
func Do(fn func()) Step { return func(*conn, *Request) bool { fn(); return true } }

// Hang keeps the connection open and says nothing more, until the peer leaves.
func Hang() Step { return Until(nil) }

// Close ends the connection in order (FIN). If something was not read the kernel makes it a reset.
func Close() Step { return func(c *conn, _ *Request) bool { c.hangUp(false); return false } }

// Reset ends the connection out of order (RST).
func Reset() Step {
	return func(c *conn, _ *Request) bool { c.hangUp(true); return false }
}

// Head is a status line and header lines in one write: Head(200, "Content-Length: 2").
func Head(status int, fields ...string) Step {
	text := fmt.Sprintf("HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	for _, f := range fields {
		text += f + "\r\n"
	}
	return Write(text + "\r\n")
}

// Answer is a whole answer with a Content-Length, in one write.
func Answer(status int, contentType, body string, fields ...string) Script {
	text := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n", status, http.StatusText(status), contentType, len(body))
	for _, f := range fields {
		text += f + "\r\n"
	}
	return Script{Write(text + "\r\n" + body)}
}

// JSON is an Answer of that type.
func JSON(status int, body string) Script { return Answer(status, "application/json", body) }

// StreamHead begins an event stream with a chunked body; the caller ends it.
func StreamHead(fields ...string) Step {
	return Head(200, append([]string{"Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked"}, fields...)...)
}

// Begin is an event stream that has sent these events, each in a chunk of its own, and is not ended.
func Begin(events ...string) Script {
	script := Script{StreamHead()}
	for _, e := range events {
		script = append(script, Chunk(e))
	}
	return script
}

// Stream is Begin, ended in order.
func Stream(events ...string) Script { return Begin(events...).Then(End()) }
