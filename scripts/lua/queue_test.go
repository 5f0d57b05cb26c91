package lua_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// line is a pool of one slot whose queue is watched.
type line struct {
	*pool
	running string // the rid that has the slot
	next    int
}

// newLine takes the slot.
func newLine(p *pool) *line {
	l := &line{pool: p}
	l.running = l.join("first", 0)
	return l
}

// join places one request, which waits unless the slot is free.
func (l *line) join(tenant string, class int) (rid string) {
	l.t.Helper()
	l.next++
	rid = fmt.Sprintf("%06d", l.next)
	a := on(ask(rid, 1), "b1")
	a.Tenant, a.Class, a.Limit = tenant, class, 1_000_000
	l.place(a)
	return rid
}

// grant ends the running request and says who got its slot.
func (l *line) grant() (rid string) {
	l.t.Helper()
	r := l.release("a", l.running, 1)
	held := l.hash(":held:a")
	if r.Granted != 1 || len(held) != 1 {
		l.t.Fatalf("%+v, held %v", r, held)
	}
	for rid = range held {
		l.running = rid
	}
	return rid
}

func TestQueueTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		l, of := newLine(p), map[string]string{}
		for _, tenant := range strings.Split("xxxxxxyyz", "") {
			of[l.join(tenant, 0)] = tenant
		}
		order := ""
		for range 9 {
			order += of[l.grant()]
		}
		if want := "xyzxyxxxx"; order != want {
			t.Fatalf("%s, want %s", order, want)
		}

		// Who comes later does not make up for the turns he was not there.
		order = ""
		for _, tenant := range strings.Split("xxxxxx", "") {
			of[l.join(tenant, 4)] = tenant
		}
		for range 3 {
			order += of[l.grant()]
		}
		of[l.join("y", 4)], of[l.join("y", 4)] = "y", "y"
		for range 5 {
			order += of[l.grant()]
		}
		if want := "xxxyxyxx"; order != want {
			t.Fatalf("%s, want %s", order, want)
		}
	})
}

func TestQueueLowerClassGoesFirst(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		l := newLine(p)
		late := []string{l.join("x", 1), l.join("y", 9)}
		first := []string{l.join("x", 0), l.join("x", 0), l.join("z", 0)}
		want := append([]string{first[0], first[2], first[1]}, late...)
		for i, rid := range want {
			if got := l.grant(); got != rid {
				t.Fatalf("grant %d went to %s, want %s", i, got, rid)
			}
		}
	})
}

// Scores start anew when nobody waits: yesterday's turns count for nothing.
func TestQueueStartsAnewWhenEmpty(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		l := newLine(p)
		for range 5 {
			l.join("x", 3)
		}
		for range 5 {
			l.grant()
		}
		f := l.hash(":turns")
		if f["v"] != "0" || f["3|x"] != "" || f["seq"] != "5" || f["grants"] != "5" {
			t.Fatalf("turns %v", f)
		}
		// The same when the last one leaves by himself.
		rid := l.join("x", 3)
		if f := l.hash(":turns"); f["3|x"] != "0" {
			t.Fatalf("turns %v", f)
		}
		l.release("a", rid, 1)
		if f := l.hash(":turns"); f["3|x"] != "" || f["seq"] != "6" {
			t.Fatalf("turns %v", f)
		}
	})
}

// A waiter is granted only a backend that lists his model.
func TestQueueKnowsWhoServesAModel(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		p.place(on(ask("02", 1), "b2"))
		registered := []lua.Registered{{Backend: "b1", Address: "x", Slots: 1, Models: []string{"other", "m 2"}},
			{Backend: "b2", Address: "x", Slots: 1, Models: []string{"m"}}}
		p.beat(lua.BeatArgs{Replica: "a", Backends: registered})
		for i := range registered { // another replica has not asked the engines yet
			registered[i].Models = nil
		}
		p.beat(lua.BeatArgs{Replica: "b", Backends: registered})
		p.place(on(ask("03", 1), "b2"))
		a := on(ask("04", 1), "b1")
		a.Model = "m 2"
		p.place(a)
		p.release("a", "01", 1)
		p.waits("03")
		p.held("b1", 1)
		p.release("a", "02", 1)
		p.waits()
		p.held("b2", 1)
	})
}

