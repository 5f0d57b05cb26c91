package gateway

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"sync"
	"time"
)

// prompts lends buffers for request bodies. Fresh memory is dear, so buffers are kept in free lists by power of two;
// the lists are bounded, and so are the bytes lent at one time: a request beyond them waits for its memory. Large buffers
// are no part of Go's heap where the system allows it: what a burst took goes back at once, and the collector does not
// take prompts for a reason to let the heap grow.
type prompts struct {
	mu      sync.Mutex
	free    [largestClass + 1][][]byte
	kept    int64           // bytes in the free lists
	idle    int64           // the least of kept since the last trim: nobody needed them
	trims   bool            // a trim is due
	lent    int64           // bytes lent
	waiting []chan struct{} // closed by the next put
	limit   int64           // bytes lent to first buffers; further ones of the same request may use a quarter more
}

const (
	smallestClass = 12 // 4 KiB
	largestClass  = 32
	// mappedClass is the smallest whose buffers are not taken from the heap, 64 KiB.
	mappedClass = 16
	// keptPrompts bounds the free lists.
	keptPrompts = 64 << 20
	// trimAfter is how long a buffer may lie unused: longer than the pauses of steady traffic, so that it finds its
	// buffers again, and short beside the life of a stream.
	trimAfter = 2 * time.Second
	// firstLook is how much is lent to a body for its announced length alone; for more it has to show bytes.
	firstLook = 128 << 10
	// promptWait is how long a request waits for its first buffer. It exceeds what an engine takes to show a first
	// token on a busy day, which is when prompts go back.
	promptWait = 10 * time.Second
)

var (
	errTooLarge = errors.New("body too large")
	errNoRoom   = errors.New("too many prompts in memory")
)

func newPrompts(limit int64) *prompts { return &prompts{limit: limit} }

// inUse is the number of bytes lent.
func (p *prompts) inUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lent
}

// readAll reads a body of at most limit bytes into a lent buffer. It returns errTooLarge as soon as that is certain,
// errNoRoom when there is no memory for it, and io.ErrUnexpectedEOF for a body shorter than it said.
func (p *prompts) readAll(ctx context.Context, x body, limit int64) ([]byte, error) {
	length := x.BodyLength()
	if length > limit {
		return nil, errTooLarge
	}
	first := int64(1) << smallestClass
	if length >= 0 {
		first = min(length, firstLook)
	}
	b, err := p.get(ctx, first)
	if err != nil {
		return nil, err
	}
	if length < 0 {
		return p.readPieces(b, x, limit)
	}
	return p.readLength(b, x, length)
}

