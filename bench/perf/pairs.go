package main

import (
	"fmt"
	"slices"
)

// pair is a question: a candidate's figure as a multiple of a reference's.
type pair struct{ candidate, reference string }

// finding is the answer.
type finding struct {
	pair
	Ratios []float64 // one per pair of runs
}

// ratio is the middle one, and the least and the largest.
func (f finding) ratio() (median, least, most float64) {
	sorted := slices.Sorted(slices.Values(f.Ratios))
	return middle(sorted), sorted[0], sorted[len(sorted)-1]
}

func (f finding) String() string {
	median, least, most := f.ratio()
	return fmt.Sprintf("%.2f (%.2f..%.2f)", median, least, most)
}

// middle of a sorted list.
func middle(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[n/2] + sorted[(n-1)/2]) / 2
}

// paired runs reference, candidate, reference, candidate, reference, … and gives each candidate's figure over the mean of its
// two neighbours. // I1
func paired(p pair, rounds int, measure func(who string) (float64, error)) (finding, error) {
	f := finding{pair: p}
	before, err := measure(p.reference)
	if err != nil {
		return f, fmt.Errorf("%s: %w", p.reference, err)
	}
	for range rounds {
		mine, err := measure(p.candidate)
		if err != nil {
			return f, fmt.Errorf("%s: %w", p.candidate, err)
		}
		after, err := measure(p.reference)
		if err != nil {
			return f, fmt.Errorf("%s: %w", p.reference, err)
		}
		f.Ratios = append(f.Ratios, mine/((before+after)/2))
		before = after
	}
	return f, nil
}
