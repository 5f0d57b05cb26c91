package lua

import (
	"crypto/sha1" // names, not secrets
	"encoding/hex"
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
	MU         int64  // thousandths of a model unit: all of the request, nothing of it cached
	OutputMU   int64  // the part of MU that is output
	Not        string // backend to avoid; "": none; "=" and a backend: no other, also after a wait
	Wait       bool   // join the queue when no slot is free
	Limit      int    // of the queue
	Class      int    // 0 to 9, lower first
	Prompt     Prompt
	Candidates []Slots // in ring order
	NowMS      int64   // 0: Redis' clock, as in all that is not a test
}

// Prompt is what place has to know of a prompt to find where its beginning is warm. The zero value is warm nowhere.
type Prompt struct {
	Tokens int64
	Save   int64 // thousandths of a model unit saved by each token that is warm
	Least  int64 // tokens; a shorter match does not count
	Bucket int   // 0 to 15, the same for all prompts that may share a fingerprint
	Prints []Print
}

// Print is a fingerprint of the prompt's beginning. Shorter beginnings come first; at most 12.
type Print struct {
	Name   string // no space
	Tokens int64  // that are warm where it is found: the beginning, or more with the answer behind it; the last has most
}

// Slots is a backend and how many requests it runs at once, where its record does not say.
type Slots struct {
	Backend string
	Slots   int
	Tag     string // TagOf(Backend); "": found out by the script
}

// TagOf is how entries of the prefix index name a backend.
func TagOf(backend string) string {
	sum := sha1.Sum([]byte(backend))
	return hex.EncodeToString(sum[:3])[:5]
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

	// When placed by this call, not by an earlier one.
	Matched    int64 // prompt tokens that are warm there
	ExpectedMS int64 // the score: how long until its prompt is computed
}

// ErrSuperseded is the reply to a place whose rid already has a later attempt; nothing was changed.
var ErrSuperseded = errors.New("place: a later attempt of this request was there first")

// Place declares a below the root of a pool and gives the caller's own reading of the reply.
func Place[T any](b *pipeline.Batch, s *pipeline.Store, root string, a PlaceArgs, as func(PlaceReply) T) *pipeline.Handle[T] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: placeScript, Key: root, Args: a.argv()}, through(readPlace, as))
}

// argv is the wish as place.lua documents it.
func (a PlaceArgs) argv() []string {
	args := make([]string, 0, 16+2*len(a.Prompt.Prints)+5)
	d := newDecimals()
	args = append(args, a.RID, strconv.Itoa(a.Attempt), a.Replica, a.Tenant, url.PathEscape(a.Model),
		d.figure(a.MU), a.Not, flag(a.Wait), d.of(int64(a.Limit)), strconv.Itoa(a.Class), d.figure(a.OutputMU),
		d.figure(a.Prompt.Tokens), d.figure(a.Prompt.Save), d.figure(a.Prompt.Least), strconv.Itoa(a.Prompt.Bucket),
		strconv.Itoa(len(a.Prompt.Prints)))
	args = a.Prompt.named(args, &d)
	if len(a.Candidates) == 0 {
		return onClock(append(args, "", "", "", ""), a.NowMS)
	}
	first, others := a.Candidates[0], a.Candidates[1:]
	return onClock(append(args, first.Backend, strconv.Itoa(first.Slots), first.Tag, oneText(others)), a.NowMS)
}

// named appends the fingerprints.
func (p Prompt) named(args []string, d *decimals) []string {
	for _, print := range p.Prints {
		args = append(args, print.Name, d.figure(print.Tokens))
	}
	return args
}

// oneText is candidates as place.lua takes apart what it seldom wants.
func oneText(candidates []Slots) string {
	size := 0
	for _, c := range candidates {
		size += len(c.Backend) + len(c.Tag) + 3 + 8 // a number of 8 digits
	}
	text := make([]byte, 0, size)
	for _, c := range candidates {
		text = append(append(text, c.Backend...), ' ')
		text = append(strconv.AppendInt(text, int64(c.Slots), 10), ' ')
		text = append(append(text, c.Tag...), '|')
	}
	return textOf(text)
}

func readPlace(m rueidis.RedisMessage) (PlaceReply, error) {
	f, err := array(m, 7)
	if err != nil {
		return PlaceReply{}, fmt.Errorf("place: %w", err)
	}
	d := fields{}
	r := PlaceReply{State: PlaceState(d.whole(f[0])), Ahead: d.whole(f[2]), NowMS: d.whole(f[3]), Seq: d.whole(f[4]),
		Matched: d.whole(f[5]), ExpectedMS: d.whole(f[6])}
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
