package coordinator

import (
	"slices"

	"github.com/redis/rueidis"

	"github.com/headgate/headgate/pipeline"
)

// indexEvery is after how many beats the names are written again: the keys may have gone with a primary.
const indexEvery = 60

// maxIndexed bounds one command.
const maxIndexed = 1000

// index writes the names of pools and backends that people will look for, behind the beat: neither the beat nor anything
// but sight depends on them.
func (p *Placement) index(views []PoolView) {
	names := map[string][]string{}
	for _, v := range views {
		s := p.pulse[v.Name]
		whole := s.beats%indexEvery == 0
		for _, f := range v.Backends {
			if _, known := s.published[f.ID]; whole || !known {
				names[BackendIndex(v.Name)] = append(names[BackendIndex(v.Name)], SafeID(f.ID))
			}
		}
		if whole && v.Name != wholeFleet {
			names[PoolIndex()] = append(names[PoolIndex()], v.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	post := p.cfg.Pipeline.Post()
	post.With(func(b *pipeline.Batch) {
		for key, all := range names {
			for some := range slices.Chunk(all, maxIndexed) {
				pipeline.Declare(b, pipeline.Command{Store: p.cfg.Store, Name: "SADD", Key: key, Args: some},
					func(rueidis.RedisMessage) (struct{}, error) { return struct{}{}, nil })
			}
		}
	})
	post.Send()
}
