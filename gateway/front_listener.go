package gateway

import (
	"bytes"
	"net"
	"net/http"
	"strconv"

	"github.com/headgate/headgate/gateway/protocol"
)

// Listener makes the public port speak one language: what net/http refuses before any handler runs (a head that is no
// HTTP or too large, an expectation it does not know) it answers in plain text or with nothing, and here that becomes
// an error body. Those are no client requests: they leave no usage record, and the connection ends.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return frontConn{c}, nil
}

type frontConn struct{ net.Conn }

// CloseWrite lets net/http end an answer before it closes the connection.
func (c frontConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c frontConn) Write(p []byte) (int, error) {
	e, foreign := refusedByHTTP(p)
	if !foreign {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(appendRefusal(nil, e)); err != nil {
		return 0, err
	}
	return len(p), nil
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
	dst = append(dst, "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}
