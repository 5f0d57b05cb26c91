package lua

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var (
	probeScript  = read("probe")
	probedScript = read("probed")
)

// ProbeArgs asks for probes.
type ProbeArgs struct {
	IdleMS   int64    // without an answered request
	LastsMS  int64    // that a probe takes at most
	Most     int      // probes wanted, at most 64
	Answered []string // backends on which requests were answered of late, at most 64
	Backends []string // those this replica may probe, at most 64
}

// ProbeReply says what is to be probed.
type ProbeReply struct {
	Due     []string
	Failing map[string]int64 // failed probes in a row, where there are any
}

// Probe declares a below the root of a pool.
func Probe[T any](b *pipeline.Batch, s *pipeline.Store, root string, a ProbeArgs, as func(ProbeReply) T) *pipeline.Handle[T] {
	args := make([]string, 0, 4+len(a.Answered)+len(a.Backends))
	args = append(args, figure(a.IdleMS), figure(a.LastsMS), strconv.Itoa(a.Most), strconv.Itoa(len(a.Answered)))
	args = append(append(args, a.Answered...), a.Backends...)
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: probeScript, Key: root, Args: args}, through(readProbe, as))
}

func readProbe(m rueidis.RedisMessage) (ProbeReply, error) {
	f, err := array(m, 3)
	if err != nil {
		return ProbeReply{}, fmt.Errorf("probe: %w", err)
	}
	d := fields{}
	d.whole(f[0])
	r := ProbeReply{Due: d.texts(f[1]), Failing: map[string]int64{}}
	for t := d.texts(f[2]); len(t) >= 2; t = t[2:] {
		r.Failing[t[0]] = d.number(t[1])
	}
	if d.err != nil {
		return ProbeReply{}, fmt.Errorf("probe: %w", d.err)
	}
	return r, nil
}

// ProbedArgs is what a probe said.
type ProbedArgs struct {
	Backend   string
	Well      bool
	IdleMS    int64 // until the next after an answer
	AgainMS   int64 // until the next after the first failure
	FirstMS   int64 // until the next after the second one; each further one is twice as far
	LongestMS int64
	LastsMS   int64 // that a probe takes at most
}

// ProbedReply says what follows.
type ProbedReply struct {
	NowMS, Failed int64 // in a row
	UntilMS       int64 // the end of the cool-down; 0: none
}

// Probed declares a below the root of a pool.
func Probed[T any](b *pipeline.Batch, s *pipeline.Store, root string, a ProbedArgs, as func(ProbedReply) T) *pipeline.Handle[T] {
	args := []string{a.Backend, flag(a.Well), figure(a.IdleMS), figure(a.AgainMS), figure(a.FirstMS), figure(a.LongestMS), figure(a.LastsMS)}
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: probedScript, Key: root, Args: args}, through(readProbed, as))
}

func readProbed(m rueidis.RedisMessage) (ProbedReply, error) {
	f, err := wholes(m, 3)
	if err != nil {
		return ProbedReply{}, fmt.Errorf("probed: %w", err)
	}
	return ProbedReply{NowMS: f[0], Failed: f[1], UntilMS: f[2]}, nil
}
