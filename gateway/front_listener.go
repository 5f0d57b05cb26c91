package gateway

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/gateway/protocol"
)

// Listener makes the public port speak one language: what net/http refuses before any handler runs (a head that is no
// HTTP or too large, an expectation it does not know) it answers in plain text or with nothing, and here that becomes
// an error body. Those are no client requests: they leave no usage record, and the connection ends.
//
// No more than most connections are open at a time, so that descriptors are left for engines and Redis; one more is told so
// and closed, refusalsAtOnce at a time, and the next ones wait in the kernel's queue. log hears of it once
// a minute.
func Listener(l net.Listener, most int, log zerolog.Logger) net.Listener {
	return &listener{Listener: l, most: int64(most), log: log, refusals: make(chan struct{}, refusalsAtOnce)}
}

const (
	refusalsAtOnce = 16
	refusalTime    = time.Second // for a connection to say what it wants, and once more to hear that there is no room
	refusalBytes   = 256 << 10   // read of what it says; one that says more is reset
)

type listener struct {
	net.Listener
	most int64
	log  zerolog.Logger

	open     atomic.Int64
	refusals chan struct{} // holds one entry for each that is being told

	turns int64     // turned away since told; of Accept's goroutine alone, like told
	told  time.Time // when the log heard of it last
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &frontConn{Conn: c, open: &l.open}, nil
		}
		l.open.Add(-1)
		l.turnAway(c)
	}
}

// turnAway waits only while refusalsAtOnce others are being told. A TLS connection, which would have to shake hands first, is
// told nothing.
func (l *listener) turnAway(c net.Conn) {
	if tcp, plain := c.(*net.TCPConn); plain {
		l.refusals <- struct{}{}
		go func() {
			defer func() { <-l.refusals }()
			tellNoRoom(tcp)
		}()
	} else {
		_ = c.Close()
	}
	l.turns++
	if now := time.Now(); now.Sub(l.told) >= time.Minute {
		l.log.Warn().Int64("most", l.most).Int64("turned_away", l.turns).Msg("too many connections on the public port")
		l.told, l.turns = now, 0
	}
}

// tellNoRoom reads a request before it answers.
func tellNoRoom(c *net.TCPConn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(refusalTime))
	_, _ = c.Read(make([]byte, 4<<10))
	lastWord(c, protocol.NoRoom("connection"))
}

// lastWord writes an answer and reads what else comes until the client closes: what is sent to a connection that was closed
// unread is a reset, which takes the answer with it.
func lastWord(c *net.TCPConn, e protocol.Error) {
	_ = c.SetDeadline(time.Now().Add(refusalTime))
	if _, err := c.Write(appendRefusal(nil, e)); err != nil || c.CloseWrite() != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(c, refusalBytes))
}

// httpErrorFields are what net/http writes between the status line and the text of its own errors, in one write. No
// answer of a handler looks so: those have a Date at least, and all but a preflight's an X-Request-Id.
var httpErrorFields = []byte("Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// refusedByHTTP recognises an answer that net/http made itself.
func refusedByHTTP(p []byte) (protocol.Error, bool) {
	const start = len("HTTP/1.1 ")
	if len(p) < start+3 || p[start] != '4' && p[start] != '5' || string(p[:start]) != "HTTP/1.1 " {
		return protocol.Error{}, false
	}
	status, rest, _ := bytes.Cut(p[start:], []byte("\r\n"))
	code, _ := strconv.Atoi(string(status[:3]))
	switch {
	case code == 417 && bytes.Contains(rest, []byte("\r\nContent-Length: 0\r\n")) && !bytes.Contains(rest, []byte("X-Request-Id:")):
		return protocol.ExpectationFailed(), true
	case !bytes.HasPrefix(rest, httpErrorFields):
		return protocol.Error{}, false
	}
	e := protocol.Error{Status: code, Type: "invalid_request_error", Code: "invalid_request", Message: "The request is not valid HTTP."}
	if _, why, said := bytes.Cut(rest[len(httpErrorFields):], []byte(": ")); said && code != 501 {
		e.Message = "The request is not valid HTTP: " + string(why) + "."
	}
	switch code {
	case 431:
		e.Code, e.Message = "headers_too_large", "The header is larger than "+strconv.Itoa(maxHeadBytes)+" bytes."
	case 501:
		e.Code, e.Message = protocol.CodeUnsupportedEncoding, "The only transfer encoding that is understood is chunked."
	}
	return e, true
}

func appendRefusal(dst []byte, e protocol.Error) []byte {
	body := protocol.AppendBody(nil, e)
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(e.Status), 10)
	dst = append(dst, ' ')
	dst = append(dst, http.StatusText(e.Status)...)
	if e.Status == http.StatusServiceUnavailable {
		dst = append(dst, "\r\nRetry-After: 1"...)
	}
	dst = append(dst, "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}

// overloaded reports a head with more fields than any client has use for: each costs more than its bytes.
func overloaded(h http.Header) bool {
	n := 0
	for _, values := range h {
		n += len(values)
	}
	return n > maxFields
}
