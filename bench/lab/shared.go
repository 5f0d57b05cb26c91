package lab

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// SharedCluster is one ClusterReplicated of three primaries for this test binary, started by whoever asks first. Tests that
// share it use key roots of their own and let it live.
func SharedCluster(t testing.TB) *RedisCluster {
	t.Helper()
	c, err := sharedCluster()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// SharedSentinel is one Sentinel set for this test binary, as SharedCluster.
func SharedSentinel(t testing.TB) *SentinelSet {
	t.Helper()
	s, err := sharedSentinel()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	sharedCluster  = once(func(t testing.TB) *RedisCluster { return ClusterReplicated(t, 3, 0) })
	sharedSentinel = once(Sentinel)
)

// once makes a thing for all tests of the binary. A failure while it is made is that of everybody who asks.
func once[T any](make func(testing.TB) T) func() (T, error) {
	return sync.OnceValues(func() (thing T, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("lab: not started: %v", cause)
			}
		}()
		return make(lasting{}), nil
	})
}

// lasting is the TB of what lives as long as the binary: the warden ends it. I2
type lasting struct{ testing.TB }

func (lasting) Helper()                   {}
func (lasting) Cleanup(func())            {}
func (lasting) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (lasting) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func (lasting) TempDir() string {
	dir, err := os.MkdirTemp("", "lab-")
	if err == nil {
		err = ward("dir", dir)
	}
	if err != nil {
		panic(err)
	}
	return dir
}
