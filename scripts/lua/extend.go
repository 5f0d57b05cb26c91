package lua

import (
	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var extendScript = read("extend")

// ExtendArgs asks for the hold of a stream to cover Total tokens of output.
type ExtendArgs struct {
	RID, KeyHash string
	Total        int64

	nowMS int64 // tests only
}

// ExtendReply is what the hold covers now.
type ExtendReply struct {
	Granted int64  // tokens of output; 0: not open, or not held in tranches
	Claim   string // as filed now
}

// Extend declares the top-up on b. It sets a total, so it is safe to repeat. as is as in Admit.
func Extend[T any](b *pipeline.Batch, s *pipeline.Store, root string, a ExtendArgs, as func(ExtendReply) T) *pipeline.Handle[T] {
	args := withClock([]string{a.RID, a.KeyHash, decimal(a.Total)}, a.nowMS)
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: extendScript, Key: root, Args: args}, through(readExtend, as))
}

func readExtend(m rueidis.RedisMessage) (ExtendReply, error) {
	f, err := array(m, 2)
	if err != nil {
		return ExtendReply{}, err
	}
	d := fields{}
	r := ExtendReply{Granted: d.whole(f[0]), Claim: d.text(f[1])}
	return r, d.err
}
