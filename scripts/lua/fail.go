package lua

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var failScript = read("fail")

// FailArgs says that a backend failed a request.
type FailArgs struct {
	Backend   string
	Silent    bool  // no first token came; else it failed outright
	Row       int   // so many silent ones in a row cool it down
	FirstMS   int64 // the first wait; each further one is twice as long
	LongestMS int64
}

// FailReply says what follows.
type FailReply struct {
	UntilMS  int64 // when the backend is used again; 0: it does not cool down
	Failures int64 // in a row that cooled it down
	NowMS    int64
	Began    bool // with this failure
}

// Fail declares a below the root of a pool.
func Fail(b *pipeline.Batch, s *pipeline.Store, root string, a FailArgs) *pipeline.Handle[FailReply] {
	kind := "1"
	if a.Silent {
		kind = "2"
	}
	args := []string{a.Backend, kind, strconv.Itoa(a.Row), figure(a.FirstMS), figure(a.LongestMS)}
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: failScript, Key: root, Args: args},
		func(m rueidis.RedisMessage) (FailReply, error) {
			f, err := wholes(m, 4)
			if err != nil {
				return FailReply{}, fmt.Errorf("fail: %w", err)
			}
			return FailReply{UntilMS: f[0], Failures: f[1], NowMS: f[2], Began: f[3] == 1}, nil
		})
}
