package lua_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/redis/rueidis"
)

// long is a request of 10,000 prompt tokens (0.5 s where nothing is warm) whose beginnings of 1,000, 2,000 … tokens have
// these names.
func long(rid string, prints ...string) lua.PlaceArgs {
	a := heavy(rid, 100)
	a.Prompt = lua.Prompt{Tokens: 10_000, Save: 9, Least: 512, Bucket: 3}
	for i, name := range prints {
		a.Prompt.Prints = append(a.Prompt.Prints, lua.Print{Name: name, Tokens: int64(1000 * (i + 1))})
	}
	return a
}

// from puts the candidates of a in another order.
func from(a lua.PlaceArgs, backends ...string) lua.PlaceArgs {
	a.Candidates = nil
	for _, b := range backends {
		a.Candidates = append(a.Candidates, lua.Slots{Backend: b, Slots: 8})
	}
	return a
}

var nine = []string{"p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9"}

func TestPrefixGoesWhereItIsWarm(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		idle := func() { p.do("HSET", ":backend:b1", "backlog", "0"); p.do("HSET", ":backend:b2", "backlog", "0") }
		if r := p.place(long("01", nine...)); r.Backend != "b1" || r.Matched != 0 || r.ExpectedMS != 500 {
			t.Fatalf("%+v", r)
		}
		if got := p.number("b1", "tokens_sent"); got != 10_000 {
			t.Fatalf("%d tokens", got)
		}
		idle()
		// The conversation goes on from another ring position: 9,000 of its 10,000 tokens are warm on b1.
		next := from(long("02", append(slices.Clone(nine), "x")...), "b2", "b1")
		if r := p.place(next); r.Backend != "b1" || r.Matched != 9000 || r.ExpectedMS != 95 { // 100 − 81 MU
			t.Fatalf("%+v", r)
		}
		if got := p.number("b1", "tokens_sent"); got != 11_000 {
			t.Fatalf("%d tokens", got)
		}
		idle()
		// It shares 3,000 tokens with b1, then another text.
		if r := p.place(from(long("03", "p1", "p2", "p3", "y4"), "b2", "b1")); r.Backend != "b1" || r.Matched != 3000 {
			t.Fatalf("%+v", r)
		}
		idle()
		// The longest beginning counts, whoever else has a shorter one.
		p.place(from(long("06", "p1", "p2", "p3"), "b2"))
		idle()
		if r := p.place(from(long("05", nine...), "b2", "b1")); r.Backend != "b1" || r.Matched != 9000 {
			t.Fatalf("%+v", r)
		}
		// A load that costs more than the prefix saves.
		p.set("b1", "backlog", 300_000, "backlog_at", p.clock()+3_600_000)
		if r := p.place(from(long("04", nine...), "b2", "b1")); r.Backend != "b2" || r.Matched != 3000 {
			t.Fatalf("%+v", r)
		}
		// Now it is warm on both; the entry says so, the latest first.
		entry := strings.Fields(p.field(":prefix:1:3", "p9"))
		if len(entry) != 2 || !strings.HasPrefix(entry[0], lua.TagOf("b2")) || !strings.HasPrefix(entry[1], lua.TagOf("b1")) {
			t.Fatalf("entry %q", entry)
		}
	})
}

func TestPrefixEntryNamesThree(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		for i := range 5 {
			p.place(from(long(fmt.Sprint("0", i), "p1"), fmt.Sprint("b", i)))
		}
		var want []string
		for _, b := range []string{"b4", "b3", "b2"} {
			want = append(want, lua.TagOf(b)+"0.a")
		}
		if got := p.field(":prefix:1:3", "p1"); got != strings.Join(want, " ") {
			t.Fatalf("entry %q, want %q", got, want)
		}
	})
}

// What may have been thrown out of a cache is not warm.
func TestPrefixIsForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fields []any
		warm   bool
	}{
		"nothing happened":        {nil, true},
		"other engine process":    {[]any{"restarts", 1}, false},
		"its cache was filled":    {[]any{"tokens_sent", 10_000 + 262_144}, false},
		"its cache was not quite": {[]any{"tokens_sent", 10_000 + 262_143}, true},
		"a small cache":           {[]any{"kv_tokens", 50_000, "tokens_sent", 60_000}, false},
		"a large cache":           {[]any{"kv_tokens", 500_000, "tokens_sent", 400_000}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBothPools(t, func(t *testing.T, p *pool) {
				p.place(long("01", nine...))
				p.set("b1", append([]any{"backlog", 0}, c.fields...)...)
				if r := p.place(from(long("02", nine...), "b2", "b1")); (r.Matched == 9000) != c.warm {
					t.Fatalf("%+v", r)
				}
			})
		})
	}
}

