package cluster

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

const (
	// partitions is a prime, so that keys spread evenly, and large enough that
	// with 5,000 members each still owns ten.
	partitions = 50_021
	load       = 1.25
	// maxMembers is where a ring must stop: with fewer partitions than members
	// there is nothing to own.
	maxMembers = 10_000
)

// replication is the number of points a member has on the circle. Three are enough for the load bound to hold, but not
// for an even ring: measured with 32 members, the smallest share is then 0.18 of the mean, and a member that leaves hands
// its partitions to four others and moves as many that were not its own. With 128 points it is 0.85, all 31, and none. It
// is the same for every size, so no prefix moves because a pool has grown.
const replication = 128

// ring is the order in which the members of a pool come for each partition of
// the key space. It depends on the set of names alone. It is safe for concurrent
// use; only the cache of orders in it changes.
type ring struct {
	members []string // sorted
	circle  []point  // of the first maxMembers members, in order; nil below two
	owners  []uint16 // by partition: the index of its home; nil below two members
	orders  []atomic.Pointer[[]uint16]
}

// newRing wants the names sorted and unique; before is a ring that may share members with it, or nil. It is built beside
// the ring in use: 5,000 members take 0.1 s, and some 20 ms where few of them are not in before.
func newRing(names []string, before *ring) *ring {
	r := &ring{members: names}
	if len(names) < 2 {
		return r
	}
	r.orders = make([]atomic.Pointer[[]uint16], partitions)
	r.circle = circleOf(names[:min(len(names), maxMembers)], before)
	r.owners = owners(r.circle, min(len(names), maxMembers))
	return r
}

// point is a place on the circle and whose it is.
type point struct {
	hash   uint64
	member uint16
}

// owners is the home of every partition: the same as that of github.com/buraksezer/consistent v0.10.0 with the same
// members, hash, partitions, load and replication, which a test holds it to. That library sorts all points once more for
// each member; here they are sorted once.
func owners(circle []point, members int) []uint16 {
	most := int(math.Ceil(float64(partitions/members) * load)) // partitions of one member
	loads := make([]int, members)
	homes := make([]uint16, partitions)
	for p := range homes {
		at := after(circle, hashOf(uint64(p)))
		for loads[circle[at].member] == most { // there is room: most × members > partitions
			if at++; at == len(circle) {
				at = 0
			}
		}
		homes[p] = circle[at].member
		loads[homes[p]]++
	}
	return homes
}

// circleOf is replication places for each name, in order. Those of names that before has are taken from there.
func circleOf(names []string, before *ring) []point {
	var known []point
	fresh := make(map[int]string, len(names)) // by index
	for i, name := range names {
		fresh[i] = name
	}
	if before != nil && before.circle != nil {
		now := make([]int, len(before.members)) // the index of a member of before; -1: it is gone
		for i, name := range before.members {
			at, found := slices.BinarySearch(names, name)
			if now[i] = -1; found && i < maxMembers {
				now[i] = at
				delete(fresh, at)
			}
		}
		known = make([]point, 0, len(before.circle))
		for _, p := range before.circle {
			if i := now[p.member]; i >= 0 {
				known = append(known, point{p.hash, uint16(i)})
			}
		}
	}
	return merged(known, points(fresh))
}

// points are those of some members, by index, in order.
func points(names map[int]string) []point {
	all := make([]point, 0, replication*len(names))
	var key []byte
	for i, name := range names {
		for n := range replication {
			key = strconv.AppendInt(append(key[:0], name...), int64(n), 10)
			all = append(all, point{xxh3.Hash(key), uint16(i)})
		}
	}
	slices.SortFunc(all, inOrder)
	return all
}

func inOrder(a, b point) int {
	return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.member, b.member))
}

// merged is two circles in one.
func merged(a, b []point) []point {
	if len(a) == 0 {
		return b
	}
	all := make([]point, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if inOrder(a[0], b[0]) <= 0 {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}

// after is the first point at hash or behind it.
func after(circle []point, hash uint64) int {
	at, _ := slices.BinarySearchFunc(circle, hash, func(p point, hash uint64) int { return cmp.Compare(p.hash, hash) })
	if at == len(circle) {
		return 0
	}
	return at
}

func hashOf(n uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	return xxh3.Hash(b[:])
}

// partitionOf is the ring's FindPartitionID for the key's eight bytes.
func partitionOf(key uint64) int {
	return int(hashOf(key) % partitions)
}

func (r *ring) same(names []string) bool { return slices.Equal(r.members, names) }

var single = []uint16{0}

// order is at most MaxCandidates members for a partition: its home, then the
// best by rendezvous. It is worked out when first asked for; two at once work
// out the same.
func (r *ring) order(partition int) []uint16 {
	switch len(r.members) {
	case 0:
		return nil
	case 1:
		return single
	}
	if known := r.orders[partition].Load(); known != nil {
		return *known
	}
	order := r.rendezvous(partition)
	r.orders[partition].Store(&order)
	return order
}

// rendezvous puts the home first and then the members with the largest hash of
// (partition, member). So each partition has its own second choice, and when a
// member is out of use its partitions spread over all others.
func (r *ring) rendezvous(partition int) []uint16 {
	home := r.owners[partition]
	type rank struct {
		hash   uint64
		member uint16
	}
	best := make([]rank, 0, MaxCandidates)
	for i, name := range r.members[:min(len(r.members), maxMembers)] {
		if uint16(i) == home {
			continue
		}
		one := rank{xxh3.HashStringSeed(name, uint64(partition)), uint16(i)}
		if len(best) == MaxCandidates-1 {
			if one.hash <= best[len(best)-1].hash {
				continue
			}
			best = best[:len(best)-1]
		}
		at := len(best)
		for at > 0 && best[at-1].hash < one.hash {
			at--
		}
		best = slices.Insert(best, at, one)
	}
	order := make([]uint16, 1, 1+len(best))
	order[0] = home
	for _, one := range best {
		order = append(order, one.member)
	}
	return order
}
