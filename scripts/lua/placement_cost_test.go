package lua

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

// BenchmarkPlacement prints the Redis CPU of one place and its release, in µs, from INFO commandstats: for 3, 16 and 32
// candidates, without fingerprints and with 12 of a conversation that goes on; quick: the ring's first is as good as any;
// weighed: the prompt is so long that all are. With YARDSTICK set to a directory that holds naive-admit.lua and
// naive-settle.lua, it prints the ratio to them as well.
func BenchmarkPlacement(b *testing.B) {
	s := benchStore(b)
	theirs := 0.0
	if dir := os.Getenv("YARDSTICK"); dir != "" {
		b.Run("yardstick", func(b *testing.B) {
			theirs = yardstick(b, s, dir)
			b.ReportMetric(theirs, "redis-µs/request")
		})
	}
	for _, n := range []int{3, 16, 32} {
		for _, prints := range []int{0, 12} {
			for _, mu := range []int64{20, 400_000} {
				name := fmt.Sprintf("candidates=%d/prints=%d/%s", n, prints, map[bool]string{true: "quick", false: "weighed"}[mu < 10_000])
				b.Run(name, func(b *testing.B) {
					ours := measurePlacement(b, s, fmt.Sprintf("hg:{p:%s-%d}", name, b.N), n, prints, mu)
					b.ReportMetric(ours, "redis-µs/request")
					if theirs > 0 {
						b.ReportMetric(ours/theirs, "ratio")
					}
				})
			}
		}
	}
}

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
			b.ReportMetric(measure(b, s, func() {
				join()
				done++
				r, err := Release(&pipeline.Batch{}, s, root, ReleaseArgs{RID: fmt.Sprintf("%032x", done), Attempt: 1, Replica: "host-1"}).Wait(b.Context())
				if err != nil || r.Granted != 1 {
					b.Fatalf("%+v %v", r, err)
				}
			}), "redis-µs/request")
		})
	}
}

func measurePlacement(b *testing.B, s *pipeline.Store, root string, n, prints int, mu int64) float64 {
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
	request, used := 0, map[string]bool{}
	cost := measure(b, s, func() {
		request++
		a.RID = fmt.Sprintf("%032x", request)
		a.Prompt.Bucket = request / 8 % 16
		a.Prompt.Prints = a.Prompt.Prints[:0]
		for i := range prints { // of 8 requests of a conversation, each shares all but its last two
			turn := request / 8
			if i >= 10 {
				turn = 1_000_000_000 + request
			}
			a.Prompt.Prints = append(a.Prompt.Prints, Print{Name: fmt.Sprintf("%09x%02d", turn, i), Tokens: int64(3000 * (i + 1))})
		}
		r, err := Place(&pipeline.Batch{}, s, root, a, func(r PlaceReply) PlaceReply { return r }).Wait(b.Context())
		if err != nil || r.State != PlacePlaced || mu < 10_000 && r.ExpectedMS > 50 {
			b.Fatalf("%+v %v", r, err)
		}
		used[r.Backend] = true
		done, err := Release(&pipeline.Batch{}, s, root, ReleaseArgs{RID: a.RID, Attempt: 1, Replica: a.Replica, Ran: RanAnswered, TTFTMS: 50, Tokens: 200}).Wait(b.Context())
		if err != nil || !done.Released {
			b.Fatalf("%+v %v", done, err)
		}
	})
	if b.N > 100 && (len(used) == 1) != (mu < 10_000) {
		b.Fatalf("%d MU went to %v", mu/1000, used)
	}
	return cost
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

// yardstick is the Redis CPU of the plain scripts in dir: an admission of three scopes and its settlement.
func yardstick(b *testing.B, s *pipeline.Store, dir string) float64 {
	script := func(name string) *pipeline.Script {
		text, err := os.ReadFile(filepath.Join(dir, name+".lua"))
		if err != nil {
			b.Fatal(err)
		}
		return pipeline.NewScript(name, string(text))
	}
	admit, settle := script("naive-admit"), script("naive-settle")
	for _, k := range []string{"hg:{t:naive}:key:k1", "hg:{t:naive}:team:search", "hg:{t:naive}"} {
		if _, err := s.Do(b.Context(), "HSET", k, "id", "x", "team", "search", "rpm", "100000000", "tpm", "1000000000", "budget_nusd", "1000000000000000"); err != nil {
			b.Fatal(err)
		}
	}
	rid := 0
	return measure(b, s, func() {
		rid++
		id, batch := fmt.Sprintf("%032x", rid), &pipeline.Batch{}
		reply, err := pipeline.Declare(batch, pipeline.Command{Store: s, Script: admit, Key: "hg:{t:naive}", Args: []string{"k1", "356", "400000", id}}, wholesOrText).Wait(b.Context())
		if err != nil || reply[0] != "1" {
			b.Fatalf("%v %v", reply, err)
		}
		if _, err := pipeline.Declare(batch, pipeline.Command{Store: s, Script: settle, Key: "hg:{t:naive}",
			Args: []string{id, "key_1", "search", reply[3], "-226", "-400000", "3000", "90", "40"}}, wholesOrText).Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	})
}
