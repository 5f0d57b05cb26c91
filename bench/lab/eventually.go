package lab

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// Eventually returns as soon as cond is true and fails the test when it is not within timeout. cond runs on the caller's
// goroutine, every few milliseconds.
func Eventually(t testing.TB, timeout time.Duration, cond func() bool, format string, args ...any) {
	t.Helper()
	err := within(timeout, func() error {
		if !cond() {
			return errors.New("condition is false")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("not within %s: %s", timeout, fmt.Sprintf(format, args...))
	}
}

// Succeeds is Eventually for a check that can say what is wrong; the last error ends up in the failure.
func Succeeds(t testing.TB, timeout time.Duration, check func() error, format string, args ...any) {
	t.Helper()
	if err := within(timeout, check); err != nil {
		t.Fatalf("not within %s: %s: %v", timeout, fmt.Sprintf(format, args...), err)
	}
}

func within(timeout time.Duration, check func() error) error {
	deadline := time.Now().Add(timeout)
	for wait := time.Millisecond; ; wait = min(wait*2, 20*time.Millisecond) {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(wait)
	}
}