// A system prompt that everybody has is too short to decide.
func TestPrefixBelowTheLeastDoesNotCount(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(long("01", nine...))
		p.do("HSET", ":backend:b1", "backlog", "0")
		a := from(long("02", "p1", "p2"), "b2", "b1")
		a.Prompt.Least, a.Prompt.Save = 2001, 100
		if r := p.place(a); r.Backend != "b2" || r.Matched != 0 {
			t.Fatalf("%+v", r)
		}
	})
}

// A shorter beginning may be warm for more than a longer one, with the answer behind it.
func TestPrefixWithTheAnswerBehindIt(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.place(long("01", "p1"))
		p.place(from(long("02", "p1", "p2"), "b2")) // it begins with another answer
		p.do("HSET", ":backend:b1", "backlog", "0")
		p.do("HSET", ":backend:b2", "backlog", "0")
		for least, want := range map[int64][2]int64{512: {3500, 2000}, 2500: {3500, 3500}, 3501: {0, 0}} {
			a := from(long("03", "p1", "p2", "p3", "p4"), "b1", "b2")
			a.Prompt.Prints[0].Tokens, a.Prompt.Least = 3500, least
			if r := p.weigh(a).Rows; r[0].Matched != want[0] || r[1].Matched != want[1] {
				t.Errorf("least %d: %d and %d tokens, want %v", least, r[0].Matched, r[1].Matched, want)
			}
		}
		a := from(long("04", "p1", "p2", "p3", "p4"), "b2", "b1")
		a.Prompt.Prints[0].Tokens = 3500
		if r := p.place(a); r.Backend != "b1" || r.Matched != 3500 {
			t.Errorf("%+v", r)
		}
		if got := p.number("b1", "tokens_sent"); got != 16_500 {
			t.Errorf("%d tokens", got)
		}
	})
}

// Who waited leaves fingerprints too, and finds them.
func TestPrefixOfAGrant(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		grants := listen(t, p, "a")
		p.place(on(ask("00", 1), "b1"))
		a := on(long("01", nine...), "b1")
		p.state(p.place(a), lua.PlaceQueued)
		p.state(p.place(on(long("02", nine...), "b1")), lua.PlaceQueued)
		p.release("a", "00", 1)
		if f := strings.Fields(p.hash(":held:a")["01"]); f[5] != "100000" {
			t.Fatalf("lease %q, want all of the prompt to be computed", f)
		}
		p.release("a", "01", 1)
		if f := strings.Fields(p.hash(":held:a")["02"]); f[5] != "19000" { // 81 MU are saved
			t.Fatalf("lease %q", f)
		}
		for _, want := range []string{" 01 1 b1 0", " 02 1 b1 9000"} { // what is warm there is told with the grant
			if got := <-grants; got != p.name+want {
				t.Fatalf("announced %q, want %q", got, want)
			}
		}
		if got := p.field(":prefix:1:3", "p9"); got != lua.TagOf("b1")+"0.a" { // after 10,000 tokens; 1,000 more are no news
			t.Fatalf("entry %q", got)
		}
		// Once a sixteenth of the cache was filled, the next use is news.
		p.set("b1", "tokens_sent", 10_000+262_144/16)
		p.state(p.place(on(long("03", nine...), "b1")), lua.PlaceQueued)
		p.release("a", "02", 1)
		if got := p.field(":prefix:1:3", "p9"); got != lua.TagOf("b1")+"0.1b" { // 27,384 tokens
			t.Fatalf("entry %q", got)
		}
	})
}

// What is warm for the one who waited is not warm for the one whose place handed over to him.
func TestPrefixOfAGrantIsNotAnothers(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.onPool(p.place(on(long("01", nine...), "b1")), "b1")
		p.state(p.place(on(long("02", nine...), "b1")), lua.PlaceQueued)
		p.do("HSET", ":backend:b1", "slots", "3") // by hand: nobody handed the slots over
		if r := p.place(on(long("03", "q1"), "b1")); r.Backend != "b1" || r.Matched != 0 {
			t.Fatalf("%+v", r)
		}
		if f := strings.Fields(p.hash(":held:a")["02"]); f[5] != "19000" {
			t.Fatalf("lease %q", f)
		}
	})
}

