package pipeline

import (
	"context"

	"github.com/redis/rueidis"
)

// anywhere sends a command without a key to one node of a cluster after the other until one answers: a seed of the URL may
// have been dead for weeks, and the client would go on asking it now and then.
func (s *Store) anywhere(ctx context.Context, client rueidis.Client, name string, args []string) (m rueidis.RedisMessage, err error) {
	err = ErrUnavailable
	for _, node := range client.Nodes() {
		m, err = s.askNode(ctx, node, name, args)
		if _, answered := rueidis.IsRedisErr(err); ctx.Err() != nil || err == nil || answered && !Away(err) {
			break
		}
	}
	return m, err
}

// askNode leaves time for others.
func (s *Store) askNode(ctx context.Context, node rueidis.Client, name string, args []string) (rueidis.RedisMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout/4)
	defer cancel()
	return node.Do(ctx, plain(node, name, "", args)).ToMessage()
}
