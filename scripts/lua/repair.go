package lua

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var (
	adoptScript   = read("adopt")
	recountScript = read("recount")
)

// Adopted is a lease that a running request should have.
type Adopted struct {
	RID          string
	Attempt      int
	Backend      string
	MU, OutputMU int64
	Tenant       string
}

// AdoptReply says what adopt did.
type AdoptReply struct {
	Adopted int64
	Over    int64 // of these, beyond their backend's slots
}

// Adopt declares that replica takes leases back (at most 100), below the root of a pool.
func Adopt(b *pipeline.Batch, s *pipeline.Store, root, replica string, leases []Adopted) *pipeline.Handle[AdoptReply] {
	args := make([]string, 0, 1+6*len(leases))
	args = append(args, replica)
	for _, l := range leases {
		args = append(args, l.RID, strconv.Itoa(l.Attempt), l.Backend, figure(l.MU), figure(l.OutputMU), l.Tenant)
	}
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: adoptScript, Key: root, Args: args},
		func(m rueidis.RedisMessage) (AdoptReply, error) {
			f, err := wholes(m, 2)
			if err != nil {
				return AdoptReply{}, fmt.Errorf("adopt: %w", err)
			}
			return AdoptReply{Adopted: f[0], Over: f[1]}, nil
		})
}

// Repaired is a backend whose count was another than its leases.
type Repaired struct {
	Backend  string
	Was, Now int64 // Was -1: unreadable
}

// RecountReply says what recount found.
type RecountReply struct {
	Leases   int64 // of the pool; -1: too many, nothing was done
	Repaired []Repaired
}

// Recount declares the repair of the counts of backends, below the root of a pool.
func Recount(b *pipeline.Batch, s *pipeline.Store, root string, backends []string) *pipeline.Handle[RecountReply] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: recountScript, Key: root, Args: backends},
		func(m rueidis.RedisMessage) (RecountReply, error) {
			f, err := array(m, 2)
			if err != nil {
				return RecountReply{}, fmt.Errorf("recount: %w", err)
			}
			d := fields{}
			r := RecountReply{Leases: d.whole(f[0])}
			for t := d.texts(f[1]); len(t) >= 3; t = t[3:] {
				r.Repaired = append(r.Repaired, Repaired{Backend: t[0], Was: d.number(t[1]), Now: d.number(t[2])})
			}
			if d.err != nil {
				return RecountReply{}, fmt.Errorf("recount: %w", d.err)
			}
			return r, nil
		})
}
