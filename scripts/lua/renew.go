package lua

import (
	"fmt"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var renewScript = read("renew")

// RenewMax is the most reservations one call may renew.
const RenewMax = 500

// RenewReply says what became of the reservations of one call.
type RenewReply struct {
	Renewed  int64
	Reopened int64    // of these; they had lapsed
	Missing  []string // rids of which Redis knows no reservation
}

// Renew declares that owner still works on rids, at most RenewMax.
func Renew(b *pipeline.Batch, s *pipeline.Store, root, owner string, rids []string) *pipeline.Handle[RenewReply] {
	return renewAt(b, s, root, owner, rids, "")
}

func renewAt(b *pipeline.Batch, s *pipeline.Store, root, owner string, rids []string, nowMS string) *pipeline.Handle[RenewReply] {
	args := append(append(make([]string, 0, len(rids)+2), owner, nowMS), rids...)
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: renewScript, Key: root, Args: args},
		func(m rueidis.RedisMessage) (RenewReply, error) {
			f, err := m.ToArray()
			if err != nil {
				return RenewReply{}, err
			}
			if len(f) < 2 {
				return RenewReply{}, fmt.Errorf("reply of %d fields, want 2 and more", len(f))
			}
			d := fields{}
			r := RenewReply{Renewed: d.whole(f[0]), Reopened: d.whole(f[1])}
			for _, m := range f[2:] {
				r.Missing = append(r.Missing, d.text(m))
			}
			return r, d.err
		})
}
