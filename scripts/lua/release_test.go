package lua_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

func TestReleaseGivesBackOnce(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(ask("01", 1))
		p.place(ask("02", 1))
		if r := p.release("a", "01", 1); !r.Released || r.Dequeued || r.Granted != 0 {
			t.Fatalf("%+v", r)
		}
		if r := p.release("a", "01", 1); r.Released || r.Dequeued || r.Granted != 0 {
			t.Fatalf("repeated: %+v", r)
		}
		p.held("b1", 1)
		p.release("a", "02", 1)
		p.held("b1", 0) // plain to read: the field stays, and is 0
	})
}

func TestReleaseLeavesALaterAttemptAlone(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(ask("01", 2))
		p.place(on(ask("02", 1), "b3"))
		p.place(on(ask("03", 2), "b3"))
		for _, rid := range []string{"01", "03"} {
			if r := p.release("a", rid, 1); r.Released || r.Dequeued {
				t.Fatalf("%s: %+v", rid, r)
			}
		}
		p.held("b1", 1)
		p.waits("03")
		if r := p.release("a", "01", 3); !r.Released { // attempts up to 3
			t.Fatalf("%+v", r)
		}
	})
}

func TestReleaseHandsOverToTheFirst(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		grants := listen(t, p, "b", "c")
		p.place(on(ask("01", 1), "b1"))
		p.place(on(by("b", ask("02", 3)), "b1"))
		p.place(on(by("c", ask("03", 1)), "b1"))
		if r := p.release("a", "01", 1); !r.Released || r.Granted != 1 {
			t.Fatalf("%+v", r)
		}
		p.waits("03")
		p.held("b1", 1)
		if got, want := <-grants, p.name+" 02 3 b1 0"; got != want {
			t.Fatalf("announced %q, want %q", got, want)
		}
		if lease := p.hash(":held:b")["02"]; !strings.HasPrefix(lease, "3 b1 7 ") || !strings.HasSuffix(lease, " acme") {
			t.Fatalf("lease %q", lease)
		}
		if w := p.hash(":waiting:b"); len(w) != 0 {
			t.Fatalf("waiting %v", w)
		}
		if n := p.field(":turns", "grants"); n != "1" {
			t.Fatalf("grants %q", n)
		}
	})
}

// listen collects the announcements to some replicas, once it hears them.
func listen(t *testing.T, p *pool, replicas ...string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	messages, heard := make(chan string, 64), make(chan string, 1024)
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for _, r := range replicas {
		wg.Go(func() {
			_ = p.store.Subscribe(ctx, "hg:grant:"+r, func(m string) {
				if m == "hello "+p.name {
					heard <- r
				} else if strings.HasPrefix(m, p.name+" ") {
					messages <- m
				}
			})
		})
	}
	missing := map[string]bool{}
	for _, r := range replicas {
		missing[r] = true
	}
	lab.Eventually(t, 10*time.Second, func() bool {
		for r := range missing {
			if _, err := p.store.Do(ctx, "PUBLISH", "", "hg:grant:"+r, "hello "+p.name); err != nil {
				t.Fatal(err)
			}
		}
		for {
			select {
			case r := <-heard:
				delete(missing, r)
				continue
			default:
			}
			return len(missing) == 0
		}
	}, "not subscribed: %v", missing)
	return messages
}

func TestReleaseEndsAWait(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		p.place(on(ask("02", 1), "b1"))
		if r := p.release("a", "02", 1); r.Released || !r.Dequeued {
			t.Fatalf("%+v", r)
		}
		p.waits()
		p.release("a", "01", 1)
		p.held("b1", 0)
	})
}

func TestReleaseHandsOverOnlyWhereANewRequestMayGo(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string][2]string{
		"draining":    {"draining", "1"},
		"cool-down":   {"cooldown_until", "9999999999999"},
		"fewer slots": {"slots", "0"},
		"unreadable":  {"slots", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBothPools(t, func(t *testing.T, p *pool) {
				p.place(on(ask("01", 1), "b1"))
				p.place(on(ask("02", 1), "b1"))
				p.do("HSET", ":backend:b1", spoil[0], spoil[1])
				if r := p.release("a", "01", 1); !r.Released || r.Granted != 0 {
					t.Fatalf("%+v", r)
				}
				p.waits("02")
				p.held("b1", 0)
			})
		})
	}
}

// A waiter of a replica whose hashes have another type is passed over, not an obstacle.
func TestReleasePassesOverAReplicaThatCannotBeRead(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(_ *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		p.place(on(by("x", ask("02", 1)), "b1"))
		p.place(on(by("b", ask("03", 1)), "b1"))
		p.do("SET", ":held:x", "nonsense")
		p.release("a", "01", 1)
		p.waits("02")
		p.held("b1", 1)
	})
}

// Redis is full: place is refused, release is not.
func TestReleaseWorksWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	p := newPool(t, pipeline.StoreConfig{URL: fullRedis(t)})
	p.place(on(ask("01", 1), "b1"))
	p.place(on(ask("02", 1), "b1"))
	if _, err := p.store.Do(t.Context(), "CONFIG", "", "SET", "maxmemory", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := lua.Place(p.pipes.Batch(), p.store, p.root, ask("03", 1), same).Wait(t.Context()); err == nil {
		t.Fatal("place was not refused")
	}
	if r := p.release("a", "01", 1); r.Granted != 1 {
		t.Fatalf("%+v", r)
	}
	p.beat(lua.BeatArgs{Replica: "a"})
	p.held("b1", 1)
}

// An entry of the queue whose request has a slot (written by hand, or by a lost primary) is dropped.
func TestReleaseDropsAnEntryThatHasASlot(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(_ *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		p.place(on(ask("02", 1), "b2"))
		p.place(on(by("b", ask("03", 1)), "b1"))
		p.do("ZADD", ":queue", "-1", "000000000000|02|2|a|acme|m|7|")
		p.release("a", "01", 1)
		p.waits()
		p.held("b1", 1)
		p.held("b2", 1)
	})
}
