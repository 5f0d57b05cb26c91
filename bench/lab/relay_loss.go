package lab

import (
	"bytes"
	"net"
)

// loss is a reply the relay is to lose. The relay's mutex guards it.
type loss struct {
	match []byte // nil = none
	conn  int    // the connection whose next bytes from the target are lost; 0 = not yet seen
	done  chan struct{}
}

// LoseReply lets the next segment of a client that contains match through to the target, drops the bytes that come back and
// resets the connection, once. The channel is closed when that has happened. A second call replaces the first.
func (r *RelayServer) LoseReply(match string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loss = loss{match: []byte(match), done: make(chan struct{})}
	return r.loss.done
}

// loses reports whether what was read from a connection is to be lost; its two sides are reset then.
func (r *RelayServer) loses(conn int, up bool, data []byte, sides ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch l := &r.loss; {
	case l.match == nil:
		return false
	case up && l.conn == 0 && bytes.Contains(data, l.match):
		l.conn = conn
		return false
	case up || l.conn != conn:
		return false
	}
	close(r.loss.done)
	r.loss = loss{}
	for _, c := range sides {
		if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		c.Close()
	}
	return true
}
