package lua

import (
	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var expireScript = read("expire")

// ExpireReply is one step of an expiry. Next "0": that was the last.
type ExpireReply struct {
	Next    string
	Settled int64
	Stuck   int64 // left open: a key they need cannot be read
}

// Expire declares one step of charging everything owner left open; cursor "0" is the first. It is safe to repeat.
func Expire(b *pipeline.Batch, s *pipeline.Store, root, owner, cursor string) *pipeline.Handle[ExpireReply] {
	return expireAt(b, s, root, owner, cursor, 0)
}

func expireAt(b *pipeline.Batch, s *pipeline.Store, root, owner, cursor string, nowMS int64) *pipeline.Handle[ExpireReply] {
	args := withClock([]string{owner, cursor}, nowMS)
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: expireScript, Key: root, Args: args},
		func(m rueidis.RedisMessage) (ExpireReply, error) {
			f, err := array(m, 3)
			if err != nil {
				return ExpireReply{}, err
			}
			d := fields{}
			return ExpireReply{Next: d.text(f[0]), Settled: d.whole(f[1]), Stuck: d.whole(f[2])}, d.err
		})
}
