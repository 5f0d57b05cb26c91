package lua

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

// BenchmarkDecision prints the Redis CPU of one admission and its settlement, in µs, from INFO commandstats, for 1, 3 and 6
// scopes, one at a time and (flush=8) with the settlements of eight requests in one flush; and the ratio to the yardstick, a
// plain pair of scripts for three scopes that runs in between, a hundred requests at a time: the median of pairs, for the
// machine is never quiet. core/s is how many requests a second one core holds that does nothing else: a million divided by
// the µs of the whole process, reading and replying included. Every scope, the yardstick's too, has admitted something in each
// second of the last minute.
func BenchmarkDecision(b *testing.B) {
	for _, scopes := range []int{1, 3, 6} {
		for _, flush := range []int{1, 8} {
			b.Run(fmt.Sprintf("scopes=%d/flush=%d", scopes, flush), func(b *testing.B) {
				s := benchStore(b)
				compare(b, s, flush, together(decider(b, s, scopes)))
			})
		}
	}
}

// requests does so many requests, the parts after the answer of all in one flush.
type requests func(flush int)

// compare runs ours and the yardstick in turn.
func compare(b *testing.B, s *pipeline.Store, flush int, ours requests) {
	theirs := naivePair(b, s)
	var us, them, ratios, core []float64
	for range max(b.N/costBlock, 1) {
		began := processUsec(b, s)
		us = append(us, perRequest(b, s, flush, func() { ours(flush) }))
		core = append(core, costBlock/(processUsec(b, s)-began)*1e6)
		them = append(them, perRequest(b, s, 1, theirs))
		ratios = append(ratios, us[len(us)-1]/them[len(them)-1])
	}
	b.ReportMetric(median(us), "redis-µs/request")
	b.ReportMetric(median(them), "yardstick-µs/request")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(core), "core/s")
}

// costBlock is how many requests are measured at once, about: a multiple of every flush.
const costBlock = 104

func median(list []float64) float64 {
	sort.Float64s(list)
	return list[len(list)/2]
}

// part is one owner's share of a request: it declares what comes before the model call; what it returns waits for that and
// declares what comes after; what that returns waits for the end. All of it is asserted.
type part func(before *pipeline.Batch) func(after *pipeline.Batch) func()

// together is requests that consist of these parts.
func together(parts ...part) requests {
	return func(flush int) {
		var after pipeline.Batch
		var ends []func()
		for range flush {
			var before pipeline.Batch
			var sent []func(*pipeline.Batch) func()
			for _, p := range parts {
				sent = append(sent, p(&before))
			}
			for _, then := range sent {
				ends = append(ends, then(&after))
			}
		}
		for _, end := range ends {
			end()
		}
	}
}

// decider admits and settles, for so many scopes with rpm, tpm and a budget.
func decider(b *testing.B, s *pipeline.Store, scopes int) part {
	ctx, root := b.Context(), "hg:{t:acme}"
	limits := []string{"rpm", "100000000", "tpm", "1000000000", "budget_usd", "1000000", "period", "month", "created_at", "1"}
	key := []string{"id", "key_1", "name", "ci"}
	others := []string{}
	if scopes >= 3 {
		key, others = append(key, "team", "search"), append(others, ":team:search", "")
	}
	if scopes >= 6 {
		key, others = append(key, "user", "ann"), append(others, ":user:ann", ":enduser:bob", ":tag:nightly")
	}
	if _, err := s.Do(ctx, "HSET", root+":key:k1", append(key, limits...)...); err != nil {
		b.Fatal(err)
	}
	for _, suffix := range others {
		if _, err := s.Do(ctx, "HSET", root+suffix, limits...); err != nil {
			b.Fatal(err)
		}
	}
	fullMinute(b, s, root, scopes)
	label := ClaimText(`"request_id":"0123456789","rid":"0123456789abcdef0123456789abcdef","replica":"host-1","tenant":"acme","end_user":"","tags":[],"route":"/v1/chat/completions","model":"qwen-7b","stream":true`)
	record := []byte(`{"time":"2026-11-30T12:00:00.000Z",` + label + fmt.Sprintf(`,"pad":"%0500d"}`, 0))
	rid := 0
	return func(before *pipeline.Batch) func(*pipeline.Batch) func() {
		rid++
		a := AdmitArgs{RID: fmt.Sprintf("%032x", rid), KeyHash: "k1", Owner: "host-1", Model: "qwen-7b", Known: true, Priced: true,
			Prompt: 100, Usual: 256, HoldNUSD: 400000, Label: label}
		if scopes >= 6 {
			a.EndUser, a.Tags = "bob", "nightly"
		}
		admitted := Admit(before, s, root, &a, asIs)
		return func(after *pipeline.Batch) func() {
			r, err := admitted.Wait(ctx)
			if err != nil || r.Verdict != 1 || strings.Count(r.Claim, "t:2") != scopes {
				b.Fatalf("%+v %v", r, err)
			}
			settled := Settle(after, s, root, SettleArgs{RID: a.RID, Claim: r.Claim, Keep: true, Prompt: 90, Completion: 40, CostNUSD: 3000,
				Record: record})
			return func() {
				if done, err := settled.Wait(ctx); err != nil || done != Replaced {
					b.Fatalf("%d %v", done, err)
				}
			}
		}
	}
}

