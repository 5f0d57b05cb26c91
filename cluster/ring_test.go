package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/buraksezer/consistent"
	"github.com/zeebo/xxh3"
)

func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("engine-%04d", i)
	}
	return all
}

func shares(r *ring) []int {
	count := make([]int, len(r.members))
	for _, owner := range r.owners {
		count[owner]++
	}
	return count
}

func TestRingSharesAreEven(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 8, 32} {
		mean := float64(partitions) / float64(n)
		count := shares(newRing(names(n), nil))
		if least := float64(slices.Min(count)); least < 0.7*mean {
			t.Errorf("%d members: the smallest share is %.2f of the mean", n, least/mean)
		}
		if most := float64(slices.Max(count)); most > 1.25*mean+2 {
			t.Errorf("%d members: the largest share is %.2f of the mean", n, most/mean)
		}
	}
}

// A member that leaves hands its partitions to all others, next to no other
// partition moves, and all is as before when it comes back.
func TestRingMovesOnlyWhatItMust(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 8, 32, 400} {
		before := newRing(names(n), nil)
		gone := n / 2
		left := slices.Delete(names(n), gone, gone+1)
		after := newRing(left, nil)
		var lost, moved int
		takers := map[string]int{}
		for p := range partitions {
			was, is := before.members[before.owners[p]], after.members[after.owners[p]]
			switch {
			case was == before.members[gone]:
				lost++
				takers[is]++
			case was != is:
				moved++
			}
		}
		if moved > lost/10 {
			t.Errorf("%d members: %d partitions moved besides the %d that had to", n, moved, lost)
		}
		if len(takers) < min((n-1)*8/10, lost*4/10) {
			t.Errorf("%d members: only %d took over", n, len(takers))
		}
		if again := newRing(names(n), nil); !slices.Equal(again.owners, before.owners) {
			t.Errorf("%d members: not as before when it is back", n)
		}
	}
}

func TestRingIsTheSameForAnyOrderOfItsMembers(t *testing.T) { // L1
	t.Parallel()
	one := poolOf("p", 20, nil)
	shuffled := slices.Clone(one.Backends)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	other := newPool("p", shuffled, nil)
	if !slices.IsSorted(ids(other.Backends)) {
		t.Fatalf("not sorted: %v", ids(other.Backends))
	}
	for key := range uint64(500) {
		if !slices.Equal(one.Candidates(key, 0), other.Candidates(key, 0)) {
			t.Fatalf("key %d: %v and %v", key, ids(one.Candidates(key, 0)), ids(other.Candidates(key, 0)))
		}
	}
}

// library is the ring of github.com/buraksezer/consistent with the points of ours.
func library(names []string) *consistent.Consistent {
	members := make([]consistent.Member, len(names))
	for i, name := range names {
		members[i] = ringMember(name)
	}
	return consistent.New(members, consistent.Config{
		Hasher: hasher{}, PartitionCount: partitions, ReplicationFactor: replication, Load: load})
}

type ringMember string

func (m ringMember) String() string { return string(m) }

type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxh3.Hash(b) }

func TestRingHomeIsTheLibrarysOwner(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 9, 40} {
		all := names(n)
		c, r := library(all), newRing(all, nil)
		for p := range partitions {
			if home, want := all[r.owners[p]], c.GetPartitionOwner(p).String(); home != want {
				t.Fatalf("%d members, partition %d: home %s, want %s", n, p, home, want)
			}
		}
		for key := range uint64(1000) {
			b := []byte{byte(key), byte(key >> 8), 0, 0, 0, 0, 0, 0}
			if p, want := partitionOf(key), c.FindPartitionID(b); p != want {
				t.Fatalf("key %d: partition %d, want %d", key, p, want)
			}
		}
	}
}

// However a ring came to its members, it is the one that is built of them anew.
func TestRingForgetsItsHistory(t *testing.T) { // L1
	t.Parallel()
	var r *ring
	for _, n := range []int{1, 7, 40, 39, 3, 0, 12, 300} {
		all := names(2 * n)
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:n]
		slices.Sort(all)
		r = newRing(all, r)
		if anew := newRing(all, nil); !slices.Equal(anew.circle, r.circle) || !slices.Equal(anew.owners, r.owners) {
			t.Fatalf("%d members: not the ring that is built anew", n)
		}
	}
}

