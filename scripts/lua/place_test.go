package lua_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

func TestPlaceTakesTheFirstFreeSlotInOrder(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.onPool(p.place(ask("01", 1)), "b1")
		p.onPool(p.place(ask("02", 1)), "b1")
		p.onPool(p.place(ask("03", 1)), "b2")
		p.held("b1", 2)
		p.held("b2", 1)
		f := strings.Fields(p.hash(":held:a")["01"])
		if len(f) != 8 || f[0] != "1" || f[1] != "b1" || f[2] != "7" || len(f[3]) != 13 || f[4] != "0" || f[5] != "7" || f[6] != "7" || f[7] != "acme" {
			t.Fatalf("lease %q, want attempt backend mu placed_at_ms output_mu prompt_mu work_mu tenant", f)
		}
		if got := p.field(":backend:b1", "slots"); got != "2" {
			t.Fatalf("slots %q were not written into a new record", got)
		}
		if n, err := p.do("ZSCORE", ":replicas", "a").AsFloat64(); err != nil || n < 1e12 {
			t.Fatalf("a replica with leases is not among the replicas: %v %v", n, err)
		}
	})
}

func TestPlaceIsIdempotentByAttempt(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.onPool(p.place(ask("01", 1)), "b1")
		p.onPool(p.place(ask("01", 1)), "b1")
		p.held("b1", 1)

		p.place(on(ask("02", 1), "b3"))
		first, second := p.place(on(ask("03", 1), "b3")), p.place(on(ask("03", 1), "b3"))
		first.NowMS, second.NowMS = 0, 0
		if first != second || first.State != lua.PlaceQueued || first.Seq == 0 {
			t.Fatalf("queued %+v, repeated %+v", first, second)
		}
		p.waits("03")
	})
}

func TestPlaceOfALaterAttemptGivesBackTheEarlier(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		a := ask("01", 2)
		a.Not = "b1"
		p.onPool(p.place(ask("01", 1)), "b1")
		p.place(on(ask("02", 1), "b1")) // b1 has slots: 2
		p.state(p.place(on(ask("03", 1), "b1")), lua.PlaceQueued)
		p.onPool(p.place(a), "b2") // 01 leaves b1: handed over to 03
		p.held("b1", 2)
		p.held("b2", 1)
		p.waits()

		// The place in the queue of an earlier attempt goes too.
		p.state(p.place(on(ask("04", 1), "b1")), lua.PlaceQueued)
		p.onPool(p.place(ask("04", 2)), "b2")
		p.waits()
		if left := p.hash(":waiting:a"); len(left) != 0 {
			t.Fatalf("waiting %v", left)
		}

		// An earlier attempt that comes late changes nothing.
		_, err := lua.Place(p.pipes.Batch(), p.store, p.root, ask("04", 1), same).Wait(t.Context())
		if !errors.Is(err, lua.ErrSuperseded) {
			t.Fatalf("late attempt: %v", err)
		}
		p.held("b2", 2)
	})
}

func TestPlaceQueueIsBoundedAndOptional(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		limited := func(rid string) lua.PlaceArgs {
			a := on(ask(rid, 1), "b1")
			a.Limit = 2
			return a
		}
		p.place(limited("01"))
		refused := limited("02")
		refused.Wait = false
		p.state(p.place(refused), lua.PlaceFull)
		for i, rid := range []string{"03", "04"} {
			if r := p.place(limited(rid)); r.State != lua.PlaceQueued || r.Ahead != int64(i) {
				t.Fatalf("%s: %+v, want %d ahead", rid, r, i)
			}
		}
		p.state(p.place(limited("05")), lua.PlaceFull)
		p.waits("03", "04")
		if _, ok := p.hash(":held:a")["05"]; ok {
			t.Fatal("a refused request holds a lease")
		}
	})
}

func TestPlaceNeverOvertakesTheWaiting(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		p.place(on(by("b", ask("02", 1)), "b1"))
		p.do("HSET", ":backend:b1", "slots", "2") // by hand: nobody handed the new slot over
		p.state(p.place(on(ask("03", 1), "b1")), lua.PlaceQueued)
		p.waits("03")
		if lease := p.hash(":held:b")["02"]; !strings.HasPrefix(lease, "1 b1 ") {
			t.Fatalf("lease of who waited: %q", lease)
		}
		p.held("b1", 2)
	})
}

