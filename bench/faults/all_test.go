//go:build faults

package faults

import "testing"

// TestFaults plays the long runs, one after the other. -run 'TestFaults/redis' plays those with the word in their name.
func TestFaults(t *testing.T) {
	for _, r := range long {
		t.Run(r.name, func(t *testing.T) { r.play(t) })
	}
}
