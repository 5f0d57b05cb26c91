package lua_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
	"pgregory.net/rapid"
)

// Whatever is placed, repeated, released, cleared and changed by hand, in any order: leases and counts agree, no backend
// has more than its slots, nobody waits beside a slot it could use, and nothing is left at the end.
func TestSlotsNeverLeak(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, base *pool) { rapid.Check(t, func(rt *rapid.T) { neverLeaks(rt, base) }) })
}

func neverLeaks(rt *rapid.T, base *pool) {
	w := &world{pool: base.fresh(rt), slots: map[string]int{"b1": 1, "b2": 2, "b3": 0}, now: map[string]int{}}
	w.publish("a")
	rt.Repeat(map[string]func(*rapid.T){
		"place":   w.placeOne,
		"release": w.releaseOne,
		"beat":    func(rt *rapid.T) { w.publish(w.replica(rt)) },
		"clear":   w.clearOne,
		"resize":  w.resize,
		"recount": w.recountAll,
		"":        func(*rapid.T) { w.check() },
	})
	for rid, attempt := range w.now {
		w.release(w.owner(rid), rid, attempt)
	}
	w.now = map[string]int{}
	w.check()
	for _, key := range []string{":queue", ":arrivals", ":held:a", ":held:b", ":held:c", ":waiting:a", ":waiting:b", ":waiting:c"} {
		if n, err := w.do("EXISTS", key).AsInt64(); err != nil || n != 0 {
			rt.Fatalf("%s is left", key)
		}
	}
}

// world is a pool and what must be true of it.
type world struct {
	*pool
	slots map[string]int
	now   map[string]int // rid → highest attempt placed and not released or cleared
}

func (w *world) replica(rt *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "replica")
}

// rid draws one of 12 requests; each belongs to one replica.
func (w *world) rid(rt *rapid.T) string {
	return fmt.Sprintf("%02d", rapid.IntRange(0, 11).Draw(rt, "rid"))
}

func (w *world) owner(rid string) string {
	n, _ := strconv.Atoi(rid)
	return []string{"a", "b", "c"}[n%3]
}

func (w *world) publish(replica string) {
	args := lua.BeatArgs{Replica: replica}
	for _, id := range []string{"b1", "b2", "b3"} {
		args.Backends = append(args.Backends, lua.Registered{Backend: id, Address: "x", Slots: w.slots[id]})
	}
	w.beat(args)
}

func (w *world) placeOne(rt *rapid.T) {
	rid := w.rid(rt)
	attempt := max(1, w.now[rid]+rapid.IntRange(0, 1).Draw(rt, "next"))
	a := by(w.owner(rid), ask(rid, attempt))
	a.Candidates = []lua.Slots{{Backend: "b1", Slots: 9}, {Backend: "b2", Slots: 9}, {Backend: "b3", Slots: 9}}
	a.Wait = rapid.Bool().Draw(rt, "wait")
	a.Not = rapid.SampledFrom([]string{"", "", "b1", "b2"}).Draw(rt, "not")
	a.Limit = 6
	a.Tenant = rapid.SampledFrom([]string{"", "x", "y"}).Draw(rt, "tenant")
	a.Class = rapid.IntRange(0, 2).Draw(rt, "class")
	a.MU = rapid.Int64Range(0, 60_000).Draw(rt, "mu")
	a.OutputMU = rapid.Int64Range(0, 20_000).Draw(rt, "output")
	if n := rapid.IntRange(0, 3).Draw(rt, "fingerprints"); n > 0 {
		a.Prompt = lua.Prompt{Tokens: 4000, Save: 9, Least: 512, Bucket: n}
		for i := range n {
			a.Prompt.Prints = append(a.Prompt.Prints, lua.Print{Name: fmt.Sprint("f", i), Tokens: int64(1000 * (i + 1))})
		}
	}
	r := w.place(a)
	w.now[rid] = attempt
	if lease := w.hash(":held:" + a.Replica)[rid]; (r.State == lua.PlacePlaced) != strings.HasPrefix(lease, fmt.Sprintf("%d %s ", attempt, r.Backend)) {
		rt.Fatalf("%+v, and the lease is %q", r, lease)
	}
	if entry := w.hash(":waiting:" + a.Replica)[rid]; (r.State == lua.PlaceQueued) != (entry != "") {
		rt.Fatalf("%+v, and the entry is %q", r, entry)
	}
}

