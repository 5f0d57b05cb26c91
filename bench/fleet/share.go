package fleet

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
)

// Share returns a function that makes a thing once, for whichever test asks first, and gives the same to all. What make
// registers with its testing.TB lasts until Main has run all tests. If make fails, so does every test that asks.
func Share[T any](make func(testing.TB) T) func(testing.TB) T {
	once := sync.OnceValues(func() (thing T, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("what tests share could not be made: %v", cause)
			}
		}()
		return make(&theSession), nil
	})
	return func(t testing.TB) T {
		t.Helper()
		thing, err := once()
		if err != nil {
			t.Fatal(err)
		}
		return thing
	}
}

// session is the TB of what outlives a single test. A fatal failure panics: Share makes it the failure of who asked.
type session struct {
	testing.TB
	mu       sync.Mutex
	cleanups []func()
	failed   bool
}

var theSession session

func (s *session) Helper()                   {}
func (s *session) Name() string              { return "shared" }
func (s *session) Context() context.Context  { return context.Background() }
func (s *session) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (s *session) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (s *session) Logf(f string, a ...any)   { fmt.Printf(f+"\n", a...) }

// Errorf fails the whole run: no single test is at fault.
func (s *session) Errorf(f string, a ...any) {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	s.Logf(f, a...)
}

func (s *session) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *session) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *session) TempDir() string {
	dir, err := os.MkdirTemp("", "headgate-test-")
	if err != nil {
		panic(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// end runs the cleanups, the last first.
func (s *session) end() {
	for len(s.cleanups) > 0 {
		last := len(s.cleanups) - 1
		f := s.cleanups[last]
		s.cleanups = s.cleanups[:last]
		f()
	}
}
