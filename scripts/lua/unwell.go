package lua

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var unwellScript = read("unwell")

// Finding is what one reader found of a backend's health.
type Finding struct {
	Backend string
	Place   string // host:port where it was asked; no space
	Readers int    // how many replicas look: 1 or 2
	Unwell  bool   // false: it is well again
}

// OutOfUse is a backend that all its readers found unwell at a place.
type OutOfUse struct{ Backend, Place string }

// Unwell declares what a replica found (at most 64) below the root of a pool and gives the caller's own reading of who is out
// of use there.
func Unwell[T any](b *pipeline.Batch, s *pipeline.Store, root, replica string, found []Finding, as func([]OutOfUse) T) *pipeline.Handle[T] {
	args := make([]string, 0, 1+4*len(found))
	args = append(args, replica)
	for _, f := range found {
		args = append(args, f.Backend, f.Place, strconv.Itoa(f.Readers), flag(f.Unwell))
	}
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: unwellScript, Key: root, Args: args}, through(readUnwell, as))
}

func readUnwell(m rueidis.RedisMessage) ([]OutOfUse, error) {
	f, err := array(m, 2)
	if err != nil {
		return nil, fmt.Errorf("unwell: %w", err)
	}
	d := fields{}
	d.whole(f[0])
	var out []OutOfUse
	for t := d.texts(f[1]); len(t) >= 2; t = t[2:] {
		out = append(out, OutOfUse{t[0], t[1]})
	}
	if d.err != nil {
		return nil, fmt.Errorf("unwell: %w", d.err)
	}
	return out, nil
}
