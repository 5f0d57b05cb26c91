package gateway

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// benchEngine answers every request of bodyLen bytes on every connection, without parsing more than the head's end.
func benchEngine(b *testing.B, bodyLen int, answer string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReaderSize(c, 64<<10)
				raw := []byte(answer)
				for {
					for {
						line, err := in.ReadSlice('\n')
						if err != nil {
							return
						}
						if len(line) == 2 {
							break
						}
					}
					if _, err := in.Discard(bodyLen); err != nil {
						return
					}
					c.Write(raw)
				}
			}()
		}
	}()
	return l.Addr().String()
}

var benchAnswer = "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 07:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 413\r\n" +
	"content-type: application/json\r\n\r\n" + strings.Repeat("x", 413)

// BenchmarkUpstream is one call from Do to Close on a kept connection, client and bench engine together.
func BenchmarkUpstream(b *testing.B) {
	for name, size := range map[string]int{"small": 294, "100KB": 100 << 10} {
		b.Run(name, func(b *testing.B) {
			addr := benchEngine(b, size, benchAnswer)
			u := newTestUpstream(b, upstreamConfig{})
			body := bytes.Repeat([]byte("x"), size)
			call := upstreamCall{
				Addr: addr, Method: "POST", Path: "/v1/chat/completions", Body: [][]byte{body[:100], body[100:]}, BodyLen: int64(size),
				Header: []headerField{{"Content-Type", "application/json"}, {"X-Request-Id", "0123456789abcdef-01234567-1"}},
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r, fault := u.Do(ctx, call)
				if fault != nil {
					b.Fatal(fault)
				}
				data, err := r.Next()
				if len(data) != 413 || err != nil || !r.Ended() || r.Reused != (i > 0) {
					b.Fatalf("%d bytes, %v, reused %v", len(data), err, r.Reused)
				}
				r.Close(true)
			}
		})
	}
}

// BenchmarkUpstreamTransport is the same call by net/http's Transport, for the ratio.
func BenchmarkUpstreamTransport(b *testing.B) {
	for name, size := range map[string]int{"small": 294, "100KB": 100 << 10} {
		b.Run(name, func(b *testing.B) {
			addr := benchEngine(b, size, benchAnswer)
			transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
			b.Cleanup(transport.CloseIdleConnections)
			body := bytes.Repeat([]byte("x"), size)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				q, _ := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/v1/chat/completions", bytes.NewReader(body))
				q.Header["Content-Type"] = []string{"application/json"}
				r, err := transport.RoundTrip(q)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, r.Body); n != 413 || err != nil {
					b.Fatal(n, err)
				}
				r.Body.Close()
			}
		})
	}
}

// BenchmarkEngineChunks is the framing alone: 20 token chunks that arrived in one read.
func BenchmarkEngineChunks(b *testing.B) {
	raw := []byte(strings.Repeat("b4\r\n"+strings.Repeat("x", 0xb4)+"\r\n", 20))
	buf := make([]byte, len(raw))
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		copy(buf, raw)
		d := engineBody{framing: engineByChunks}
		if data, used, err := d.decode(buf); len(data) != 20*0xb4 || used != len(raw) || err != nil {
			b.Fatal(len(data), used, err)
		}
	}
}

// BenchmarkEngineLook is the price of looking at a kept connection before it is used.
func BenchmarkEngineLook(b *testing.B) {
	addr := benchEngine(b, 0, benchAnswer)
	conn, err := dialEngine(context.Background(), engineKey{addr: addr}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.close()
	b.ReportAllocs()
	for b.Loop() {
		if !conn.usable() {
			b.Fatal("not usable")
		}
	}
}

// The client's own allocations per call are few, and none grows with the body.
func TestUpstreamAllocations(t *testing.T) {
	e := newScriptedEngine(t, func(c *engineSide) {
		buf := make([]byte, 64<<10)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if bytes.HasSuffix(buf[:n], []byte("END")) {
				say(c, okAnswer)
			}
		}
	})
	u := newTestUpstream(t, upstreamConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, size := range []int{100, 100 << 10} {
		call := callTo(e.addr, strings.Repeat("x", size)+"END")
		got := testing.AllocsPerRun(50, func() {
			r, fault := u.Do(ctx, call)
			if fault != nil {
				t.Fatal(fault)
			}
			if data, err := r.Next(); string(data) != "ok" || err != nil {
				t.Fatal(err)
			}
			r.Close(true)
		})
		if most := 16.0; got > most { // say() on the engine's side included
			t.Errorf("%d bytes: %v allocations per call, at most %v", size, got, most)
		}
	}
}
