package coordinator

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/rs/zerolog"
)

// A stack that was grown stays as long as its connection: an admission must fit into 8 KiB, also with what the race detector adds,
// which is about as much as the request's own functions have there. The test is not parallel, so no other test's goroutines are
// counted.
func TestAnAdmissionNeedsLittleStack(t *testing.T) {
	store := connected(t, lab.Redis(t).URL())
	pipes, tenant := pipeline.New(), "acme"
	if _, err := store.Do(t.Context(), "HSET", KeyRecord(tenant, "k1"), "id", "key_1", "rpm", "100000000"); err != nil {
		t.Fatal(err)
	}
	ledger := NewLedger(LedgerConfig{Replica: "r1", Store: store, Pipeline: pipes, Serve: true, Log: zerolog.Nop()})
	var before, after runtime.MemStats
	var admitted, ended sync.WaitGroup
	end := make(chan struct{})
	const n = 500
	runtime.ReadMemStats(&before)
	for i := range n {
		admitted.Add(1)
		ended.Go(func() {
			rid := fmt.Sprintf("%032x", i+1)
			a, err := ledger.Admit(pipes.Batch(), Request{RID: rid, Tenant: tenant, KeyHash: "k1", Model: "qwen-7b", Known: true,
				Priced: true, PromptBytes: 260, OutputUsual: 64, HoldNUSD: 400}).Wait(context.Background())
			if err != nil || a.Verdict != Admitted {
				t.Errorf("%v, verdict %d", err, a.Verdict)
			}
			admitted.Done()
			<-end
		})
	}
	admitted.Wait()
	runtime.ReadMemStats(&after)
	close(end)
	ended.Wait()
	if each := (after.StackInuse - before.StackInuse) / n; each > 10<<10 {
		t.Fatalf("%d bytes of stack each", each)
	}
}
