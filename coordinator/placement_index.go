package coordinator

import (
	"slices"

	"github.com/redis/rueidis"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// indexEvery is after how many beats the names are written again, also where nobody noticed that the keys have gone.
const indexEvery = 60

// fewReplicas is how many replicas an answer to a beat lists at least, if there are so many (FEW in beat.lua).
const fewReplicas = 32

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

// forgotten is true when Redis came back without what it knew of a pool: the answer to a beat that is not the first lists few
// replicas and not this one. In a large fleet the first that beat there see it, which is enough: each writes all names.
func (p *Placement) forgotten(r lua.BeatReply) bool {
	return len(r.Replicas) < fewReplicas && !slices.ContainsFunc(r.Replicas, func(b lua.ReplicaBeat) bool { return b.Replica == p.cfg.Replica })
}
