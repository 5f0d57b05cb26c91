package pipeline

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeadlinesAreShared: what is sent within a moment ends together, and nothing has less than 15 sixteenths of the timeout,
// or more than all of it.
func TestDeadlinesAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := deadlines{timeout: 160 * time.Millisecond}
		start := time.Now()
		first := d.next()
		time.Sleep(9 * time.Millisecond)
		if d.next() != first {
			t.Error("not shared after 9 ms of 10")
		}
		time.Sleep(time.Millisecond)
		second := d.next()
		if second == first {
			t.Error("still shared after 10 ms of 10")
		}
		for ctx, want := range map[context.Context]time.Duration{first: 160 * time.Millisecond, second: 170 * time.Millisecond} {
			if at, ok := ctx.Deadline(); !ok || at.Sub(start) != want {
				t.Errorf("ends after %v, want %v", at.Sub(start), want)
			}
		}
		<-first.Done()
		if at := time.Since(start); at != 160*time.Millisecond || first.Err() != context.DeadlineExceeded || second.Err() != nil {
			t.Errorf("ended after %v with %v, the later one with %v", at, first.Err(), second.Err())
		}
		<-second.Done()
	})
}
