package lua

import (
	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var allowedScript = read("allowed")

// AllowedReply is whose key it is and the model lists that bind it.
type AllowedReply struct {
	Verdict         int64
	Key, Team, User string
	Lists           []string
}

// Allowed declares the look-up of a key's model lists; it counts no request. as is as in Admit.
func Allowed[T any](b *pipeline.Batch, s *pipeline.Store, root, keyHash string, as func(AllowedReply) T) *pipeline.Handle[T] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: allowedScript, Key: root, Args: []string{keyHash}}, through(readAllowed, as))
}

func readAllowed(m rueidis.RedisMessage) (AllowedReply, error) {
	f, err := array(m, 5)
	if err != nil {
		return AllowedReply{}, err
	}
	d := fields{}
	r := AllowedReply{Verdict: d.whole(f[0]), Key: d.text(f[1]), Team: d.text(f[2]), User: d.text(f[3]), Lists: d.texts(f[4])}
	return r, d.err
}
