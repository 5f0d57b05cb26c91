package lua_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/headgate/headgate/scripts/lua"
	"pgregory.net/rapid"
)

// place does the usual case on a way of its own: whatever stands in the keys, it ends as the general one does, which a
// backend to be avoided asks for, also if it is no candidate.
func TestPlaceQuickOrNot(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, base *pool) {
		rapid.Check(t, func(rt *rapid.T) {
			state, a := drawState(rt)
			quick, general := base.fresh(rt), base.fresh(rt)
			state.put(quick)
			state.put(general)
			mine := quick.place(a)
			a.Not = "nobody"
			if theirs := general.place(a); mine != theirs {
				rt.Fatalf("quick %+v, general %+v", mine, theirs)
			}
			sameKeys(rt, quick, general, append(state.keys(), ":held:a", ":replicas", ":backend:b2", ":turns", ":queue"))
		})
	})
}

// release too: somebody who waits for another backend asks for the general case.
func TestReleaseQuickOrNot(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, base *pool) {
		rapid.Check(t, func(rt *rapid.T) {
			state, a := drawState(rt)
			lease := fmt.Sprintf("1 b1 %d %d %d %d %d acme", a.MU, a.NowMS-10, a.OutputMU, a.MU-a.OutputMU, a.MU*rapid.SampledFrom([]int64{2, 40}).Draw(rt, "work"))
			lease = rapid.SampledFrom([]string{lease, lease, lease, "2 b1 7 1 1 1 1 acme", "1 b1 7", "1 b9 7 1 1 1 1 acme"}).Draw(rt, "lease")
			end := lua.ReleaseArgs{RID: "01", Attempt: 1, Replica: "a", Ran: lua.Ran(rapid.IntRange(0, 2).Draw(rt, "ran")), NowMS: a.NowMS,
				TTFTMS: rapid.SampledFrom([]int64{0, 50, 150, 30_000}).Draw(rt, "ttft"), Tokens: rapid.Int64Range(0, 500).Draw(rt, "tokens")}
			quick, general := base.fresh(rt), base.fresh(rt)
			for _, p := range []*pool{quick, general} {
				state.put(p)
				p.do("HSET", ":held:a", "01", lease)
			}
			general.do("ZADD", ":queue", "1", "000000000001|02|1|a|acme|m|7|=b3")
			mine := wait(quick, lua.Release(quick.pipes.Batch(), quick.store, quick.root, end))
			if theirs := wait(general, lua.Release(general.pipes.Batch(), general.store, general.root, end)); mine != theirs {
				rt.Fatalf("quick %+v, general %+v", mine, theirs)
			}
			sameKeys(rt, quick, general, []string{":held:a", ":backend:b1", ":backend:b9"})
		})
	})
}

// state is what stands in the hashes of a pool.
type state map[string]map[string]string

func (s state) put(p *pool) {
	for suffix, fields := range s {
		for field, value := range fields {
			p.do("HSET", suffix, field, value)
		}
	}
}

func (s state) keys() []string { return slices.Sorted(maps.Keys(s)) }

