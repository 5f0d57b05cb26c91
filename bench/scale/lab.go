package main

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/rs/zerolog"
)

// failure is what a bench panics with; run turns it into its error.
type failure struct{ error }

// bench is what the lab needs of a test: somebody who cleans up, and who ends when a server does not start.
type bench struct {
	testing.TB
	cleanups []func()
}

func (b *bench) Helper()                   {}
func (b *bench) Cleanup(f func())          { b.cleanups = append(b.cleanups, f) }
func (b *bench) Fatal(args ...any)         { panic(failure{fmt.Errorf("%s", fmt.Sprint(args...))}) }
func (b *bench) Fatalf(f string, a ...any) { panic(failure{fmt.Errorf(f, a...)}) }

func (b *bench) TempDir() string {
	dir, err := os.MkdirTemp("", "scale-")
	b.must(err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (b *bench) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// close ends what was started, the last first.
func (b *bench) close() {
	for len(b.cleanups) > 0 {
		last := b.cleanups[len(b.cleanups)-1]
		b.cleanups = b.cleanups[:len(b.cleanups)-1]
		last()
	}
}

// apart runs fn with servers of its own, which are gone when it returns.
func apart(fn func(b *bench)) {
	b := &bench{}
	defer b.close()
	fn(b)
}

// node is a Redis, as nodes are measured.
func node(b *bench) *lab.RedisServer { return lab.Redis(b) }

// store connects to a Redis. The timeout is long: what is measured here is not speed.
func (b *bench) store(url string) *pipeline.Store {
	s, err := pipeline.NewStore(pipeline.StoreConfig{Name: "scale", URL: url, Timeout: 30 * time.Second, Log: zerolog.Nop()})
	b.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	b.must(s.WaitConnected(ctx))
	return s
}
