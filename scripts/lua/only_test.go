package lua_test

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

// Who waits for one backend is passed over when another comes free, and does not keep it from those behind.
func TestWhoWaitsForOneBackendGetsNoOther(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.onPool(p.place(on(ask("01", 1), "b1")), "b1")
		p.onPool(p.place(on(ask("02", 1), "b2")), "b2")
		only := on(ask("03", 1), "b1")
		only.Not = "=b1"
		p.state(p.place(only), lua.PlaceQueued)
		p.state(p.place(on(ask("04", 1), "b2")), lua.PlaceQueued)

		p.release("a", "02", 1) // b2 goes to 04, who came later
		p.waits("03")
		p.held("b2", 1)
		p.release("a", "01", 1)
		p.waits()
		p.held("b1", 1)
	})
}

// Who waits for a backend that is free is not kept from it by many who wait for another, and new requests do not pass it:
// a release finds it behind 200 others, a beat behind 1,000.
func TestWhoWaitsForAnotherBackendBlocksNobody(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		join := func(rid, backend string) {
			t.Helper()
			a := on(ask(rid, 1), backend)
			a.Not, a.Limit = "="+backend, 10_000
			p.place(a)
		}
		many := func(from, to int) {
			for i := from; i < to; i++ {
				join(fmt.Sprintf("aa%04d", i), "b1")
			}
		}
		join("01", "b1")
		join("02", "b2")
		many(0, 200)
		join("03", "b2")
		if r := p.release("a", "02", 1); r.Granted != 1 {
			t.Fatalf("%+v: 03 waits for the backend that came free", r)
		}
		p.held("b2", 1)

		many(200, 1000)
		join("04", "b2")
		if r := p.release("a", "03", 1); r.Granted != 0 {
			t.Fatalf("%+v: a release looks at no more than 256", r)
		}
		if r := p.beat(lua.BeatArgs{Replica: "a", Backends: []lua.Registered{{Backend: "b2", Address: "10.0.0.2:80", Slots: 1}}}); r.Granted != 1 {
			t.Fatalf("%+v: 04 waits for a free backend", r)
		}
		p.held("b2", 1)
	})
}
