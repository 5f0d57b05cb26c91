package coordinator

import (
	"errors"
	"fmt"
	"testing"

	"github.com/headgate/headgate/pipeline"
)

// TestBreaker: Redis is away, and after three calls without an answer requests are answered at once, and one in 250 ms asks.
func TestBreaker(t *testing.T) {
	t.Parallel()
	var told []bool
	b := breaker{turned: func(away bool, _ error) { told = append(told, away) }}
	away := fmt.Errorf("admit: %w", pipeline.ErrUnavailable)
	for range trippedAfter - 1 {
		b.asked("acme", away, noon)
	}
	if !b.closed("acme", noon) {
		t.Fatal("too early")
	}
	b.asked("acme", away, noon)
	if b.closed("acme", noon) || b.closed("acme", noon.Add(probeEvery-1)) || !b.closed("other", noon) {
		t.Fatal("not for this tenant alone, or not")
	}
	if !b.closed("acme", noon.Add(probeEvery)) || b.closed("acme", noon.Add(probeEvery)) {
		t.Fatal("one asks, and no more than one")
	}
	b.asked("acme", errors.New("WRONGTYPE"), noon) // an answer
	if !b.closed("acme", noon) || len(b.tenants) != 0 {
		t.Fatal("it answered")
	}
	for i := range 2 * trippedMax {
		b.asked(fmt.Sprint(i), away, noon)
	}
	if len(b.tenants) != trippedMax {
		t.Fatalf("%d", len(b.tenants))
	}
	if fmt.Sprint(told) != "[true false]" {
		t.Fatalf("told %v", told)
	}
}

// TestBreakerSaysOnceThatItTurned: away with the first tenant's Redis, back with the last one's, or when who failed asks no more.
func TestBreakerSaysOnceThatItTurned(t *testing.T) {
	t.Parallel()
	var told []bool
	b := breaker{turned: func(away bool, _ error) { told = append(told, away) }}
	away := fmt.Errorf("lookup: %w", pipeline.ErrUnavailable)
	for range 2 * trippedAfter {
		b.asked("acme", away, noon)
		b.asked("beta", away, noon)
	}
	b.asked("acme", nil, noon)
	if fmt.Sprint(told) != "[true]" {
		t.Fatalf("told %v while one is away", told)
	}
	b.asked("acme", nil, noon.Add(missedFor+probeEvery))
	if fmt.Sprint(told) != "[true false]" || len(b.tenants) != 0 {
		t.Fatalf("told %v after the other went silent; %d tenants", told, len(b.tenants))
	}
}
