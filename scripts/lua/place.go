package lua

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var placeScript = read("place")

// PlaceArgs is one wish for a slot. Ids are as they stand in key names: no space, no "|".
type PlaceArgs struct {
	RID        string
	Attempt    int
	Replica    string
	Tenant     string
	Model      string // any text
	MU         int64  // thousandths of a model unit
	Not        string // backend to avoid; "": none
	Wait       bool   // join the queue when no slot is free
	Limit      int    // of the queue
	Candidates []Slots
}

// Slots is a backend and how many requests it runs at once, where its record does not say.
type Slots struct {
	Backend string
	Slots   int
}

// PlaceState is the outcome of place.
type PlaceState int64

// Outcomes of place.
const (
	PlacePlaced PlaceState = iota + 1
	PlaceQueued
	PlaceFull
	PlaceNoBackend
	placeSuperseded
)

// PlaceReply is the answer of place.
type PlaceReply struct {
	State   PlaceState
	Backend string // when placed
	Ahead   int64  // waiting requests ahead, when queued
	NowMS   int64
	Seq     int64 // when queued
}

// ErrSuperseded is the reply to a place whose rid already has a later attempt; nothing was changed.
var ErrSuperseded = errors.New("place: a later attempt of this request was there first")

// Place declares a below the root of a pool and gives the caller's own reading of the reply.
func Place[T any](b *pipeline.Batch, s *pipeline.Store, root string, a PlaceArgs, as func(PlaceReply) T) *pipeline.Handle[T] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: placeScript, Key: root, Args: a.argv()},
		func(m rueidis.RedisMessage) (T, error) {
			r, err := readPlace(m)
			if err != nil {
				var zero T
				return zero, err
			}
			return as(r), nil
		})
}

// argv is the wish as place.lua documents it.
func (a PlaceArgs) argv() []string {
	args := make([]string, 0, 9+2*len(a.Candidates))
	args = append(args, a.RID, strconv.Itoa(a.Attempt), a.Replica, a.Tenant, url.PathEscape(a.Model),
		strconv.FormatInt(a.MU, 10), a.Not, flag(a.Wait), strconv.Itoa(a.Limit))
	for _, c := range a.Candidates {
		args = append(args, c.Backend, strconv.Itoa(c.Slots))
	}
	return args
}

func readPlace(m rueidis.RedisMessage) (PlaceReply, error) {
	f, err := array(m, 5)
	if err != nil {
		return PlaceReply{}, fmt.Errorf("place: %w", err)
	}
	d := fields{}
	r := PlaceReply{State: PlaceState(d.whole(f[0])), Ahead: d.whole(f[2]), NowMS: d.whole(f[3]), Seq: d.whole(f[4])}
	r.Backend, err = f[1].ToString()
	d.keep(err)
	if d.err != nil {
		return PlaceReply{}, fmt.Errorf("place: %w", d.err)
	}
	if r.State == placeSuperseded {
		return PlaceReply{}, ErrSuperseded
	}
	return r, nil
}
