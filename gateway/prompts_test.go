package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
)

// fakeBody is a body that comes in pieces of at most step bytes.
type fakeBody struct {
	data   []byte
	length int64
	step   int
}

func (b *fakeBody) BodyLength() int64 { return b.length }
func (b *fakeBody) ReadBody(p []byte) (int, error) {
	n := copy(p[:min(len(p), b.step)], b.data)
	b.data = b.data[n:]
	if len(b.data) == 0 {
		return n, io.EOF
	}
	return n, nil
}

// TestBODY2_AnyLength: bodies around buffer sizes arrive whole, with and without a known length, and nothing stays lent.
func TestBODY2_AnyLength(t *testing.T) {
	p := newPrompts(64 << 20)
	for _, n := range []int{0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 131072, 1 << 20, 10 << 20} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 7)
		}
		for _, length := range []int64{int64(n), -1} {
			got, err := p.readAll(t.Context(), &fakeBody{data, length, 1000 + n/8}, 32<<20)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes (length %d): %d came, %v", n, length, len(got), err)
			}
			p.put(got)
		}
	}
	if p.lent != 0 {
		t.Errorf("%d bytes are still lent", p.lent)
	}
	if p.kept > keptPrompts {
		t.Errorf("%d bytes kept, bound %d", p.kept, keptPrompts)
	}
}

// TestTrim: buffers that nobody needed between two trims go back, the others stay.
func TestTrim(t *testing.T) {
	p := newPrompts(64 << 20)
	lend := func(n int) (all [][]byte) {
		for range n {
			b, err := p.get(t.Context(), 100_000)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, append(b, "prompt"...))
		}
		return all
	}
	p.trims = true // by hand, not by the clock
	for i, want := range []int{10, 4, 4, 0} {
		for _, b := range lend([]int{10, 4, 4, 0}[i]) {
			p.put(b)
		}
		if p.trim(); p.kept != int64(want)<<17 {
			t.Errorf("%d bytes kept after trim %d", p.kept, i)
		}
	}
}

// TestBodyBounds: too large is found with and without a length; a body that ends early is an error.
func TestBodyBounds(t *testing.T) {
	p := newPrompts(1 << 20)
	data := make([]byte, 5001)
	for _, length := range []int64{5001, -1} {
		if _, err := p.readAll(t.Context(), &fakeBody{data, length, 512}, 5000); !errors.Is(err, errTooLarge) {
			t.Errorf("5001 of 5000 bytes (length %d): %v", length, err)
		}
	}
	for _, length := range []int64{5000, -1} {
		got, err := p.readAll(t.Context(), &fakeBody{data[:5000], length, 512}, 5000)
		if err != nil || len(got) != 5000 {
			t.Fatalf("5000 of 5000 bytes (length %d): %d, %v", length, len(got), err)
		}
		p.put(got)
	}
	if _, err := p.readAll(t.Context(), &fakeBody{data[:10], 5000, 512}, 5000); err == nil {
		t.Error("a body shorter than it said was taken")
	}
	if p.lent != 0 {
		t.Errorf("%d bytes are still lent", p.lent)
	}
}

// watchedBody notes how much is lent at most while a body comes.
type watchedBody struct {
	fakeBody
	p    *prompts
	came int64
	over int64 // the most that was lent beyond what came
	peak int64
}

func (b *watchedBody) ReadBody(p []byte) (int, error) {
	lent := b.p.inUse()
	b.peak, b.over = max(b.peak, lent), max(b.over, lent-4*b.came)
	n, err := b.fakeBody.ReadBody(p)
	b.came += int64(n)
	return n, err
}

// TestBodiesCostWhatCame: a length that is only announced costs little, whatever it is; a body of unknown length that
// turns out too large never cost more than the limit.
func TestBodiesCostWhatCame(t *testing.T) {
	const limit = 32 << 20
	p := newPrompts(1 << 30)
	known := &watchedBody{fakeBody: fakeBody{make([]byte, limit), limit, 100000}, p: p}
	b, err := p.readAll(t.Context(), known, limit)
	if err != nil || len(b) != limit || known.over > 2*firstLook {
		t.Errorf("%d bytes, %v; %d lent beyond four times what came", len(b), err, known.over)
	}
	p.put(b)
	bomb := &watchedBody{fakeBody: fakeBody{make([]byte, 2*limit), -1, 1 << 20}, p: p}
	if _, err := p.readAll(t.Context(), bomb, limit); !errors.Is(err, errTooLarge) || bomb.peak > limit+1<<smallestClass || bomb.came > limit+1 {
		t.Errorf("too large: %v; %d lent at most, %d read", err, bomb.peak, bomb.came)
	}
	if n := p.inUse(); n != 0 {
		t.Errorf("%d bytes are still lent", n)
	}
}

// TestNoRoom: a request that holds a buffer does not wait for another; it is sent away when a quarter more than the limit
// is lent, unless it holds everything itself.
func TestNoRoom(t *testing.T) {
	const limit = 8 << 20
	p := newPrompts(limit)
	other, _ := p.get(t.Context(), limit/2)
	for _, length := range []int64{limit, -1} {
		data := make([]byte, limit)
		if _, err := p.readAll(t.Context(), &fakeBody{data, length, 1 << 20}, limit); !errors.Is(err, errNoRoom) {
			t.Errorf("length %d beside another: %v", length, err)
		}
		if n := p.inUse(); n != limit/2 {
			t.Errorf("length %d: %d bytes lent, want those of the other", length, n)
		}
		small := &fakeBody{data[:limit/8], length, 1 << 20}
		small.length = min(length, limit/8)
		b, err := p.readAll(t.Context(), small, limit)
		if err != nil || len(b) != limit/8 {
			t.Errorf("length %d, small: %d, %v", length, len(b), err)
		}
		p.put(b)
	}
	p.put(other)
	for _, length := range []int64{4 * limit, -1} {
		b, err := p.readAll(t.Context(), &fakeBody{make([]byte, 4*limit), length, 1 << 20}, 4*limit)
		if err != nil || len(b) != 4*limit {
			t.Errorf("length %d alone: %d, %v", length, len(b), err)
		}
		p.put(b)
	}
	if n := p.inUse(); n != 0 {
		t.Errorf("%d bytes are still lent", n)
	}
}

// TestPromptsWait: beyond the limit a request waits for memory, gets it when another gives it back, and stops waiting
// when its client leaves.
func TestPromptsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPrompts(8 << 10)
		one, _ := p.get(t.Context(), 4<<10)
		two, _ := p.get(t.Context(), 4<<10)
		gone, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var left, tooLong error
		served := false
		wg.Go(func() { _, left = p.get(gone, 4<<10) })
		wg.Go(func() {
			b, err := p.get(t.Context(), 4<<10)
			served = err == nil
			p.put(b)
		})
		synctest.Wait()
		if served {
			t.Fatal("lent beyond the limit")
		}
		wg.Go(func() { _, tooLong = p.get(t.Context(), 8<<10) })
		leave()
		synctest.Wait()
		if !errors.Is(left, context.Canceled) {
			t.Fatalf("a client that left: %v", left)
		}
		p.put(one)
		synctest.Wait()
		if !served {
			t.Error("memory that came back was not lent")
		}
		wg.Wait() // the clock runs on until the one that needs all of it gives up
		if !errors.Is(tooLong, errNoRoom) {
			t.Errorf("after promptWait: %v", tooLong)
		}
		p.put(two)
		if p.lent != 0 {
			t.Errorf("%d bytes lent", p.lent)
		}
	})
}
