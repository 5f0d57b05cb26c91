package faults

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// span is a piece of time.
type span struct{ from, to time.Time }

// stalls is when this machine gave the harness no processor: then the replicas, which are its equals, had none either. What
// fails in such a moment is nobody's fault, and what a run took says little.
type stalls struct {
	pressure float64 // of the whole time, the share in which somebody waited for a processor; set by end

	began  time.Time
	waited int64 // µs
	stop   chan struct{}
	done   sync.WaitGroup
	list   []span
}

const (
	stallTick = 20 * time.Millisecond
	stallMost = 150 * time.Millisecond // a third of HG_REDIS_TIMEOUT
	stallNear = time.Second
)

// observe begins to look.
func observe() *stalls {
	s := &stalls{began: time.Now(), waited: waited(), stop: make(chan struct{})}
	s.done.Go(func() {
		tick := time.NewTicker(stallTick)
		defer tick.Stop()
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-s.stop:
				return
			case <-tick.C:
			}
			if time.Since(last) > stallMost {
				s.list = append(s.list, span{last, time.Now()})
			}
		}
	})
	return s
}

// end stops looking; nothing is asked before.
func (s *stalls) end() {
	close(s.stop)
	s.done.Wait()
	s.pressure = float64(waited()-s.waited) / float64(time.Since(s.began).Microseconds())
}

// longest stall.
func (s *stalls) longest() (most time.Duration) {
	for _, stall := range s.list {
		most = max(most, stall.to.Sub(stall.from))
	}
	return most
}

// around reports a stall within a second of the span.
func (s *stalls) around(what span) bool {
	for _, stall := range s.list {
		if stall.to.After(what.from.Add(-stallNear)) && stall.from.Before(what.to.Add(stallNear)) {
			return true
		}
	}
	return false
}

// waited is how many microseconds somebody has waited for a processor since the machine started; 0 where it is not counted.
func waited() (us int64) {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	_, total, _ := strings.Cut(string(text), "total=")
	fmt.Sscan(total, &us)
	return us
}
