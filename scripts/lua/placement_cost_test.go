package lua

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

// BenchmarkRequest prints the Redis CPU of a whole request, in µs, as BenchmarkDecision does for its half: admit, place, settle
// and release, three scopes, 8 candidates, 12 fingerprints of a conversation that goes on, one at a time (flush=1) and with
// the ends of eight requests in one flush.
func BenchmarkRequest(b *testing.B) {
	for _, mu := range []int64{quick, weighed} {
		for _, flush := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/flush=%d", ways[mu], flush), func(b *testing.B) {
				s := benchStore(b)
				compare(b, s, flush, together(decider(b, s, 3), placer(b, s, 8, 12, mu)))
			})
		}
	}
}

// BenchmarkPlacement prints the Redis CPU of one place and its release, in µs, and the ratio to the yardstick: for 3, 8 and 32
// candidates, without fingerprints and with 12.
func BenchmarkPlacement(b *testing.B) {
	for _, n := range []int{3, 8, 32} {
		for _, prints := range []int{0, 12} {
			for _, mu := range []int64{quick, weighed} {
				b.Run(fmt.Sprintf("candidates=%d/prints=%d/%s", n, prints, ways[mu]), func(b *testing.B) {
					s := benchStore(b)
					compare(b, s, 1, together(placer(b, s, n, prints, mu)))
				})
			}
		}
	}
}

// Thousandths of a model unit of a request: for which the ring's first backend is as good as any, and for which all are
// weighed.
const quick, weighed = 20, 400_000

var ways = map[int64]string{quick: "quick", weighed: "weighed"}

// BenchmarkPlacementQueued prints the Redis CPU of a request that waits: its place joins the queue, and the release of the
// one before it hands the slot over, with a hundred others waiting behind.
func BenchmarkPlacementQueued(b *testing.B) {
	s := benchStore(b)
	for _, prints := range []int{0, 12} {
		b.Run(fmt.Sprintf("prints=%d", prints), func(b *testing.B) {
			root, request := fmt.Sprintf("hg:{p:queued-%d-%d}", prints, b.N), 0
			join := func() {
				request++
				a := PlaceArgs{RID: fmt.Sprintf("%032x", request), Attempt: 1, Replica: "host-1", Tenant: "acme", Model: "qwen-7b", MU: 400_000,
					Wait: true, Limit: 1000, Prompt: Prompt{Tokens: 36_000, Save: 9, Least: 512}, Candidates: []Slots{{Backend: "b1", Slots: 1}}}
				for i := range prints {
					a.Prompt.Prints = append(a.Prompt.Prints, Print{Name: fmt.Sprintf("%09x%02d", request, i), Tokens: int64(3000 * (i + 1))})
				}
				if _, err := Place(&pipeline.Batch{}, s, root, a, func(r PlaceReply) PlaceReply { return r }).Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			for range 100 {
				join()
			}
			done := 0
			once := func() {
				join()
				done++
				r, err := Release(&pipeline.Batch{}, s, root, ReleaseArgs{RID: fmt.Sprintf("%032x", done), Attempt: 1, Replica: "host-1"}).Wait(b.Context())
				if err != nil || r.Granted != 1 {
					b.Fatalf("%+v %v", r, err)
				}
			}
			var us []float64
			for range max(b.N/costBlock, 1) {
				us = append(us, perRequest(b, s, 1, once))
			}
			b.ReportMetric(median(us), "redis-µs/request")
		})
	}
}

// placer places and releases requests of so many MU among n backends.
func placer(b *testing.B, s *pipeline.Store, n, prints int, mu int64) part {
	root := fmt.Sprintf("hg:{p:%d-%d-%d}", n, prints, mu)
	a := PlaceArgs{Attempt: 1, Replica: "host-1", Tenant: "acme", Model: "qwen-7b", MU: mu, OutputMU: mu / 10, Wait: true, Limit: 1000,
		Prompt: Prompt{Tokens: 36_000, Save: 9, Least: 512}}
	beat := BeatArgs{Replica: "host-1"}
	for i := range n {
		id := fmt.Sprintf("qwen-7b-%d", i)
		a.Candidates = append(a.Candidates, Slots{Backend: id, Slots: 16, Tag: TagOf(id)})
		beat.Backends = append(beat.Backends, Registered{Backend: id, Address: "10.0.0.1:8000", Slots: 16, CapacityMU: 450_000})
	}
	if _, err := Beat(&pipeline.Batch{}, s, root, beat).Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	request := 0
	return func(before *pipeline.Batch) func(*pipeline.Batch) func() {
		request++
		a := a
		a.RID = fmt.Sprintf("%032x", request)
		a.Prompt.Bucket = request / 8 % 16
		for i := range prints { // of 8 requests of a conversation, each shares all but its last two
			turn := request / 8
			if i >= 10 {
				turn = 1_000_000_000 + request
			}
			a.Prompt.Prints = append(a.Prompt.Prints, Print{Name: fmt.Sprintf("%09x%02d", turn, i), Tokens: int64(3000 * (i + 1))})
		}
		placed := Place(before, s, root, a, func(r PlaceReply) PlaceReply { return r })
		return func(after *pipeline.Batch) func() {
			r, err := placed.Wait(b.Context())
			if err != nil || r.State != PlacePlaced || mu == quick && (r.ExpectedMS > 50 || r.Backend != a.Candidates[0].Backend) {
				b.Fatalf("%+v %v", r, err)
			}
			end := Release(after, s, root, ReleaseArgs{RID: a.RID, Attempt: 1, Replica: a.Replica, Ran: RanAnswered, TTFTMS: 50, Tokens: 200})
			return func() {
				if done, err := end.Wait(b.Context()); err != nil || !done.Released {
					b.Fatalf("%+v %v", done, err)
				}
			}
		}
	}
}

func benchStore(b *testing.B) *pipeline.Store {
	s, err := pipeline.NewStore(pipeline.StoreConfig{URL: lab.Redis(b).URL(), Timeout: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	if err := s.WaitConnected(ctx); err != nil {
		b.Fatal(err)
	}
	return s
}