// fullMinute lets each scope have admitted one request a second in the last minute, as busy ones have.
func fullMinute(b *testing.B, s *pipeline.Store, root string, scopes int) {
	ctx := b.Context()
	now := time.Now().Unix()
	for _, name := range []string{"key:key_1", "team:search", "tenant:acme", "user:ann", "enduser:bob", "tag:nightly"}[:scopes] {
		f := []string{"requests", "59", "tokens", "5900", "last", decimal((now - 1) * 1000), "leaves", decimal((now + 1) * 1000)}
		for at := now - 59; at < now; at++ {
			f = append(f, decimal(at), fmt.Sprintf("1 %d", at*1000), fmt.Sprintf("t%d", at), "100")
		}
		if _, err := s.Do(ctx, "HSET", root+":rate:"+name, f...); err != nil {
			b.Fatal(err)
		}
	}
}

// naivePair does one request of the yardstick each time. YARDSTICK names another directory of naive-admit.lua and
// naive-settle.lua than ours.
func naivePair(b *testing.B, s *pipeline.Store) func() {
	ctx, dir := b.Context(), cmp.Or(os.Getenv("YARDSTICK"), "testdata")
	naive := func(name string) *pipeline.Script {
		text, err := os.ReadFile(filepath.Join(dir, name+".lua"))
		if err != nil {
			b.Fatal(err)
		}
		return pipeline.NewScript(name, string(text))
	}
	admit, settle := naive("naive-admit"), naive("naive-settle")
	for suffix, more := range map[string][]string{":key:k1": {"id", "key_1", "team", "search"}, ":team:search": {"id", "x"}, "": {"id", "x"}} {
		if _, err := s.Do(ctx, "HSET", "hg:{t:naive}"+suffix, append(more, "rpm", "100000000", "tpm", "1000000000", "budget_nusd", "1000000000000000",
			"budget", "1000000000000000")...); err != nil {
			b.Fatal(err)
		}
	}
	var minute []string
	for cell := range 60 {
		minute = append(minute, fmt.Sprintf("r%d", cell), "1", fmt.Sprintf("t%d", cell), "100")
	}
	for _, name := range []string{"key:key_1", "team:search", "tenant:"} {
		if _, err := s.Do(ctx, "HSET", "hg:{t:naive}:rate:"+name, append(minute, "requests", "60", "tokens", "6000")...); err != nil {
			b.Fatal(err)
		}
	}
	rid := 0
	return func() {
		rid++
		id := fmt.Sprintf("%032x", rid)
		batch := &pipeline.Batch{}
		reply, err := pipeline.Declare(batch, pipeline.Command{Store: s, Script: admit, Key: "hg:{t:naive}", Args: []string{"k1", "356", "400000", id}}, wholesOrText).Wait(ctx)
		if err != nil || reply[0] != "1" {
			b.Fatalf("%v %v", reply, err)
		}
		if _, err := pipeline.Declare(batch, pipeline.Command{Store: s, Script: settle, Key: "hg:{t:naive}",
			Args: []string{id, "key_1", "search", reply[3], "-226", "-400000", "3000", "90", "40"}}, wholesOrText).Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

var evalUsec = regexp.MustCompile(`cmdstat_(?:evalsha|eval):calls=\d+,usec=(\d+)`)

// perRequest is Redis' own CPU per request over one block of them; once does `flush`.
func perRequest(b *testing.B, s *pipeline.Store, flush int, once func()) float64 {
	once()
	before := scriptUsec(b, s)
	for range costBlock / flush {
		once()
	}
	return (scriptUsec(b, s) - before) / costBlock
}

var cpuSeconds = regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`)

// processUsec is the CPU time the whole process has used so far.
func processUsec(b *testing.B, s *pipeline.Store) (sum float64) {
	m, err := s.Do(b.Context(), "INFO", "", "cpu")
	if err != nil {
		b.Fatal(err)
	}
	text, _ := m.ToString()
	for _, f := range cpuSeconds.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(f[1], 64)
		sum += n * 1e6
	}
	return sum
}

// scriptUsec is the time Redis has spent in scripts so far.
func scriptUsec(b *testing.B, s *pipeline.Store) (sum float64) {
	m, err := s.Do(b.Context(), "INFO", "", "commandstats")
	if err != nil {
		b.Fatal(err)
	}
	text, _ := m.ToString()
	for _, f := range evalUsec.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(f[1], 64)
		sum += n
	}
	return sum
}

// wholesOrText is a reply as texts, whatever its elements are.
func wholesOrText(m rueidis.RedisMessage) (out []string, err error) {
	if !m.IsArray() {
		return nil, nil
	}
	list, err := m.ToArray()
	for _, e := range list {
		out = append(out, e.String())
		if n, err := e.AsInt64(); err == nil {
			out[len(out)-1] = strconv.FormatInt(n, 10)
		} else if t, err := e.ToString(); err == nil {
			out[len(out)-1] = t
		}
	}
	return out, err
}
