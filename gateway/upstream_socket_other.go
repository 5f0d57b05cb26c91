//go:build !linux

package gateway

import (
	"net"
	"time"
)

type engineSocketState uint8

const (
	engineQuiet engineSocketState = iota
	engineSpoke
	engineGone
)

// engineSocket knows nothing here: every idle connection looks usable, and what was acknowledged is not known.
type engineSocket struct{}

func (s *engineSocket) open(*net.TCPConn) error      { return nil }
func (s *engineSocket) giveUpAfter(time.Duration)    {}
func (s *engineSocket) look() engineSocketState      { return engineQuiet }
func (s *engineSocket) acked() (n int64, known bool) { return 0, false }

func (s *engineSocket) receive(c *net.TCPConn, r engineReader) error {
	for {
		if n, err := c.Read(r.lend()); !r.took(n, err) {
			return nil
		}
	}
}
