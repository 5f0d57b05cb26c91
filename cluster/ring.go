package cluster

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/buraksezer/consistent"
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

// replication is the number of points a member has on the circle. Three are
// enough for the load bound to hold, but not for an even ring: measured with 32
// members, the smallest share is then 0.18 of the mean, and a member that leaves
// hands its partitions to four others and moves as many that were not its own.
// With 128 points it is 0.85, all 31, and none. The library's cost of building
// grows with members times points (5,000 members with 20 points take half a
// minute), so large pools, which even out by their number, get fewer. Where the
// number changes, many prefixes move once.
func replication(members int) int {
	switch {
	case members <= 128:
		return 128
	case members <= 384:
		return 20
	}
	return 3
}

// ring is the order in which the members of a pool come for each partition of
// the key space. It depends on the set of names alone. It is safe for concurrent
// use; only the cache of orders in it changes.
type ring struct {
	members []string // sorted
	owners  []uint16 // by partition: the index of its home; nil below two members
	orders  []atomic.Pointer[[]uint16]
}

// newRing wants the names sorted and unique. It takes up to 0.1 s for hundreds of
// members and half a second for 5,000, so it is built beside the ring in use.
func newRing(names []string) *ring {
	r := &ring{members: names}
	if len(names) < 2 {
		return r
	}
	r.orders = make([]atomic.Pointer[[]uint16], partitions)
	r.owners = owners(names[:min(len(names), maxMembers)])
	return r
}

// owners asks the ring for the home of every partition and keeps only that: two
// bytes for each.
func owners(names []string) []uint16 {
	members := make([]consistent.Member, len(names))
	index := make(map[string]uint16, len(names))
	for i, name := range names {
		members[i] = ringMember(name)
		index[name] = uint16(i)
	}
	c := consistent.New(members, consistent.Config{
		Hasher: hasher{}, PartitionCount: partitions, ReplicationFactor: replication(len(names)), Load: load,
	})
	homes := make([]uint16, partitions)
	for p := range homes {
		homes[p] = index[c.GetPartitionOwner(p).String()]
	}
	return homes
}

type ringMember string

func (m ringMember) String() string { return string(m) }

type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxh3.Hash(b) }

// partitionOf is the ring's FindPartitionID for the key's eight bytes.
func partitionOf(key uint64) int {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], key)
	return int(xxh3.Hash(b[:]) % partitions)
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
