package lua_test

import (
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
