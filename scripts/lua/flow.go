package lua

import (
	"fmt"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var flowScript = read("flow")

// FlowReply is what passes through a pool.
type FlowReply struct {
	NowMS   int64
	Advice  string   // "" = none yet
	Figures []string // of each replica that published of late
}

// Flow declares the figures of a replica below the root of a pool; advice "" keeps the pool's.
func Flow(b *pipeline.Batch, s *pipeline.Store, root, replica, figures, advice string) *pipeline.Handle[FlowReply] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: flowScript, Key: root, Args: []string{replica, figures, advice}},
		func(m rueidis.RedisMessage) (FlowReply, error) {
			f, err := array(m, 3)
			if err != nil {
				return FlowReply{}, fmt.Errorf("flow: %w", err)
			}
			d := fields{}
			r := FlowReply{NowMS: d.whole(f[0])}
			r.Advice, err = f[1].ToString()
			d.keep(err)
			for t := d.texts(f[2]); len(t) >= 2; t = t[2:] {
				r.Figures = append(r.Figures, t[1])
			}
			if d.err != nil {
				return FlowReply{}, fmt.Errorf("flow: %w", d.err)
			}
			return r, nil
		})
}
