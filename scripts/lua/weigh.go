package lua

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var weighScript = read("weigh")

// WhyNot is why a request cannot go to a backend now.
type WhyNot int64

// Reasons.
const (
	MayBe WhyNot = iota
	Unreadable
	DrainingOrNoSlots
	CoolsDown
	CacheFull
	NoFreeSlot
	ToBeAvoided
)

// Weighed is what counts for and against a backend. MU are thousandths of a model unit.
type Weighed struct {
	Backend                   string
	Chosen                    bool
	WhyNot                    WhyNot
	Slots, Held, External, KV int64 // KV: percent × 100
	CooldownUntilMS           int64
	BacklogMU, UncachedMU     int64
	Matched                   int64 // prompt tokens that are warm
	OutputHeldMU, RateMU      int64 // rate: per second
	ScoreMS                   int64
}

// WeighReply is what place would weigh now.
type WeighReply struct {
	NowMS   int64
	MeanMU  int64 // of a request of the pool, counted for each of External
	Waiting int64 // in the queue; they go first
	Rows    []Weighed
}

// Weigh declares the look at what place would weigh for a, below the root of a pool, and gives the caller's own reading
// of the reply, which has a row for each candidate in order. It changes nothing.
func Weigh[T any](b *pipeline.Batch, s *pipeline.Store, root string, a PlaceArgs, as func(WeighReply) T) *pipeline.Handle[T] {
	args := []string{figure(a.MU), figure(a.OutputMU), figure(a.Prompt.Tokens), figure(a.Prompt.Save), figure(a.Prompt.Least),
		strconv.Itoa(a.Prompt.Bucket), a.Not, strconv.Itoa(len(a.Prompt.Prints))}
	d := newDecimals()
	args = a.Prompt.named(args, &d)
	for _, c := range a.Candidates {
		args = append(args, c.Backend, strconv.Itoa(c.Slots), c.Tag)
	}
	args = onClock(args, a.NowMS)
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: weighScript, Key: root, Args: args},
		through(func(m rueidis.RedisMessage) (WeighReply, error) {
			r, err := readWeigh(m)
			if err == nil && len(r.Rows) != len(a.Candidates) {
				err = fmt.Errorf("weigh: %d rows for %d candidates", len(r.Rows), len(a.Candidates))
			}
			return r, err
		}, as))
}

func readWeigh(m rueidis.RedisMessage) (WeighReply, error) {
	f, err := array(m, 4)
	if err != nil {
		return WeighReply{}, fmt.Errorf("weigh: %w", err)
	}
	d := fields{}
	r := WeighReply{NowMS: d.whole(f[0]), MeanMU: d.whole(f[1]), Waiting: d.whole(f[2])}
	rows, err := f[3].ToArray()
	d.keep(err)
	for _, row := range rows {
		c, err := array(row, 14)
		if d.keep(err); err != nil {
			break
		}
		id, err := c[0].ToString()
		d.keep(err)
		n := make([]int64, len(c))
		for i := 1; i < len(c); i++ {
			n[i] = d.whole(c[i])
		}
		r.Rows = append(r.Rows, Weighed{Backend: id, Chosen: n[1] == 1, WhyNot: WhyNot(n[2]), Slots: n[3], Held: n[4], External: n[5],
			KV: n[6], CooldownUntilMS: n[7], BacklogMU: n[8], UncachedMU: n[9], Matched: n[10], OutputHeldMU: n[11], RateMU: n[12],
			ScoreMS: n[13]})
	}
	if d.err != nil {
		return WeighReply{}, fmt.Errorf("weigh: %w", d.err)
	}
	return r, nil
}
