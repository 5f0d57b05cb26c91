package gateway

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func gzipped(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// zstdOf packs like a client that does not know the length beforehand: the frame names the window.
func zstdOf(t testing.TB, plain []byte, window int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, struct{ io.Reader }{bytes.NewReader(plain)}); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestBODY3_Unpack: packed bodies of any length become what was packed, within the limit; what is broken in any way is
// refused; nothing stays lent.
func TestBODY3_Unpack(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	g := &Gateway{prompts: newPrompts(64 << 20), unpackers: newUnpackers()}
	text := func(n int) []byte { return bytes.Repeat([]byte("abcdefgh, "), n/10+1)[:n] }
	pack := map[encoding]func([]byte) []byte{
		plain:      func(b []byte) []byte { return b },
		packedGzip: func(b []byte) []byte { return gzipped(t, b) },
		packedZstd: func(b []byte) []byte { return zstdOf(t, b, zstdWindow) },
	}
	read := func(sent []byte, e encoding) (string, error) {
		t.Helper()
		var first string
		var firstErr error
		for i, length := range []int64{int64(len(sent)), -1} {
			got, err := g.readBody(t.Context(), &fakeBody{sent, length, 3000}, e, limit)
			if i == 0 {
				first, firstErr = string(got), err
			} else if string(got) != first || !errors.Is(err, firstErr) {
				t.Errorf("with a length %d bytes, %v; without %d, %v", len(first), firstErr, len(got), err)
			}
			if err == nil {
				g.prompts.put(got)
			}
		}
		return first, firstErr
	}
	for e, packed := range pack {
		for _, n := range []int{1, 4095, 4096, 4097, 70000, limit - 1, limit} {
			if got, err := read(packed(text(n)), e); err != nil || got != string(text(n)) {
				t.Errorf("%v, %d bytes: %d came, %v", e, n, len(got), err)
			}
		}
		if _, err := read(packed(text(limit+1)), e); !errors.Is(err, errTooLarge) {
			t.Errorf("%v, one byte too many: %v", e, err)
		}
		if e == plain {
			continue
		}
		good := packed(text(5000))
		if got, err := read(append(bytes.Clone(good), good...), e); err != nil || got != string(text(5000))+string(text(5000)) {
			t.Errorf("%v, twice: %d bytes, %v", e, len(got), err)
		}
		damaged := bytes.Clone(good)
		damaged[len(damaged)-6] ^= 0xff
		for what, bad := range map[string][]byte{"cut": good[:len(good)-5], "cut in its head": good[:3], "nothing": {}, "damaged": damaged, "not packed": text(100),
			"trailing bytes": append(bytes.Clone(good), "xyz"...), "packed otherwise": pack[packedGzip+packedZstd-e](text(100))} {
			if got, err := read(bad, e); !errors.Is(err, errUnpack) && (e != packedZstd || what != "nothing" || got != "") {
				t.Errorf("%v, %s: %d bytes, %v", e, what, len(got), err)
			}
		}
	}
	if _, err := read(zstdOf(t, text(limit), 2*zstdWindow), packedZstd); !errors.Is(err, errUnpack) {
		t.Errorf("a window of 16 MiB: %v", err)
	}
	if n := g.prompts.inUse(); n != 0 {
		t.Errorf("%d bytes are still lent", n)
	}
}

// TestEncodingOf: one encoding in any case; several, or an unknown one, are refused with those that are taken.
func TestEncodingOf(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]encoding{"": plain, " ": plain, "identity": plain, "Identity": plain, "gzip": packedGzip, " GZip ": packedGzip, "x-gzip": packedGzip, "ZSTD": packedZstd} {
		if got, no := encodingOf(fakeHead{"Content-Encoding": {sent}}); no != nil || got != want {
			t.Errorf("%q: %v %v", sent, got, no)
		}
	}
	if got, no := encodingOf(fakeHead{}); no != nil || got != plain {
		t.Errorf("none: %v %v", got, no)
	}
	for _, sent := range [][]string{{"br"}, {"deflate"}, {"br2"}, {"gzip, gzip"}, {"gzip", "zstd"}, {"identity, gzip"}, {"gzip;q=1"}, {strings.Repeat("x", 5000)}} {
		_, no := encodingOf(fakeHead{"Content-Encoding": sent})
		if no == nil || no.Status != 415 || no.Code != "unsupported_encoding" || len(no.fields) != 1 || no.fields[0] != (headerField{"Accept-Encoding", "gzip, zstd"}) || len(no.Message) > 400 {
			t.Errorf("%.20q: %v", sent, no)
		}
	}
}

// FuzzUnpack: whatever comes, unpacking ends, stays within the limit and lends nothing for good.
func FuzzUnpack(f *testing.F) {
	f.Add(gzipped(f, []byte(`{"model":"m"}`)), true)
	f.Add(zstdOf(f, []byte(`{"model":"m"}`), zstdWindow), false)
	f.Add(gzipped(f, make([]byte, 100000)), true)
	g := &Gateway{prompts: newPrompts(64 << 20), unpackers: newUnpackers()}
	f.Fuzz(func(t *testing.T, sent []byte, isGzip bool) {
		e := packedZstd
		if isGzip {
			e = packedGzip
		}
		b, err := g.readBody(t.Context(), &fakeBody{sent, int64(len(sent)), 1 << 20}, e, 50000)
		if err == nil {
			if len(b) > 50000 {
				t.Errorf("%d bytes", len(b))
			}
			g.prompts.put(b)
		}
		if n := g.prompts.inUse(); n != 0 {
			t.Errorf("%d bytes lent", n)
		}
	})
}