// Nobody waits for more than 16 grants per entry that was ahead of him, whatever tenants and classes do.
func TestQueueNobodyStarves(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tenants, joins int
		simple         bool
	}{{1, 400, false}, {50, 1500, false}, {50, 300, true}, {1500, 4500, false}} {
		t.Run(fmt.Sprintf("%d tenants, simple=%v", c.tenants, c.simple), func(t *testing.T) {
			t.Parallel()
			cfg := pipeline.StoreConfig{URL: lab.SharedRedis(t).URL()}
			if c.simple {
				cfg = pipeline.StoreConfig{URL: "redis://" + miniredis.RunT(t).Addr(), Simple: true}
			}
			starve(t, newLine(newPool(t, cfg)), c.tenants, c.joins)
		})
	}
}

// starve lets so many requests join, in bursts of one greedy tenant of the first class and of single ones of any, and
// grants between them and afterwards.
func starve(t *testing.T, l *line, tenants, joins int) {
	type joined struct{ ahead, grants int }
	r := rand.New(rand.NewPCG(uint64(tenants), 7))
	waiting, grants, longest := map[string]joined{}, 0, 0.0
	grant := func() {
		rid := l.grant()
		grants++
		w, ok := waiting[rid]
		delete(waiting, rid)
		waited := grants - w.grants
		if !ok || waited > 16*(w.ahead+1) {
			t.Fatalf("%s waited for %d grants with %d ahead", rid, waited, w.ahead)
		}
		longest = max(longest, float64(waited)/float64(w.ahead+1))
	}
	join := func(tenant string, class int) {
		w := joined{len(waiting), grants}
		waiting[l.join(tenant, class)] = w
	}
	for n := 0; n < joins; {
		if r.IntN(8) == 0 {
			for range 20 {
				join("greedy", 0)
				n++
			}
		}
		for range r.IntN(1 + tenants/4 + 3) {
			join(fmt.Sprint("t", r.IntN(tenants)), r.IntN(10))
			n++
		}
		for range r.IntN(12) {
			if len(waiting) > 0 {
				grant()
			}
		}
	}
	for len(waiting) > 0 {
		grant()
	}
	if n, err := l.do("EXISTS", ":queue").AsInt64(); err != nil || n != 0 {
		t.Fatal("somebody still waits")
	}
	t.Logf("%d grants; the longest wait was %.1f grants per entry ahead", grants, longest)
}

// The bound is tight enough to matter: by turns alone, the lowest class would wait for all that come after it.
func TestQueueLowestClassIsServedUnderAFlood(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		l := newLine(p)
		last := l.join("poor", 9)
		for i := range 16 {
			l.join(fmt.Sprint("rich", i), 0)
			l.join(fmt.Sprint("rich", i), 0)
			if l.grant() == last {
				return
			}
		}
		t.Fatal("not served within 16 grants")
	})
}

// With a thousand tenants waiting, joining and granting cost what they cost with one.
func BenchmarkQueue(b *testing.B) {
	for _, tenants := range []int{1, 50, 1000, 100_000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			s, err := pipeline.NewStore(pipeline.StoreConfig{URL: lab.Redis(b).URL()})
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
			l := newLine((&pool{store: s, pipes: pipeline.New()}).fresh(b))
			for i := range tenants {
				l.join(fmt.Sprint("t", i), i%10)
			}
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				l.join(fmt.Sprint("t", i%tenants), i%10)
				l.grant()
			}
		})
	}
}

// A key of another type makes whoever would write it fail before it wrote anything.
func TestQueueChangesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		p.place(on(ask("02", 1), "b1"))
		p.do("DEL", ":arrivals")
		p.do("SET", ":arrivals", "x")
		if _, err := lua.Place(p.pipes.Batch(), p.store, p.root, on(ask("03", 1), "b1"), same).Wait(t.Context()); err == nil {
			t.Fatal("no error")
		}
		for _, rid := range []string{"01", "02"} {
			r := lua.ReleaseArgs{RID: rid, Attempt: 1, Replica: "a"}
			if _, err := lua.Release(p.pipes.Batch(), p.store, p.root, r).Wait(t.Context()); err == nil {
				t.Fatalf("no error for %s", rid)
			}
		}
		p.waits("02")
		p.held("b1", 1)
		if w := p.hash(":waiting:a"); len(w) != 1 {
			t.Fatalf("waiting %v", w)
		}
	})
}
