package lua_test

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
)

func (p *pool) adopt(leases ...lua.Adopted) lua.AdoptReply {
	p.t.Helper()
	return wait(p, lua.Adopt(p.pipes.Batch(), p.store, p.root, "a", leases))
}

func (p *pool) recount(backends ...string) lua.RecountReply {
	p.t.Helper()
	return wait(p, lua.Recount(p.pipes.Batch(), p.store, p.root, backends))
}

// A replica that was thought dead takes back what still runs; others were placed meanwhile.
func TestAdoptAfterAWrongClear(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		a := ask("01", 1)
		a.MU, a.OutputMU = 500, 200
		p.place(a)
		p.place(ask("02", 3))
		p.clear(lua.ClearArgs{Replica: "a", Most: 100})
		p.place(by("b", ask("11", 1)))
		lost := []lua.Adopted{{RID: "01", Attempt: 1, Backend: "b1", MU: 500, OutputMU: 200, Tenant: "acme"},
			{RID: "02", Attempt: 3, Backend: "b1", MU: 7, Tenant: "acme"}}
		if r := p.adopt(lost...); r != (lua.AdoptReply{Adopted: 2, Over: 1}) {
			t.Fatalf("%+v", r)
		}
		if r := p.adopt(lost...); r != (lua.AdoptReply{}) {
			t.Fatalf("repeated: %+v", r)
		}
		p.held("b1", 3) // of 2 slots: they do run
		if got := p.number("b1", "output_held"); got != 200 {
			t.Fatalf("output_held %d", got)
		}
		if m := p.do("ZSCORE", ":replicas", "a"); m.IsNil() {
			t.Fatal("a replica with leases is not among the replicas")
		}
		p.onPool(p.place(by("b", ask("12", 1))), "b2")
		p.release("a", "01", 1)
		p.release("a", "02", 2) // not this attempt
		p.held("b1", 2)
		if got := p.number("b1", "output_held"); got != 0 {
			t.Fatalf("output_held %d", got)
		}
	})
}

func TestAdoptLeavesOtherAttemptsAndUnreadableRecordsAlone(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(ask("01", 2))
		p.do("SET", ":backend:b2", "x")
		r := p.adopt(lua.Adopted{RID: "01", Attempt: 1, Backend: "b1"}, lua.Adopted{RID: "02", Attempt: 1, Backend: "b2"},
			lua.Adopted{RID: "03", Attempt: 1, Backend: "b1"}, lua.Adopted{RID: "03", Attempt: 1, Backend: "b1"})
		if r != (lua.AdoptReply{Adopted: 1}) {
			t.Fatalf("%+v", r)
		}
		p.held("b1", 2)
	})
}

func TestRecountMakesCountsWhatLeasesSay(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		a := ask("01", 1)
		a.MU, a.OutputMU = 500, 200
		p.place(a)
		p.place(by("b", on(ask("02", 1), "b1", "b2")))
		p.place(on(ask("03", 1), "b2"))
		all := []string{"b1", "b2", "b3", "b4"}
		if r := p.recount(all...); r.Leases != 3 || len(r.Repaired) != 0 {
			t.Fatalf("nothing was wrong: %+v", r)
		}
		p.do("HSET", ":backend:b1", "held", "9", "output_held", "5")
		p.do("HSET", ":backend:b2", "held", "many")
		p.do("HSET", ":backend:b3", "held", "4", "slots", "4")
		p.do("SET", ":backend:b4", "x")
		p.do("SET", ":held:nonsense", "x")
		p.do("ZADD", ":replicas", "1", "nonsense")
		r := p.recount(all...)
		want := []lua.Repaired{{Backend: "b1", Was: 9, Now: 2}, {Backend: "b2", Was: -1, Now: 1}, {Backend: "b3", Was: 4, Now: 0}}
		if !slices.Equal(r.Repaired, want) {
			t.Fatalf("%+v, want %+v", r.Repaired, want)
		}
		p.held("b1", 2)
		p.held("b2", 1)
		p.held("b3", 0)
		if got := p.number("b1", "output_held"); got != 200 {
			t.Fatalf("output_held %d", got)
		}
		if r := p.recount(all...); len(r.Repaired) != 0 {
			t.Fatalf("repeated: %+v", r)
		}
		p.do("HSET", ":backend:b1", "output_held", "5") // this alone
		if r := p.recount(all...); !slices.Equal(r.Repaired, []lua.Repaired{{Backend: "b1", Was: 2, Now: 2}}) || p.number("b1", "output_held") != 200 {
			t.Fatalf("%+v", r)
		}
		if n, err := p.do("EXISTS", ":backend:b9").AsInt64(); err != nil || n != 0 {
			t.Fatal("a record of nobody")
		}
	})
}
