package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/headgate/headgate/coordinator"
)

// TestFlights: one leads, the others share its answer; who comes after it landed leads anew; who leaves stops waiting.
func TestFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		lead, follow := f.join("a")
		if lead == nil || follow != nil {
			t.Fatal("the first does not lead")
		}
		if other, _ := f.join("b"); other == nil {
			t.Fatal("another request does not lead")
		}
		var shared atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				mine, theirs := f.join("a")
				if mine != nil {
					t.Error("two lead")
					return
				}
				if a, err := theirs.wait(t.Context()); err == nil && a != nil && string(a.Body) == "x" {
					shared.Add(1)
				}
			})
		}
		gone, leave := context.WithCancel(t.Context())
		_, theirs := f.join("a")
		leave()
		if _, err := theirs.wait(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
		synctest.Wait()
		if shared.Load() != 0 {
			t.Error("shared before there was an answer")
		}
		f.land("a", lead, &coordinator.Answer{Body: []byte("x")})
		wg.Wait()
		if shared.Load() != 10 {
			t.Errorf("%d of 10 followers got the answer", shared.Load())
		}
		again, _ := f.join("a")
		if again == nil {
			t.Fatal("nobody leads after the landing")
		}
		_, theirs = f.join("a")
		f.land("a", again, nil)
		if a, err := theirs.wait(t.Context()); a != nil || err != nil {
			t.Errorf("a leader without an answer shared %v, %v", a, err)
		}
	})
}