func TestPrefixGenerations(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		age := func() { // the newer generation is 30 minutes old
			p.do("HSET", ":turns", "generation_at", fmt.Sprint(p.clock()-1_800_001))
			p.clock()
			p.do("HSET", ":backend:b1", "backlog", "0")
		}
		p.place(long("01", nine...))
		if ttl, err := p.do("PTTL", ":prefix:1:3").AsInt64(); err != nil || ttl < 3_600_000 {
			t.Fatalf("ttl %d, %v", ttl, err)
		}
		age()
		if r := p.place(long("02", nine[:4]...)); r.Matched != 4000 { // from the older, and into the newer
			t.Fatalf("%+v", r)
		}
		age()
		if n, _ := p.do("EXISTS", ":prefix:1:3").AsInt64(); n != 0 || p.field(":turns", "generation") != "3" {
			t.Fatalf("the oldest generation stays; turns %v", p.hash(":turns"))
		}
		if r := p.place(long("03", nine...)); r.Matched != 4000 {
			t.Fatalf("%+v", r)
		}
		age()
		age()
		if got := p.field(":turns", "generation"); got != "4" { // an empty one does not get old
			t.Fatalf("generation %s", got)
		}
	})
}

func TestPrefixGenerationIsFull(t *testing.T) {
	t.Parallel()
	p := newPool(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()}) // its own: filling takes a while
	p.place(long("01", "p1"))
	fill := pipeline.NewScript("fill", `local fields = {}
for i = ARGV[2], ARGV[3] do
  fields[#fields + 1], fields[#fields + 2] = i, ''
  if #fields == 2000 or i == tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[1] .. ':prefix:1:' .. ARGV[1], unpack(fields))
    fields = {}
  end
end`)
	put := func(bucket, from, to int) {
		args := []string{fmt.Sprint(bucket), fmt.Sprint(from), fmt.Sprint(to)}
		wait(p, pipeline.Declare(p.pipes.Batch(), pipeline.Command{Store: p.store, Script: fill, Key: p.root, Args: args}, nothing))
	}
	const part = 9_999
	for i := range 100 { // 999,900
		put(i%2, i*part, (i+1)*part-1)
	}
	put(5, 1, 98)
	p.clock()
	if got := p.field(":turns", "generation"); got != "1" {
		t.Fatalf("generation %s with 999,999 entries", got)
	}
	p.do("HSET", ":prefix:1:7", "x", "")
	p.clock()
	if got := p.field(":turns", "generation"); got != "2" {
		t.Fatalf("generation %s with a million entries", got)
	}
}

// A hash of another type costs the request its warm prefix, no more.
func TestPrefixUnreadable(t *testing.T) {
	t.Parallel()
	onBothPools(t, func(t *testing.T, p *pool) {
		p.do("SET", ":prefix:1:3", "x")
		p.onPool(p.place(long("01", nine...)), "b1")
		p.do("DEL", ":prefix:1:3")
		p.do("HSET", ":backend:b1", "backlog", "0")
		p.onPool(p.place(long("02", nine...)), "b1")
		p.do("HSET", ":prefix:1:3", "p9", "nonsense . zzzzz1.2", "p8", lua.TagOf("b1")+"x.1")
		p.do("HSET", ":backend:b1", "backlog", "0")
		if r := p.place(long("03", nine...)); r.Matched != 7000 {
			t.Fatalf("%+v", r)
		}
	})
}

func nothing(rueidis.RedisMessage) (struct{}, error) { return struct{}{}, nil }

// BenchmarkPrefixMemory prints what a request's fingerprints take in Redis: 12 that nobody shares, and 12 of which a
// conversation of 8 turns shares 10.
func BenchmarkPrefixMemory(b *testing.B) {
	for _, shared := range []int{0, 10} {
		b.Run(fmt.Sprintf("shared=%d", shared), func(b *testing.B) {
			p := newPool(b, pipeline.StoreConfig{URL: lab.Redis(b).URL()})
			used := func() float64 {
				text, err := p.do("INFO", "", "memory").ToString()
				if err != nil {
					b.Fatal(err)
				}
				var n float64
				_, rest, _ := strings.Cut(text, "used_memory:")
				if _, err := fmt.Sscan(rest, &n); err != nil {
					b.Fatal(err)
				}
				return n
			}
			names := func(request int) (prints []string) {
				for i := range 12 {
					of := request / 8
					if i >= shared {
						of = 1<<30 + request
					}
					prints = append(prints, fmt.Sprintf("%08x%03d", of, i))
				}
				return prints
			}
			before, n := 0.0, 0
			for i := range b.N {
				rid := fmt.Sprintf("%032x", i)
				a := long(rid, names(i)...)
				a.Prompt.Bucket = i / 8 % 16
				p.place(a)
				p.release("a", rid, 1)
				if i == 0 {
					before = used()
				} else {
					n++
				}
			}
			b.ReportMetric((used()-before)/float64(max(1, n)), "bytes/request")
		})
	}
}
