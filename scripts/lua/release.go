package lua

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var releaseScript = read("release")

// ReleaseArgs names what is given back: all that RID holds for attempts up to Attempt.
type ReleaseArgs struct {
	RID     string
	Attempt int
	Replica string

	Ran    Ran
	TTFTMS int64 // from the slot to the first token of a stream; 0: not known
	Tokens int64 // generated
	NowMS  int64 // 0: Redis' clock, as in all that is not a test
}

// Ran is how the request went on its backend.
type Ran int

// What may be known of that.
const (
	RanUnknown  Ran = iota
	RanNot          // it was never sent there
	RanAnswered     // the backend gave a first token
)

// ReleaseReply says what release did.
type ReleaseReply struct {
	Released bool  // a slot
	Dequeued bool  // a place in the queue
	Granted  int64 // slots handed over
	NowMS    int64
}

// Release declares a below the root of a pool. It is safe to repeat.
func Release(b *pipeline.Batch, s *pipeline.Store, root string, a ReleaseArgs) *pipeline.Handle[ReleaseReply] {
	args := []string{a.RID, strconv.Itoa(a.Attempt), a.Replica, strconv.Itoa(int(a.Ran)), figure(a.TTFTMS), figure(a.Tokens)}
	args = onClock(args, a.NowMS)
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: releaseScript, Key: root, Args: args}, readRelease)
}

func readRelease(m rueidis.RedisMessage) (ReleaseReply, error) {
	f, err := array(m, 4)
	if err != nil {
		return ReleaseReply{}, fmt.Errorf("release: %w", err)
	}
	d := fields{}
	r := ReleaseReply{Released: d.whole(f[0]) == 1, Dequeued: d.whole(f[1]) == 1, Granted: d.whole(f[2]), NowMS: d.whole(f[3])}
	if d.err != nil {
		return ReleaseReply{}, fmt.Errorf("release: %w", d.err)
	}
	return r, nil
}