func (w *world) releaseOne(rt *rapid.T) {
	rid := w.rid(rt)
	upto := max(0, w.now[rid]-rapid.IntRange(0, 1).Draw(rt, "earlier"))
	r := w.releaseAs(lua.ReleaseArgs{RID: rid, Attempt: upto, Replica: w.owner(rid),
		Ran: lua.Ran(rapid.IntRange(0, 2).Draw(rt, "ran")), TTFTMS: rapid.Int64Range(0, 3000).Draw(rt, "ttft"), Tokens: 7})
	if upto < w.now[rid] && (r.Released || r.Dequeued) {
		rt.Fatalf("released up to %d of %d: %+v", upto, w.now[rid], r)
	}
	if upto == w.now[rid] {
		delete(w.now, rid)
		if w.hash(":held:" + w.owner(rid))[rid] != "" || w.hash(":waiting:" + w.owner(rid))[rid] != "" {
			rt.Fatalf("%s still holds something", rid)
		}
	}
}

func (w *world) clearOne(rt *rapid.T) {
	replica := w.replica(rt)
	for w.clear(lua.ClearArgs{Replica: replica, Most: 2}).Left > 0 {
	}
	for rid := range w.now {
		if w.owner(rid) == replica {
			delete(w.now, rid)
		}
	}
	w.publish("c") // clear hands over what it frees; what it could not is the beat's
}

// resize gives a backend more slots. Fewer would leave more leases than slots for a while, which is right.
func (w *world) resize(rt *rapid.T) {
	id := rapid.SampledFrom([]string{"b1", "b2", "b3"}).Draw(rt, "backend")
	w.slots[id] = min(4, w.slots[id]+1)
	w.publish("a")
}

// recountAll has nothing to repair, ever.
func (w *world) recountAll(rt *rapid.T) {
	if r := w.recount("b1", "b2", "b3"); len(r.Repaired) > 0 {
		rt.Fatalf("%+v", r)
	}
}

func (w *world) check() {
	held, output, waiting := map[string]int{}, map[string]int{}, map[string]string{}
	for _, replica := range []string{"a", "b", "c"} {
		for rid, v := range w.hash(":held:" + replica) {
			f := strings.Fields(v)
			held[f[1]]++
			mu, _ := strconv.Atoi(f[4])
			output[f[1]] += mu
			if w.owner(rid) != replica {
				w.t.Fatalf("%s is held by %s", rid, replica)
			}
		}
		for rid, entry := range w.hash(":waiting:" + replica) {
			waiting[rid], _, _ = strings.Cut(entry, " ")
			if _, both := w.hash(":held:" + replica)[rid]; both {
				w.t.Fatalf("%s holds and waits", rid)
			}
		}
	}
	members, err := w.do("ZRANGE", ":queue", "0", "-1").AsStrSlice()
	if err != nil || len(members) != len(waiting) {
		w.t.Fatalf("queue %v, waiting %v, %v", members, waiting, err)
	}
	if arrived, err := w.do("ZRANGE", ":arrivals", "0", "-1").AsStrSlice(); err != nil || !slices.IsSorted(arrived) ||
		!slices.Equal(arrived, slices.Sorted(slices.Values(members))) {
		w.t.Fatalf("arrivals %v, queue %v, %v", arrived, members, err)
	}
	if len(members) == 0 {
		for field := range w.hash(":turns") {
			if strings.Contains(field, "|") {
				w.t.Fatalf("turns has %q, and nobody waits", field)
			}
		}
	}
	for id, slots := range w.slots {
		if got := w.field(":backend:"+id, "output_held"); held[id] > 0 && got != strconv.Itoa(output[id]) || held[id] == 0 && got != "" && got != "0" {
			w.t.Fatalf("%s: output_held %q, of its leases %d", id, got, output[id])
		}
		if got := w.field(":backend:"+id, "backlog"); got != "" && strings.Trim(got, "0123456789") != "" {
			w.t.Fatalf("%s: backlog %q", id, got)
		}
		if got := w.field(":backend:"+id, "held"); got != strconv.Itoa(held[id]) || held[id] > slots {
			w.t.Fatalf("%s: held %s, leases %d, slots %d", id, got, held[id], slots)
		}
		for _, m := range members {
			f := strings.Split(m, "|")
			if waiting[f[1]] != m {
				w.t.Fatalf("entry %q is filed as %q", m, waiting[f[1]])
			}
			if held[id] < slots && f[7] != id {
				w.t.Fatalf("%s waits beside a free slot of %s", f[1], id)
			}
		}
	}
}