// readLength reads a body whose length is known. Its buffer grows to four times what came at most: a client that
// announces a large body and sends nothing costs little.
func (p *prompts) readLength(b []byte, x body, length int64) (_ []byte, err error) {
	for int64(len(b)) < length {
		if len(b) == cap(b) {
			if b, err = p.grow(b, min(length, 4*int64(cap(b)))); err != nil {
				return nil, err
			}
		}
		n, err := x.ReadBody(b[len(b):min(int64(cap(b)), length)])
		b = b[:len(b)+n]
		if err != nil && int64(len(b)) < length {
			p.put(b)
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return b, nil
}

// readPieces reads a body of unknown length in pieces, each as large as all before, and joins them once its length is
// known: a body that turns out too large never cost more than limit. It takes b, an empty buffer, as the first.
func (p *prompts) readPieces(b []byte, x body, limit int64) (_ []byte, err error) {
	pieces, before := make([][]byte, 0, 16), int64(0) // bytes in pieces, all of them full
	defer func() {
		for _, piece := range pieces {
			p.put(piece)
		}
	}()
	for {
		if len(b) == cap(b) {
			pieces, before = append(pieces, b), before+int64(len(b))
			if b, err = p.more(min(before, limit+1-before), before); err != nil {
				return nil, err
			}
		}
		n, err := x.ReadBody(b[len(b):min(int64(cap(b)), limit+1-before)])
		b = b[:len(b)+n]
		switch {
		case before+int64(len(b)) > limit:
			err = errTooLarge
		case err == nil:
			continue
		case err == io.EOF && before == 0:
			return b, nil
		}
		pieces = append(pieces, b)
		if err != io.EOF {
			return nil, err
		}
		return p.join(pieces)
	}
}

func (p *prompts) join(pieces [][]byte) ([]byte, error) {
	var n, own int64
	for _, piece := range pieces {
		n += int64(len(piece))
		own += int64(cap(piece))
	}
	whole, err := p.more(n, own)
	if err != nil {
		return nil, err
	}
	for _, piece := range pieces {
		whole = append(whole, piece...)
	}
	return whole, nil
}

// get lends a buffer of length 0 with room for n bytes. It waits while too much is lent, until ctx ends or promptWait
// is over. One buffer larger than the whole limit is lent when nothing else is.
func (p *prompts) get(ctx context.Context, n int64) ([]byte, error) {
	size := sizeOf(n)
	var patience <-chan time.Time
	p.mu.Lock()
	for p.lent > 0 && p.lent+size > p.limit {
		ready := make(chan struct{})
		p.waiting = append(p.waiting, ready)
		p.mu.Unlock()
		if patience == nil {
			timer := time.NewTimer(promptWait)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-ready:
		case <-patience:
			return nil, errNoRoom
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
	}
	return p.lendLocked(n), nil
}

// more lends a further buffer to a request that holds own bytes. It does not wait, because requests that hold one
// buffer and wait for another would wait for each other: a quarter of the limit is kept for them, and beyond it there
// is none, unless nobody else holds anything.
func (p *prompts) more(n, own int64) ([]byte, error) {
	size := sizeOf(n)
	p.mu.Lock()
	if p.lent > own && p.lent+size > p.limit+p.limit/4 {
		p.mu.Unlock()
		return nil, errNoRoom
	}
	return p.lendLocked(n), nil
}

// grow moves b into a buffer of n bytes. On an error b is gone too.
func (p *prompts) grow(b []byte, n int64) ([]byte, error) {
	defer p.put(b)
	larger, err := p.more(n, int64(cap(b)))
	if err != nil {
		return nil, err
	}
	return append(larger, b...), nil
}

// lendLocked takes a buffer, and unlocks.
func (p *prompts) lendLocked(n int64) []byte {
	class := classOf(n)
	size := int64(1) << class
	var b []byte
	p.lent += size
	if list := p.free[class]; len(list) > 0 {
		b = list[len(list)-1]
		p.free[class] = list[:len(list)-1]
		p.kept -= size
		p.idle = min(p.idle, p.kept)
	}
	p.mu.Unlock()
	switch {
	case b != nil:
		return b
	case class >= mappedClass:
		return mapped(size)
	}
	return make([]byte, 0, size)
}

// put takes a lent buffer back; the caller must not touch it again.
func (p *prompts) put(b []byte) {
	class := bits.Len64(uint64(cap(b))) - 1
	size := int64(cap(b))
	p.mu.Lock()
	p.lent -= size
	over := p.kept+size > keptPrompts
	if !over {
		p.free[class] = append(p.free[class], b[:0])
		p.kept += size
		if !p.trims {
			p.trims, p.idle = true, 0
			time.AfterFunc(trimAfter, p.trimOn)
		}
	}
	waiting := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	if over && class >= mappedClass {
		unmap(b)
	}
	for _, ready := range waiting {
		close(ready) // all look again: sizes differ, and waiting is rare
	}
}

// trimOn trims again and again while anything is kept.
func (p *prompts) trimOn() {
	p.trim()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trims = p.kept > 0; p.trims {
		time.AfterFunc(trimAfter, p.trimOn)
	}
}

// trim gives back what nobody needed since the last time, the largest first.
func (p *prompts) trim() {
	var gone [][]byte
	p.mu.Lock()
	for class := largestClass; class >= smallestClass; class-- {
		for size := int64(1) << class; p.idle >= size && len(p.free[class]) > 0; p.idle -= size {
			last := len(p.free[class]) - 1
			if class >= mappedClass {
				gone = append(gone, p.free[class][last])
			}
			p.free[class][last] = nil
			p.free[class] = p.free[class][:last]
			p.kept -= size
		}
	}
	p.idle = p.kept
	p.mu.Unlock()
	for _, b := range gone {
		unmap(b)
	}
}

// classOf is the power of two whose buffers have room for n bytes.
func classOf(n int64) int {
	return max(smallestClass, bits.Len64(uint64(max(n, 1)-1)))
}

func sizeOf(n int64) int64 { return 1 << classOf(n) }
