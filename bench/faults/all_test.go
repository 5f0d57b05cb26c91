//go:build faults

package faults

import (
	"flag"
	"testing"
	"time"
)

var (
	seed     = flag.Uint64("seed", 1, "of TestChaos: the same seed gives the same troubles at the same times")
	chaosFor = flag.Duration("chaos", 10*time.Minute, "how long TestChaos lasts")
)

// TestFaults plays the long runs, one after the other. -run 'TestFaults/redis' plays those with the word in their name.
func TestFaults(t *testing.T) {
	for _, r := range long {
		t.Run(r.name, func(t *testing.T) { r.play(t) })
	}
}

// TestChaos has everything happen at once. What a run says of its seed is enough to play it again.
func TestChaos(t *testing.T) { chaos(*seed, *chaosFor).play(t) }
