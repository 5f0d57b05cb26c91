package lua

import (
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var cacheWriteScript = read("cache_write")

// CacheWriteArgs is one answer to store.
type CacheWriteArgs struct {
	Hash   string
	TTLMS  int64 // 1 or more
	Fields [][2]string
}

// CacheWrite declares a below the root of a tenant. The reply is when it was stored, in ms.
func CacheWrite(b *pipeline.Batch, s *pipeline.Store, root string, a CacheWriteArgs) *pipeline.Handle[int64] {
	args := make([]string, 0, 2+2*len(a.Fields))
	args = append(args, a.Hash, strconv.FormatInt(a.TTLMS, 10))
	for _, f := range a.Fields {
		args = append(args, f[0], f[1])
	}
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: cacheWriteScript, Key: root, Args: args},
		func(m rueidis.RedisMessage) (int64, error) { return m.AsInt64() })
}
