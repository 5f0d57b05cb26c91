package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
)

// R1: the readers are the two of all living replicas with the smallest hashes, whatever the order in which they are listed.
func TestReadersAreTheTwoSmallest(t *testing.T) {
	t.Parallel()
	var living []string
	for i := range 100 {
		living = append(living, fmt.Sprintf("gateway-%d", i))
	}
	read := map[string]int{}
	for i := range 1000 {
		b := &Backend{Pool: "p", ID: fmt.Sprintf("gpu-%d", i)}
		sorted := slices.SortedFunc(slices.Values(living), func(x, y string) int {
			return cmp.Compare(xxh3.HashString(x+"\np\n"+b.ID), xxh3.HashString(y+"\np\n"+b.ID))
		})
		chosen := readersOf(b, living)
		if !slices.Equal(chosen, sorted[:2]) {
			t.Fatalf("%s: %v, want %v", b.ID, chosen, sorted[:2])
		}
		for _, replica := range chosen {
			read[replica]++
		}
	}
	most := 0
	for _, replica := range living { // 20 on average; 4.5 is a standard deviation
		most = max(most, read[replica])
		if read[replica] < 3 || read[replica] > 42 {
			t.Errorf("%s reads %d of 1,000 backends with 99 others", replica, read[replica])
		}
	}
	t.Logf("100 replicas, 1,000 engines: each reads 20 on average, the busiest %d", most)
}
