// Package pipeline collects what the parts of one request want from Redis and sends it together.
//
// An owner declares a command on a [Batch] and gets a typed [Handle]; the first Wait on any handle sends
// everything declared so far, one pipeline per Redis. A [Post] is the batch after the model call: nobody
// waits for it, its owners sign off, and one worker per Redis sends it.
//
// Invariants:
//
//	I1. What was declared before the first Wait leaves in one flush, whatever the number of owners and stores.
//	I2. A failed command fails its own handle and no other.
//	I3. A script Redis lost is sent again alone, in full; what stood beside it is not repeated.
//	I4. RoundTrips counts the waits of this batch: one per flush, and one per repeat.
//	I5. A post-call batch is sent when its last owner has signed off, and one second after its first owner at the latest.
//	I6. While a cluster's slot is on the move a script runs on no half of its keys: it waits, or fails.
//	I7. Drain returns after everything handed over before it was sent, or when its context ends.
//	I8. Calls of a joinable script on one key in one flush are one command; each has its own reply, or is sent alone.
package pipeline

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// Command is one declaration: a script or a plain command, on one key of one store.
type Command struct {
	Store  *Store
	Script *Script // nil for a plain command
	Name   string  // the plain command's name
	Key    string  // KEYS[1]; it decides the hash slot. KEYS[2] is a name no script uses, see neverThere
	Args   []string
}

// Batch collects the commands of one request. It is used by one goroutine; the zero value is ready to use.
type Batch struct {
	pending []*call
	trips   int
}

// RoundTrips is how often the owner of this batch waited for Redis so far.
func (b *Batch) RoundTrips() int { return b.trips }

// Len is the number of commands declared and not yet sent.
func (b *Batch) Len() int { return len(b.pending) }

// call is a command on its way. done is closed when result is final.
type call struct {
	Command
	batch  *Batch
	result func(rueidis.RedisMessage, error)
	done   chan struct{} // nil for post-call commands: nobody waits
	sent   bool
	trips  int // round trips this command took beyond the first
}

// Declare puts c on b and returns the handle of its reply. Nothing is sent yet. decode sees a nil reply as a
// message whose IsNil is true; it is not called when the command failed.
func Declare[T any](b *Batch, c Command, decode func(rueidis.RedisMessage) (T, error)) *Handle[T] {
	h := &Handle[T]{}
	h.call = &call{Command: c, batch: b}
	h.call.result = func(m rueidis.RedisMessage, err error) {
		if err == nil {
			h.value, h.err = decode(m)
		} else {
			h.err = err
		}
		if h.then != nil {
			h.then(h.value, h.err)
		}
	}
	b.pending = append(b.pending, h.call)
	return h
}

// Handle is the typed reply of one declared command.
type Handle[T any] struct {
	call  *call // nil: resolved from the start
	value T
	err   error
	then  func(T, error)
}

// Resolved is a handle that needs no Redis.
func Resolved[T any](value T, err error) *Handle[T] { return &Handle[T]{value: value, err: err} }

// Wait returns the reply. The first Wait after a Declare sends all that the batch holds. When ctx ends first, Wait
// returns its error while the command may still be applied: a reply that was not seen means "perhaps applied".
func (h *Handle[T]) Wait(ctx context.Context) (T, error) {
	if h.call == nil {
		return h.value, h.err
	}
	if !h.call.sent {
		h.call.batch.flush(ctx, h.call)
	}
	select {
	case <-h.call.done:
		h.call.batch.trips += h.call.trips
		h.call.trips = 0
		return h.value, h.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// Then has fn called once with the reply, on the goroutine that received it: it must not block. It is set before
// the batch is sent; on a resolved handle fn is called at once.
func (h *Handle[T]) Then(fn func(T, error)) {
	if h.call == nil {
		fn(h.value, h.err)
		return
	}
	h.then = fn
}

// flush sends everything pending, one pipeline per store: the store of first on this goroutine, the others beside it. // I1
func (b *Batch) flush(ctx context.Context, first *call) {
	groups := takeGroups(b)
	b.trips++
	for _, g := range groups {
		for _, c := range g {
			c.done = make(chan struct{})
			c.sent = true
		}
	}
	for _, g := range groups {
		if g[0].Store != first.Store {
			go g[0].Store.send(ctx, g)
		}
	}
	for _, g := range groups {
		if g[0].Store == first.Store {
			g[0].Store.send(ctx, g)
		}
	}
}

// takeGroups empties b and returns its commands by store, each group in order of declaration.
func takeGroups(b *Batch) [][]*call {
	pending := b.pending
	b.pending = nil
	var groups [][]*call
next:
	for _, c := range pending {
		for i := range groups {
			if groups[i][0].Store == c.Store {
				groups[i] = append(groups[i], c)
				continue next
			}
		}
		groups = append(groups, append(make([]*call, 0, len(pending)), c))
	}
	return groups
}

// repeatPause is how long a command refused by a slot on the move waits before it is repeated: a migration of one
// slot's keys takes milliseconds, and the store's timeout bounds the number of repeats.
const repeatPause = 10 * time.Millisecond
