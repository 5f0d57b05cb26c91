package pipeline_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

// TestFlushesShareWrites: requests that are ready at the same time reach Redis in a few reads, also on one processor, where
// each would otherwise be written before the next one runs.
func TestFlushesShareWrites(t *testing.T) { // not parallel: it sets the number of processors
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server := lab.Redis(t)
	s := newStore(t, server.URL(), 5*time.Second)
	const requests = 64
	flushes := func(rounds int) {
		var wg sync.WaitGroup
		for range requests {
			wg.Go(func() {
				for range rounds {
					b := pipeline.New().Batch()
					h := pipeline.Declare(b, pipeline.Command{Store: s, Name: "INCR", Key: "n"}, number)
					if _, err := h.Wait(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	flushes(1) // the client sends by itself until two want to send
	fewest := 20 * requests
	for range 3 { // another program may have had the processor
		before := readsOf(t, server)
		flushes(20)
		fewest = min(fewest, readsOf(t, server)-before)
	}
	if fewest > 20*requests/16 { // 30 to 60 of 1,280; 150 to 180 where the writer does not wait
		t.Errorf("%d reads for %d requests", fewest, 20*requests)
	}
	if got := server.CLI("GET", "n"); got != fmt.Sprint(61*requests) {
		t.Errorf("counted %s", got)
	}
}

// readsOf is how often Redis has read from its connections.
func readsOf(t *testing.T, server *lab.RedisServer) (n int) {
	t.Helper()
	_, rest, _ := strings.Cut(server.CLI("INFO", "stats"), "total_reads_processed:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
