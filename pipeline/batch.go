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
	"slices"
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
	room    [4]*call // for pending: few requests want more
	trips   int
}

// RoundTrips is how often the owner of this batch waited for Redis so far.
func (b *Batch) RoundTrips() int { return b.trips }

// Len is the number of commands declared and not yet sent.
func (b *Batch) Len() int { return len(b.pending) }

// call is a command on its way.
type call struct {
	Command
	joined []*call // calls this one stands for, in place of Args; it belongs to no batch and no handle
	batch  *Batch
	owner  interface {
		final(rueidis.RedisMessage, error)
	} // told the reply once
	beside chan struct{} // closed when the reply is final; nil: nobody waits beside the sender
	sent   bool
	trips  int // round trips this command took beyond the first
}

// Declare puts c on b and returns the handle of its reply. Nothing is sent yet. decode sees a nil reply as a
// message whose IsNil is true; it is not called when the command failed.
func Declare[T any](b *Batch, c Command, decode func(rueidis.RedisMessage) (T, error)) *Handle[T] {
	return declare(b, c, &Handle[T]{decode: decode})
}

// DeclareInto is Declare for a reply that is large: decode writes it where it stays, and nobody hands it on as a copy, on
// whose stack it would lie as often. A failed decode's value is not read.
func DeclareInto[T any](b *Batch, c Command, decode func(rueidis.RedisMessage, *T) error) *Handle[T] {
	return declare(b, c, &Handle[T]{into: decode})
}

func declare[T any](b *Batch, c Command, h *Handle[T]) *Handle[T] {
	h.call = call{Command: c, batch: b, owner: h}
	if b.pending == nil {
		b.pending = b.room[:0]
	}
	b.pending = append(b.pending, &h.call)
	return h
}

// Handle is the typed reply of one declared command.
type Handle[T any] struct {
	call   call                                  // without a batch: resolved from the start
	decode func(rueidis.RedisMessage) (T, error) // or into
	into   func(rueidis.RedisMessage, *T) error
	value  T
	err    error
	then   func(T, error)
}

// Resolved is a handle that needs no Redis.
func Resolved[T any](value T, err error) *Handle[T] { return &Handle[T]{value: value, err: err} }

// Wait returns the reply. The first Wait after a Declare sends all that the batch holds. When ctx ends first, Wait
// returns its error while the command may still be applied: a reply that was not seen means "perhaps applied".
func (h *Handle[T]) Wait(ctx context.Context) (value T, err error) {
	if err = h.call.await(ctx); err != nil {
		return value, err
	}
	return h.value, h.err
}

// await returns when the reply is final, or with ctx's error.
func (c *call) await(ctx context.Context) error {
	if c.batch == nil {
		return nil
	}
	if !c.sent {
		c.batch.flush(c.Store)
	}
	if c.beside != nil {
		select {
		case <-c.beside:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.batch.trips += c.trips
	c.trips = 0
	return nil
}

// Then has fn called once with the reply, on the goroutine that received it: it must not block. It is set before
// the batch is sent; on a resolved handle fn is called at once.
func (h *Handle[T]) Then(fn func(T, error)) {
	if h.call.batch == nil {
		fn(h.value, h.err)
		return
	}
	h.then = fn
}

func (h *Handle[T]) final(m rueidis.RedisMessage, err error) {
	switch {
	case err != nil:
		h.err = err
	case h.into != nil:
		h.err = h.into(m, &h.value)
	default:
		h.decoded(m)
	}
	if h.then != nil {
		h.tell()
	}
}

// decoded and tell have copies of the value on the stack: apart from final, below which the deepest stack of most requests is.
//
//go:noinline
func (h *Handle[T]) decoded(m rueidis.RedisMessage) { h.value, h.err = h.decode(m) }

//go:noinline
func (h *Handle[T]) tell() { h.then(h.value, h.err) }

// flush sends everything pending, one pipeline per store: that of own on this goroutine, which has its replies when flush
// returns, the others beside it. // I1
func (b *Batch) flush(own *Store) {
	b.trips++
	var mine []*call
	for rest := b.take(); len(rest) > 0; {
		var group []*call
		group, rest = ofOneStore(rest)
		if group[0].Store == own {
			mine = group
			continue
		}
		for _, c := range group {
			c.sent, c.beside = true, make(chan struct{})
		}
		go group[0].Store.send(group)
	}
	for _, c := range mine {
		c.sent = true
	}
	own.send(mine)
	if b.pending == nil {
		b.room = [len(b.room)]*call{} // the batch lives as long as its request: what was sent must not
	}
}

// take empties the batch. What it returns may lie in the batch: it is sent, or copied, before more is declared.
func (b *Batch) take() []*call {
	calls := b.pending
	b.pending = nil
	return calls
}

// ofOneStore is the calls of the first one's store, and the rest; both in order of declaration.
func ofOneStore(calls []*call) (same, rest []*call) {
	store := calls[0].Store
	if !slices.ContainsFunc(calls, func(c *call) bool { return c.Store != store }) {
		return calls, nil
	}
	for _, c := range calls {
		if c.Store == store {
			same = append(same, c)
		} else {
			rest = append(rest, c)
		}
	}
	return same, rest
}

// repeatPause is how long a command refused by a slot on the move waits before it is repeated: a migration of one
// slot's keys takes milliseconds, and the store's timeout bounds the number of repeats.
const repeatPause = 10 * time.Millisecond
