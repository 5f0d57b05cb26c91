package cluster

import (
	"cmp"
	"slices"

	"github.com/zeebo/xxh3"
)

// readers is how many replicas look at one backend for all others, so that a dead one leaves no gap.
const readers = 2

// share is what one replica looks at for the fleet. It is used by one goroutine.
type share struct {
	replica string // as among the living
	living  []string
	mine    map[*Pool][]*Backend // while living is as it was
}

// of finds what this replica looks at. It hashes only when replicas or backends have changed. // R1
func (s *share) of(pools []*Pool, living []string) {
	before := s.mine
	if !slices.Equal(living, s.living) {
		s.living, before = slices.Clone(living), nil
	}
	s.mine = make(map[*Pool][]*Backend, len(pools))
	for _, p := range pools {
		if mine, ok := before[p]; ok {
			s.mine[p] = mine
			continue
		}
		mine := []*Backend{}
		for _, b := range p.Backends {
			if slices.Contains(readersOf(b, living), s.replica) {
				mine = append(mine, b)
			}
		}
		s.mine[p] = mine
	}
}

// readersOf is which of the living replicas look at b: those with the smallest hashes. Each is hashed once, for whenever a
// replica comes or goes all of them do this for every backend.
func readersOf(b *Backend, living []string) []string {
	type ranked struct {
		weight  uint64
		replica string
	}
	best := make([]ranked, 0, readers+1)
	name := make([]byte, 0, 128)
	for _, replica := range living {
		name = append(append(append(append(append(name[:0], replica...), '\n'), b.Pool...), '\n'), b.ID...)
		one := ranked{xxh3.Hash(name), replica}
		at, _ := slices.BinarySearchFunc(best, one, func(x, y ranked) int {
			return cmp.Or(cmp.Compare(x.weight, y.weight), cmp.Compare(x.replica, y.replica))
		})
		if best = slices.Insert(best, at, one); len(best) > readers {
			best = best[:readers]
		}
	}
	chosen := make([]string, len(best))
	for i, one := range best {
		chosen[i] = one.replica
	}
	return chosen
}
