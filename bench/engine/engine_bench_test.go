package engine

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// BenchmarkStreamedToken is what one event costs engine and client together when many streams are open: an operation is
// one token of one stream.
func BenchmarkStreamedToken(b *testing.B) {
	for _, streams := range []int{1, 64, 512} {
		b.Run(fmt.Sprint(streams, "streams"), func(b *testing.B) {
			s, err := Start(Options{Slots: streams, Speed: 1e6, MaxModelLen: 400_000})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			tokens := max(1, b.N/streams)
			if tokens*streams/blockTokens > 27000/2 {
				tokens = 27000 / 2 * blockTokens / streams // what fits into the cache at once
			}
			b.ResetTimer()
			sent := 0
			for sent < b.N {
				var clients sync.WaitGroup
				for i := range streams {
					clients.Go(func() {
						body := fmt.Sprintf(`{"prompt":"stream %d","max_tokens":%d,"ignore_eos":true,"stream":true}`, i, tokens)
						resp, err := http.Post(s.URL+"/v1/completions", "application/json", strings.NewReader(body))
						if err != nil {
							b.Error(err)
							return
						}
						defer resp.Body.Close()
						io.Copy(io.Discard, resp.Body)
					})
				}
				clients.Wait()
				sent += tokens * streams
			}
			b.StopTimer()
			if n := s.Seen(); n[0].Output != tokens {
				b.Fatalf("%d tokens, wanted %d", n[0].Output, tokens)
			}
		})
	}
}
