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

// TestPromptsWait: beyond the limit a request waits for memory, gets it when another gives it back, and stops waiting
// when its client leaves.
func TestPromptsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPrompts(8 << 10)
		one, _ := p.get(t.Context(), 4<<10)
		two, _ := p.get(t.Context(), 4<<10)
		gone, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var left error
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
		leave()
		synctest.Wait()
		if !errors.Is(left, context.Canceled) {
			t.Fatalf("a client that left: %v", left)
		}
		p.put(one)
		wg.Wait()
		p.put(two)
		if !served || p.lent != 0 {
			t.Errorf("served %v, %d bytes lent", served, p.lent)
		}
	})
}
