package lua_test

import (
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

// found has a replica say of b1, which two replicas look at, that it is unwell or not; the result is whether b1 is out of use.
func (p *pool) found(replica string, unwell bool) bool {
	p.t.Helper()
	return len(p.unwell(replica, lua.Finding{Backend: "b1", Place: "h:1", Readers: 2, Unwell: unwell})) > 0
}

func (p *pool) unwell(replica string, found ...lua.Finding) []lua.OutOfUse {
	p.t.Helper()
	return wait(p, lua.Unwell(p.pipes.Batch(), p.store, p.root, replica, found, func(out []lua.OutOfUse) []lua.OutOfUse { return out }))
}

// Two readers that agree take a backend out of use for new requests and for those that wait; one that finds it well brings
// it back at once.
func TestUnwellTakesBothReaders(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		if p.found("r1", true) {
			t.Fatal("one of two readers took it out")
		}
		p.onPool(p.place(on(ask("01", 1), "b1")), "b1")
		waits := on(ask("02", 1), "b1")
		waits.Not = "=b1"
		p.state(p.place(waits), lua.PlaceQueued)
		for range 2 { // the second time it is known
			if !p.found("r2", true) {
				t.Fatal("both readers did not")
			}
		}
		p.onPool(p.place(ask("03", 1)), "b2")
		p.release("a", "01", 1)
		p.waits("02") // b1 has a free slot, and nobody is granted it
		if out := p.unwell("r3"); len(out) != 1 || out[0] != (lua.OutOfUse{Backend: "b1", Place: "h:1"}) {
			t.Fatalf("others see %v", out)
		}
		if p.found("r1", false) {
			t.Fatal("out though a reader finds it well")
		}
		p.beat(lua.BeatArgs{Replica: "a", Backends: []lua.Registered{{Backend: "b1", Address: "h:1", Slots: 1}}})
		p.waits()
		p.held("b1", 1)
	})
}

// The cool-down of requests that failed outlives a recovery, and one that is longer is left alone.
func TestUnwellLeavesOtherCoolDownsAlone(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		until := p.fail(false).UntilMS
		p.do("HSET", ":backend:b2", "cooldown_until", "1000")
		for range 2 {
			p.found("r1", true)
			p.found("r2", true)
		}
		if now := p.number("b1", "cooldown_until"); now != until {
			t.Fatalf("until %d, was %d", now, until)
		}
		p.found("r1", false)
		if now := p.number("b1", "cooldown_until"); now != until {
			t.Fatalf("well again: until %d, was %d", now, until)
		}
		// A shorter one comes back behind it.
		short := lua.FailArgs{Backend: "b2", Row: 3, FirstMS: 2000, LongestMS: 2000}
		until = wait(p, lua.Fail(p.pipes.Batch(), p.store, p.root, short)).UntilMS
		one := lua.Finding{Backend: "b2", Place: "h:2", Readers: 1, Unwell: true}
		for range 3 {
			p.unwell("r1", one)
		}
		if now := p.number("b2", "cooldown_until"); now <= until {
			t.Fatalf("until %d, was %d", now, until)
		}
		one.Unwell = false
		p.unwell("r1", one)
		if now := p.number("b2", "cooldown_until"); now != until {
			t.Fatalf("until %d, want %d", now, until)
		}
	})
}

// What is found at one address says nothing of another, and what nobody renews is forgotten.
func TestUnwellEnds(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.found("r1", true)
		if out := p.unwell("r2", lua.Finding{Backend: "b1", Place: "h:9", Readers: 2, Unwell: true}); len(out) != 0 {
			t.Fatalf("%v", out)
		}
		p.do("HSET", ":unwell", "b1", "h:1 2 r1 1000 r2 1000")
		if out := p.unwell("r3"); len(out) != 0 || len(p.hash(":unwell")) != 0 {
			t.Fatalf("%v, %v", out, p.hash(":unwell"))
		}
		p.do("HSET", ":unwell", "b1", "anything")
		p.do("HSET", ":backend:b2", "cooldown_until", "soon")
		if out := p.unwell("r3", lua.Finding{Backend: "b2", Place: "h:2", Readers: 1, Unwell: true}); len(out) != 1 {
			t.Fatalf("%v", out)
		}
	})
}
