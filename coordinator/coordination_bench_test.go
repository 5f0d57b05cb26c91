package coordinator

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/rs/zerolog"
)

// BenchmarkCoordination is all that a request wants from Redis, as the gateway asks for it: admission and place in one
// flush, then claim, record, settlement and release. 64 requests at a time, 3 scopes, 8 backends. Redis is a process of its
// own: the µs are this one's.
func BenchmarkCoordination(b *testing.B) {
	store := connected(b, lab.Redis(b).URL())
	pipes, tenant := pipeline.New(), "acme"
	for key, policy := range map[string][]string{
		TenantRoot(tenant):      {"rpm", "100000000", "tpm", "1000000000", "budget_usd", "1000000", "period", "month"},
		KeyRecord(tenant, "k1"): {"id", "key_1", "name", "ci", "created_at", "0", "team", "a", "rpm", "100000000"},
		TeamPolicy(tenant, "a"): {"budget_usd", "1000000", "period", "month"},
	} {
		if _, err := store.Do(b.Context(), "HSET", key, policy...); err != nil {
			b.Fatal(err)
		}
	}
	ledger := NewLedger(LedgerConfig{Replica: "r1", Store: store, Pipeline: pipes, Log: zerolog.Nop()})
	placement := NewPlacement(PlacementConfig{Replica: "r1", Store: store, Pipeline: pipes, QueueLimit: 100, Log: zerolog.Nop()})
	candidates := make([]Candidate, 8)
	for i := range candidates {
		candidates[i] = Candidate{ID: fmt.Sprintf("b0-%d", i+1), Slots: 100_000}
	}

	var rids atomic.Int64
	b.SetParallelism(64)
	b.ReportAllocs()
	user, system := processorTime(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			rid := fmt.Sprintf("%032x", rids.Add(1))
			batch := pipes.Batch()
			admitted := ledger.Admit(batch, Request{RID: rid, RequestID: rid, Tenant: tenant, KeyHash: "k1", Model: "qwen-7b",
				Route: "/v1/chat/completions", Known: true, Priced: true, PromptBytes: 260, OutputCap: 64, OutputUsual: 64, HoldNUSD: 400})
			placed := placement.Place(batch, Ask{RID: rid, Attempt: 1, Pool: "qwen", Tenant: tenant, Model: "qwen-7b", MU: 1300,
				OutputMU: 1200, Candidates: candidates, Wait: true, Class: 5, PromptTokens: 65, WarmMU: 1})
			a, err := admitted.Wait(context.Background())
			place, placeErr := placed.Wait(context.Background())
			if err != nil || placeErr != nil || a.Verdict != Admitted || place.State != Placed {
				b.Errorf("%v %v, verdict %d, place %d", err, placeErr, a.Verdict, place.State)
				return
			}
			record := Record{Time: time.Now(), RequestID: rid, RID: rid, Replica: "r1", Tenant: tenant, Team: a.Team, KeyID: a.KeyID,
				Model: "qwen-7b", Pool: "qwen", Backend: place.Backend, Outcome: OutcomeOK, Charged: ChargedBy(a.Claim)}
			post := pipes.Post()
			ledger.Settle(post, Settlement{Tenant: tenant, RID: rid, Claim: a.Claim, AdmittedAt: a.AdmittedAt, KeepRequest: true,
				Prompt: 60, Completion: 20, CostNUSD: 300, Record: record.AppendJSON(make([]byte, 0, 1280)), Real: true})
			placement.Release(post, Release{Pool: "qwen", RID: rid, Attempt: 1, Answered: true, Completion: 20})
			post.Send()
		}
	})
	if err := pipes.Drain(b.Context(), store); err != nil {
		b.Fatal(err)
	}
	userAfter, systemAfter := processorTime(b)
	b.ReportMetric(float64((userAfter-user).Microseconds())/float64(b.N), "µs-user/op")
	b.ReportMetric(float64((systemAfter-system).Microseconds())/float64(b.N), "µs-system/op")
	if open := ledger.Open(); open != 0 || placement.Leases() != 0 {
		b.Fatalf("%d requests not settled, %d leases", open, placement.Leases())
	}
}

func processorTime(b *testing.B) (user, system time.Duration) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano()), time.Duration(usage.Stime.Nano())
}
