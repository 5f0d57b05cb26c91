package gateway

import (
	"context"
	"io"
	"math/bits"
	"sync"
)

// prompts lends buffers for request bodies. Fresh memory is dear, so buffers are kept in free lists by power of two;
// the lists are bounded, and so are the bytes lent at one time: a request beyond them waits for its memory.
type prompts struct {
	mu      sync.Mutex
	free    [largestClass + 1][][]byte
	kept    int64 // bytes in the free lists
	lent    int64 // bytes lent
	waiting []waitingPrompt
	limit   int64 // bytes lent at one time
}

type waitingPrompt struct {
	bytes int64
	ready chan struct{}
}

const (
	smallestClass = 12 // 4 KiB
	largestClass  = 30
	// keptPrompts bounds the free lists: what a burst leaves behind goes back to the collector.
	keptPrompts = 64 << 20
)

func newPrompts(limit int64) *prompts { return &prompts{limit: limit} }

// get lends a buffer of length 0 with room for n bytes. It waits while too much is lent, until ctx ends. One buffer
// larger than the whole limit is lent when nothing else is.
func (p *prompts) get(ctx context.Context, n int64) ([]byte, error) {
	size := int64(1) << classOf(n)
	p.mu.Lock()
	for p.lent > 0 && p.lent+size > p.limit {
		w := waitingPrompt{bytes: size, ready: make(chan struct{})}
		p.waiting = append(p.waiting, w)
		p.mu.Unlock()
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
	}
	p.mu.Unlock()
	return p.lend(n), nil
}

// lend takes a buffer without waiting for its share of the limit.
func (p *prompts) lend(n int64) []byte {
	class := classOf(n)
	size := int64(1) << class
	var b []byte
	p.mu.Lock()
	p.lent += size
	if list := p.free[class]; len(list) > 0 {
		b = list[len(list)-1]
		p.free[class] = list[:len(list)-1]
		p.kept -= size
	}
	p.mu.Unlock()
	if b == nil {
		b = make([]byte, 0, size)
	}
	return b
}

// put takes a lent buffer back; the caller must not touch it again.
func (p *prompts) put(b []byte) {
	class := bits.Len64(uint64(cap(b))) - 1
	size := int64(cap(b))
	p.mu.Lock()
	p.lent -= size
	if p.kept+size <= keptPrompts {
		p.free[class] = append(p.free[class], b[:0])
		p.kept += size
	}
	waiting := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	for _, w := range waiting {
		close(w.ready) // all look again: sizes differ, and waiting is rare
	}
}

// readAll reads a body of the given length (-1: unknown) of at most limit bytes. It returns errTooLarge as soon as
// that is certain.
func (p *prompts) readAll(ctx context.Context, x body, limit int64) ([]byte, error) {
	length := x.BodyLength()
	if length > limit {
		return nil, errTooLarge
	}
	b, err := p.get(ctx, max(length, 1<<smallestClass))
	for err == nil {
		if len(b) == cap(b) {
			b = p.grow(b, limit)
		}
		room := min(int64(cap(b)), limit+1)
		var n int
		n, err = x.ReadBody(b[len(b):room])
		b = b[:len(b)+n]
		if int64(len(b)) > limit {
			err = errTooLarge
		} else if err == nil && int64(len(b)) == length {
			err = io.EOF
		}
	}
	if err == io.EOF && (length < 0 || int64(len(b)) == length) {
		return b, nil
	}
	if b != nil {
		p.put(b)
	}
	return nil, err
}

// grow moves b into a buffer twice as large. It does not wait: requests that hold one buffer and wait for another
// would wait for each other. So a body of unknown length may pass the limit by its own size.
func (p *prompts) grow(b []byte, limit int64) []byte {
	larger := append(p.lend(min(2*int64(cap(b)), max(limit+1, int64(cap(b))+1))), b...)
	p.put(b)
	return larger
}

func classOf(n int64) int {
	return max(smallestClass, bits.Len64(uint64(n-1)))
}
