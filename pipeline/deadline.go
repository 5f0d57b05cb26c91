package pipeline

import (
	"context"
	"sync/atomic"
	"time"
)

// deadlines gives flushes a context that ends with the store's timeout. Those of a moment share one, which costs each of them
// a sixteenth of its time at most, and none a timer of its own. It is safe for concurrent use.
type deadlines struct {
	timeout time.Duration
	last    atomic.Pointer[deadline]
}

type deadline struct {
	context.Context
	shared time.Time // until then
	cancel func()    // not called: others may have it, and it ends by itself
}

func (d *deadlines) next() context.Context {
	now := time.Now()
	if last := d.last.Load(); last != nil && now.Before(last.shared) {
		return last
	}
	ctx, cancel := context.WithDeadline(context.Background(), now.Add(d.timeout))
	next := &deadline{ctx, now.Add(d.timeout / 16), cancel}
	d.last.Store(next)
	return next
}
