package gateway

import (
	"crypto/tls"
	"errors"
	"net"

	"github.com/headgate/headgate/gateway/protocol"
)

// TLS is l with TLS on every connection: a Listener goes around it. A connection is handed over before its handshake, which
// counts into the time that a head may take; a client that speaks HTTP in cleartext is told so, and its connection ends.
func TLS(l net.Listener, cfg *tls.Config) net.Listener { return tlsListener{l, cfg} }

type tlsListener struct {
	net.Listener
	cfg *tls.Config
}

func (l tlsListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tlsConn{tls.Server(c, l.cfg)}, nil
}

type tlsConn struct{ *tls.Conn }

func (c tlsConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		tellCleartext(err)
	}
	return n, err
}

// tellCleartext answers a first record that begins as an HTTP request does, with a capital letter, as none of TLS can.
func tellCleartext(err error) {
	var first tls.RecordHeaderError
	if !errors.As(err, &first) || first.RecordHeader[0] < 'A' || first.RecordHeader[0] > 'Z' {
		return
	}
	if c, ok := first.Conn.(*net.TCPConn); ok { // nil after a handshake
		lastWord(c, protocol.Error{Status: 400, Type: "invalid_request_error", Code: "invalid_request", Message: "This port speaks HTTPS: write https:// in the URL."})
	}
}
