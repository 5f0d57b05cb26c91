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

// readersOf is which of the living replicas look at b.
func readersOf(b *Backend, living []string) []string {
	weight := func(replica string) uint64 { return xxh3.HashString(replica + "\n" + b.Pool + "\n" + b.ID) }
	sorted := slices.Clone(living)
	slices.SortFunc(sorted, func(x, y string) int { return cmp.Or(cmp.Compare(weight(x), weight(y)), cmp.Compare(x, y)) })
	return sorted[:min(readers, len(sorted))]
}