func TestPlacePassesOverWhoCannotUseTheSlot(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		p.place(on(ask("02", 1), "b2"))
		a := on(ask("03", 1), "b1", "b2")
		a.Not = "b1"
		p.state(p.place(a), lua.PlaceQueued)
		p.release("a", "01", 1)
		p.waits("03") // b1 is the one it must not get
		p.onPool(p.place(on(ask("04", 1), "b1")), "b1")
		p.release("a", "02", 1)
		p.waits()
		p.held("b2", 1)
	})
}

func TestPlaceAvoidsABackendOnlyIfAnotherWillDo(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(_ *testing.T, p *pool) {
		a := on(ask("01", 1), "b1")
		a.Not = "b1"
		p.onPool(p.place(a), "b1")
		a = on(ask("02", 1), "b1", "b2")
		a.Not = "b1"
		p.do("HSET", ":backend:b2", "draining", "1")
		p.state(p.place(a), lua.PlaceQueued)
		p.release("a", "01", 1) // it waits for b1 like anybody
		p.held("b1", 1)
		p.waits()
	})
}

func TestPlaceSkipsWhatCannotRunIt(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(p *pool){
		"draining":      func(p *pool) { p.do("HSET", ":backend:b1", "draining", "1") },
		"no slots":      func(p *pool) { p.do("HSET", ":backend:b1", "slots", "0") },
		"slots":         func(p *pool) { p.do("HSET", ":backend:b1", "slots", "many") },
		"held":          func(p *pool) { p.do("HSET", ":backend:b1", "held", "-1") },
		"cool-down":     func(p *pool) { p.do("HSET", ":backend:b1", "cooldown_until", "soon") },
		"not a hash":    func(p *pool) { p.do("SET", ":backend:b1", "x") },
		"not a hash, 2": func(p *pool) { p.do("ZADD", ":backend:b1", "1", "x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBothPools(t, func(_ *testing.T, p *pool) {
				spoil(p)
				p.onPool(p.place(ask("01", 1)), "b2")
				p.state(p.place(on(ask("02", 1), "b1")), lua.PlaceNoBackend)
				p.waits()
			})
		})
	}
}

func TestPlaceWaitsForABackendThatCoolsDown(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(_ *testing.T, p *pool) {
		p.do("HSET", ":backend:b1", "cooldown_until", "9999999999999")
		p.state(p.place(on(ask("01", 1), "b1")), lua.PlaceQueued)
		p.do("HSET", ":backend:b1", "cooldown_until", "1000000000000")
		p.beat(lua.BeatArgs{Replica: "b", Backends: []lua.Registered{{Backend: "b1", Address: "x:1", Slots: 1}}})
		p.held("b1", 1)
	})
}

// A key of another type makes place fail before it wrote anything.
func TestPlaceChangesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	for _, key := range []string{":held:a", ":waiting:a", ":queue", ":arrivals", ":replicas", ":turns"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			onBothPools(t, func(t *testing.T, p *pool) {
				p.place(on(by("b", ask("01", 1)), "b1"))
				p.do("DEL", key)
				p.do("SET", key, "x")
				a := on(ask("02", 1), "b1")
				if _, err := lua.Place(p.pipes.Batch(), p.store, p.root, a, same).Wait(t.Context()); err == nil {
					t.Fatal("no error")
				}
				for _, other := range []string{":held:a", ":waiting:a", ":queue", ":arrivals"} {
					if n, err := p.do("EXISTS", other).AsInt64(); err != nil || (n == 1) != (other == key) {
						t.Fatalf("%s exists: %d, %v", other, n, err)
					}
				}
				p.do("DEL", key)
				p.held("b1", 1)
			})
		})
	}
}

// The queue's order outlives the loss of its counters, and a member that cannot be read does not stand in the way.
func TestPlaceQueueSurvivesHandEdits(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(_ *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		p.place(on(ask("02", 1), "b1"))
		p.do("DEL", ":turns")
		p.place(on(ask("03", 1), "b1"))
		p.do("ZADD", ":queue", "-1", "nonsense")
		p.release("a", "01", 1)
		p.waits("03")
		p.held("b1", 1)
	})
}

func TestPlaceModelCannotBreakAQueueEntry(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(on(ask("01", 1), "b1"))
		a := on(ask("02", 1), "b1")
		a.Model = "a|b 100%|"
		p.state(p.place(a), lua.PlaceQueued)
		members, _ := p.do("ZRANGE", ":queue", "0", "-1").AsStrSlice()
		if want := []string{"000000000001|02|1|a|acme|a%7Cb%20100%25%7C|7|"}; !slices.Equal(members, want) {
			t.Fatalf("queue %q, want %q", members, want)
		}
		p.release("a", "01", 1)
		p.waits()
		p.held("b1", 1)
	})
}
