package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/headgate/headgate/gateway/protocol"
)

// encoding is how a request's body is packed.
type encoding int

const (
	plain encoding = iota
	packedGzip
	packedZstd
)

// encodingOf reads Content-Encoding. One encoding is taken, in any case; several, or another one, are refused.
func encodingOf(x head) (encoding, *refusal) {
	sent := x.Header("Content-Encoding")
	switch strings.ToLower(strings.TrimSpace(strings.Join(sent, ","))) {
	case "", "identity":
		return plain, nil
	case "gzip", "x-gzip":
		return packedGzip, nil
	case "zstd":
		return packedZstd, nil
	}
	return plain, refusalOf(protocol.UnsupportedEncoding(bounded(strings.Join(sent, ", "))), headerField{"Accept-Encoding", "gzip, zstd"})
}

// readBody reads a body and unpacks it; both before and after it has at most limit bytes. Errors are those of readAll
// and errUnpack.
func (g *Gateway) readBody(ctx context.Context, x body, e encoding, limit int64) ([]byte, error) {
	b, err := g.prompts.readAll(ctx, x, limit)
	if err != nil || e == plain {
		return b, err
	}
	defer g.prompts.put(b)
	return g.unpackers.unpack(ctx, g.prompts, packed{b, e}, limit)
}

var errUnpack = errors.New("body is not packed as its Content-Encoding says")

// packed is a body as it came.
type packed struct {
	bytes []byte
	how   encoding
}

// zstdWindow is the largest window of a zstd body: what RFC 9659 allows in HTTP.
const zstdWindow = 8 << 20

// unpackers bounds what unpacking costs: as many bodies at a time as there are processors, each with one window and
// one output. No unpacker waits for a client, because a body has come whole before it is unpacked.
type unpackers struct {
	turns      chan struct{}
	gzip, zstd sync.Pool // *gzip.Reader, *zstd.Decoder
}

func newUnpackers() *unpackers {
	u := &unpackers{turns: make(chan struct{}, runtime.GOMAXPROCS(0))}
	u.gzip.New = func() any { return new(gzip.Reader) }
	u.zstd.New = func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			panic(err) // the options above are constants
		}
		return d
	}
	return u
}

// unpack returns the plain body in a lent buffer.
func (u *unpackers) unpack(ctx context.Context, p *prompts, b packed, limit int64) ([]byte, error) {
	select {
	case u.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-u.turns }()
	first, err := p.more(1, 0)
	if err != nil {
		return nil, err
	}
	in := bytes.NewReader(b.bytes)
	if b.how == packedZstd {
		d := u.zstd.Get().(*zstd.Decoder)
		defer u.zstd.Put(d)
		defer func() { _ = d.Reset(nil) }() // it must not keep what it read from
		if err := d.Reset(in); err != nil {
			p.put(first)
			return nil, errUnpack
		}
		return p.readPieces(first, unpacked{d}, limit)
	}
	d := u.gzip.Get().(*gzip.Reader)
	defer u.gzip.Put(d)
	if err := d.Reset(in); err != nil {
		p.put(first)
		return nil, errUnpack
	}
	return p.readPieces(first, unpacked{d}, limit)
}

// unpacked is the plain side of a packed body.
type unpacked struct{ from io.Reader }

func (unpacked) BodyLength() int64 { return -1 }

func (u unpacked) ReadBody(p []byte) (int, error) {
	n, err := u.from.Read(p)
	if err != nil && err != io.EOF {
		err = errUnpack
	}
	return n, err
}