// A change in a pool of 5,000, with 128 points a member, takes no longer than the library needs for 2,000, or nearly,
// with three: it sorts all points for each member. Requests go on with the ring of before meanwhile.
func TestRingChangesQuicklyAtFiveThousand(t *testing.T) {
	t.Parallel()
	before := poolOf("p", 5000, nil)
	start := time.Now()
	after := newPool("p", slices.Clone(before.Backends[1:]), before)
	ours := time.Since(start)
	members := make([]consistent.Member, 2000)
	for i, name := range names(len(members)) {
		members[i] = ringMember(name)
	}
	start = time.Now()
	consistent.New(members, consistent.Config{Hasher: hasher{}, PartitionCount: partitions, ReplicationFactor: 3, Load: load})
	theirs := time.Since(start)
	t.Logf("a change at 5,000 members %v, the library's New of 2,000 with 3 points %v: %.2f", ours, theirs, float64(ours)/float64(theirs))
	if ours > 2*theirs {
		t.Errorf("a change takes %v, the library's New of 2,000 %v", ours, theirs)
	}
	var lost, moved int
	takers := map[string]int{}
	for p := range partitions {
		was, is := before.ring.members[before.ring.owners[p]], after.ring.members[after.ring.owners[p]]
		if was == before.ring.members[0] {
			lost++
			takers[is]++
		} else if was != is {
			moved++
		}
	}
	if lost == 0 || moved > 3*lost {
		t.Errorf("%d partitions lost their home, %d others moved", lost, moved)
	}
	if len(takers) < lost/2 {
		t.Errorf("%d took over %d partitions", len(takers), lost)
	}
	if again := newPool("p", slices.Clone(before.Backends), after); !slices.Equal(again.ring.owners, before.ring.owners) {
		t.Error("not as before when it is back")
	}
	if anew := newRing(names(5000)[1:], nil); !slices.Equal(anew.circle, after.ring.circle) {
		t.Error("another ring than one that was built anew")
	}
}

// With GetClosestN every owner would have one and the same second choice.
func TestRingSecondChoicesSpread(t *testing.T) {
	t.Parallel()
	const n = 10
	r := newRing(names(n), nil)
	second := map[uint16]map[uint16]int{}
	for p := range partitions {
		order := r.order(p)
		if len(order) != n || order[0] != r.owners[p] {
			t.Fatalf("partition %d: order %v, home %d", p, order, r.owners[p])
		}
		if sorted := slices.Sorted(slices.Values(order)); len(slices.Compact(sorted)) != n {
			t.Fatalf("partition %d: somebody is there twice: %v", p, order)
		}
		if second[order[0]] == nil {
			second[order[0]] = map[uint16]int{}
		}
		second[order[0]][order[1]]++
	}
	count := shares(r)
	for home, by := range second {
		mean := float64(count[home]) / (n - 1)
		for other := range uint16(n) {
			if other != home && (float64(by[other]) < 0.7*mean || float64(by[other]) > 1.3*mean) {
				t.Errorf("%d is the second choice of %d for %d partitions, the mean is %.0f", other, home, by[other], mean)
			}
		}
	}
}

func TestRingOfAnySize(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 31, 32, 33, 129, 385, 5000} {
		p := poolOf("p", n, nil)
		for key := range uint64(20) {
			got := p.Candidates(key, 0)
			if want := min(n, MaxCandidates); len(got) != want {
				t.Fatalf("%d members: %d candidates, want %d", n, len(got), want)
			}
			if n > 0 && got[0] != p.Home(key) {
				t.Fatalf("%d members: the first candidate is not the home", n)
			}
		}
	}
	if p := poolOf("p", 0, nil); p.Home(1) != nil {
		t.Error("an empty pool has a home")
	}
}

func TestRingOrdersAreSafeToAskAtOnce(t *testing.T) {
	t.Parallel()
	p := poolOf("p", 40, nil)
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for key := range uint64(2000) {
				if len(p.Candidates(key, 3)) != 3 {
					t.Error("not three candidates")
					return
				}
			}
		})
	}
	asking.Wait()
}

func BenchmarkCandidates(b *testing.B) {
	for _, n := range []int{3, 32, 1000} {
		p := poolOf("p", n, nil)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				if len(p.Candidates(uint64(i%1000), 8)) == 0 {
					b.Fatal("no candidate")
				}
			}
		})
	}
}

// poolOf is a pool of n usable backends.
func poolOf(name string, n int, before *Pool) *Pool {
	backends := make([]*Backend, n)
	for i, id := range names(n) {
		backends[i] = &Backend{ID: id, Pool: name, Models: []string{"m"}, state: &state{}}
		backends[i].state.up.Store(true)
	}
	return newPool(name, backends, before)
}

func ids(backends []*Backend) []string {
	var all []string
	for _, b := range backends {
		all = append(all, b.ID)
	}
	return all
}
