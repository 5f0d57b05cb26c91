package lua

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var clearScript = read("clear")

// ClearArgs names a replica and the last beat its judge saw.
type ClearArgs struct {
	Replica string
	BeatMS  int64 // 0: whatever it is, for a replica that leaves by itself
	Most    int   // waiters and leases taken in one call, 1 to 500
}

// ClearReply says what clear did.
type ClearReply struct {
	Same     bool  // false: the replica has beaten since, or is not known; nothing was changed
	Left     int64 // waiters and leases it still has; 0: it is forgotten
	Released int64
	Dequeued int64
	Granted  int64 // slots handed over
}

// Clear declares a below the root of a pool. It is repeated until nothing is left.
func Clear(b *pipeline.Batch, s *pipeline.Store, root string, a ClearArgs) *pipeline.Handle[ClearReply] {
	beat := ""
	if a.BeatMS != 0 {
		beat = strconv.FormatInt(a.BeatMS, 10)
	}
	args := []string{a.Replica, beat, strconv.Itoa(a.Most)}
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: clearScript, Key: root, Args: args}, readClear)
}

func readClear(m rueidis.RedisMessage) (ClearReply, error) {
	f, err := wholes(m, 5)
	if err != nil {
		return ClearReply{}, fmt.Errorf("clear: %w", err)
	}
	return ClearReply{Same: f[0] == 1, Left: f[1], Released: f[2], Dequeued: f[3], Granted: f[4]}, nil
}
