package lua

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var (
	readingScript = read("reading")
	beforeScript  = read("before")
)

// BeforeReply is what the fleet holds, just before engines are asked.
type BeforeReply struct {
	NowMS int64
	Held  []int64 // of the backends in order; -1: its record cannot be read
}

// Before declares the look at some backends (at most 64) below the root of a pool and gives the caller's own reading of
// the reply.
func Before[T any](b *pipeline.Batch, s *pipeline.Store, root string, backends []string, as func(BeforeReply) T) *pipeline.Handle[T] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: beforeScript, Key: root, Args: backends},
		through(func(m rueidis.RedisMessage) (BeforeReply, error) { return readBefore(m, len(backends)) }, as))
}

// readBefore is for that many backends.
func readBefore(m rueidis.RedisMessage, backends int) (BeforeReply, error) {
	f, err := array(m, 2)
	if err != nil {
		return BeforeReply{}, fmt.Errorf("before: %w", err)
	}
	d := fields{}
	r := BeforeReply{NowMS: d.whole(f[0])}
	for _, held := range d.texts(f[1]) {
		r.Held = append(r.Held, d.number(held))
	}
	if d.err == nil && len(r.Held) != backends {
		d.err = fmt.Errorf("%d figures for %d backends", len(r.Held), backends)
	}
	if d.err != nil {
		return BeforeReply{}, fmt.Errorf("before: %w", d.err)
	}
	return r, nil
}

// Reading is what an engine said of itself.
type Reading struct {
	Backend          string
	Running, Waiting int64
	KV               int64 // use of its KV cache, percent × 100
	Held, AskedMS    int64 // as BeforeReply says
	Started          string
	KVTokens         int64 // 0: not known

	PrefixQueries, PrefixHits int64 // tokens since the process began; 0: not known
}

// Readings declares rs (at most 64) below the root of a pool; the result is how many were news. nowMS is 0 but in tests.
func Readings(b *pipeline.Batch, s *pipeline.Store, root string, rs []Reading, nowMS int64) *pipeline.Handle[int64] {
	args := make([]string, 0, 10*len(rs))
	for _, r := range rs {
		args = append(args, r.Backend, figure(r.Running), figure(r.Waiting), figure(r.KV), figure(r.Held),
			strconv.FormatInt(r.AskedMS, 10), r.Started, figure(r.KVTokens), figure(r.PrefixQueries), figure(r.PrefixHits))
	}
	args = onClock(args, nowMS)
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: readingScript, Key: root, Args: args},
		func(m rueidis.RedisMessage) (int64, error) {
			f, err := wholes(m, 2)
			if err != nil {
				return 0, fmt.Errorf("reading: %w", err)
			}
			return f[1], nil
		})
}