// drawState is a pool of two backends of which the first is looked at, usual more often than not, and a request for it.
func drawState(rt *rapid.T) (state, lua.PlaceArgs) {
	const now = 1_790_000_000_000
	tag := lua.TagOf("b1")
	one := map[string]string{}
	pick := func(into map[string]string, field string, usual string, others ...string) {
		value := usual
		if rapid.IntRange(0, 59).Draw(rt, "odd "+field) == 37 {
			value = rapid.SampledFrom(append(others, "", "x", "-1", "0.5", "nan", "99999999999999999999")).Draw(rt, field)
		} else if len(others) > 0 && rapid.Bool().Draw(rt, "other "+field) {
			value = rapid.SampledFrom(others).Draw(rt, field)
		}
		if value != "absent" {
			into[field] = value
		}
	}
	at := func(ms int64) string { return strconv.FormatInt(now+ms, 10) }
	pick(one, "slots", "4", "2")
	pick(one, "held", "1", "2", "absent")
	pick(one, "draining", "0", "absent")
	pick(one, "cooldown_until", "absent", at(-1))
	pick(one, "capacity_mu", "450000", "absent")
	pick(one, "rate_mu", "absent", "300000", "90000000", "2000")
	pick(one, "backlog", "400", "absent", "9000", "40000")
	pick(one, "backlog_at", at(-20), "absent", at(500))
	pick(one, "output_held", "30", "absent")
	pick(one, "read_at", at(-100), "absent", at(-9000))
	pick(one, "external", "0", "absent")
	pick(one, "kv", "900", "absent", "9500", "9501")
	pick(one, "tokens_sent", "5000", "absent")
	pick(one, "restarts", "1", "absent")
	pick(one, "kv_tokens", "4000", "absent", "20000")
	pick(one, "mean_mu", "700", "absent")
	turns, newer, older := map[string]string{}, map[string]string{}, map[string]string{}
	pick(turns, "generation", "3")
	pick(turns, "generation_at", at(-50))
	for _, print := range []string{"f1", "f2", "f3"} {
		entries := []string{tag + "1.4", tag + "1.0", tag + "0.4", "fffff1.4 " + tag + "1.3", "fffff0.0 eeeee0.0 ddddd0.0", "1" + tag + "1.4"}
		pick(newer, print, "absent", entries...)
		pick(older, print, "absent", entries...)
	}
	a := lua.PlaceArgs{RID: "01", Attempt: 1, Replica: "a", Tenant: "acme", Model: "m", Wait: true, Limit: 10, NowMS: now,
		Candidates: []lua.Slots{{Backend: "b1", Slots: 3, Tag: tag}, {Backend: "b2", Slots: 3, Tag: lua.TagOf("b2")}}}
	a.MU = rapid.Int64Range(0, 9000).Draw(rt, "mu")
	a.OutputMU = rapid.Int64Range(0, a.MU).Draw(rt, "output")
	a.Prompt = lua.Prompt{Tokens: rapid.SampledFrom([]int64{900, 5000}).Draw(rt, "tokens"), Save: rapid.Int64Range(0, 9).Draw(rt, "save"), Least: 200}
	for i := range rapid.IntRange(0, 3).Draw(rt, "prints") {
		a.Prompt.Prints = append(a.Prompt.Prints, lua.Print{Name: fmt.Sprintf("f%d", i+1), Tokens: int64(150 + 300*i)})
	}
	if n := len(a.Prompt.Prints); n > 1 && rapid.Bool().Draw(rt, "answer") { // behind the first, and no longer than the last
		a.Prompt.Prints[0].Tokens = rapid.Int64Range(150, a.Prompt.Prints[n-1].Tokens).Draw(rt, "warm")
	}
	two := map[string]string{"slots": "3", "capacity_mu": "1000", "backlog": "90000", "backlog_at": at(0)}
	return state{":backend:b1": one, ":backend:b2": two, ":turns": turns, ":prefix:3:0": newer, ":prefix:2:0": older}, a
}

// sameKeys: both pools hold the same under each of these names.
func sameKeys(rt *rapid.T, a, b *pool, suffixes []string) {
	for _, suffix := range suffixes {
		if suffix == ":replicas" || suffix == ":queue" {
			one, _ := a.do("ZRANGE", suffix, "0", "-1", "WITHSCORES").ToAny()
			two, _ := b.do("ZRANGE", suffix, "0", "-1", "WITHSCORES").ToAny()
			if fmt.Sprint(one) != fmt.Sprint(two) {
				rt.Fatalf("%s: quick %v, general %v", suffix, one, two)
			}
		} else if one, two := a.hash(suffix), b.hash(suffix); !maps.Equal(one, two) {
			rt.Fatalf("%s: quick %v, general %v", suffix, one, two)
		}
	}
}
