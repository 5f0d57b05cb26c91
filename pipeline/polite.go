package pipeline

import (
	"context"
	"crypto/tls"
	"net"
	"runtime"

	"github.com/redis/rueidis"
)

// letOthersFirst has the client's writer wait, before each write, until those goroutines have run that could: what they send
// meanwhile is in the next write, all of it. Without that the writer runs as soon as there is one command, so each request of
// a busy replica takes writes of its own, and Redis as many reads. A replica that has nothing else to do loses nothing.
func letOthersFirst(option *rueidis.ClientOption) {
	dial := option.DialCtxFn
	if dial == nil {
		dial = dialRedis
	}
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, cfg *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, cfg)
		if err != nil {
			return nil, err
		}
		return politeConn{conn}, nil
	}
}

func dialRedis(ctx context.Context, addr string, d *net.Dialer, cfg *tls.Config) (net.Conn, error) {
	if cfg != nil {
		return (&tls.Dialer{NetDialer: d, Config: cfg}).DialContext(ctx, "tcp", addr)
	}
	return d.DialContext(ctx, "tcp", addr)
}

// politeConn is a connection whose writes let others go first.
type politeConn struct{ net.Conn }

func (c politeConn) Write(p []byte) (int, error) {
	runtime.Gosched()
	return c.Conn.Write(p)
}
