package lua

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

// BenchmarkDecision prints the Redis CPU of one admission and its settlement, in µs, from INFO commandstats, for 1, 3 and 6
// scopes. With YARDSTICK set to a directory that holds naive-admit.lua and naive-settle.lua, it runs those for three
// scopes in between, a hundred requests at a time, and prints the ratio: the median of pairs, for the machine is never quiet.
func BenchmarkDecision(b *testing.B) {
	for _, scopes := range []int{1, 3, 6} {
		b.Run(fmt.Sprintf("scopes=%d", scopes), func(b *testing.B) { decision(b, scopes) })
	}
}

func decision(b *testing.B, scopes int) {
	server := lab.Redis(b)
	s, err := pipeline.NewStore(pipeline.StoreConfig{URL: server.URL(), Timeout: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go s.Run(ctx)
	if err := s.WaitConnected(ctx); err != nil {
		b.Fatal(err)
	}
	theirs := naivePair(b, s)
	blocks := max(b.N/costBlock, 1)
	ours := decider(b, s, scopes)
	var us, them, ratios []float64
	for range blocks {
		us = append(us, perRequest(b, s, ours))
		if theirs != nil {
			them = append(them, perRequest(b, s, theirs))
			ratios = append(ratios, us[len(us)-1]/them[len(them)-1])
		}
	}
	b.ReportMetric(median(us), "redis-µs/request")
	if theirs != nil {
		b.ReportMetric(median(them), "yardstick-µs/request")
		b.ReportMetric(median(ratios), "ratio")
	}
}

// costBlock is how many requests are measured at once.
const costBlock = 100

func median(list []float64) float64 {
	sort.Float64s(list)
	return list[len(list)/2]
}

// decider admits and settles one request each time, for so many scopes with rpm, tpm and a budget.
func decider(b *testing.B, s *pipeline.Store, scopes int) func() {
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
	label := ClaimText(`"request_id":"0123456789","rid":"0123456789abcdef0123456789abcdef","replica":"host-1","tenant":"acme","end_user":"","tags":[],"route":"/v1/chat/completions","model":"qwen-7b","stream":true`)
	record := []byte(`{"time":"2026-11-30T12:00:00.000Z",` + label + fmt.Sprintf(`,"pad":"%0500d"}`, 0))
	rid := 0
	return func() {
		rid++
		a := AdmitArgs{RID: fmt.Sprintf("%032x", rid), KeyHash: "k1", Owner: "host-1", Model: "qwen-7b", Known: true, Priced: true,
			Prompt: 100, Usual: 256, HoldNUSD: 400000, Label: label}
		if scopes >= 6 {
			a.EndUser, a.Tags = "bob", "nightly"
		}
		batch := &pipeline.Batch{}
		r, err := Admit(batch, s, root, a, func(r AdmitReply) AdmitReply { return r }).Wait(ctx)
		if err != nil || r.Verdict != 1 || strings.Count(r.Claim, "t:2") != scopes {
			b.Fatalf("%+v %v", r, err)
		}
		done, err := Settle(batch, s, root, SettleArgs{RID: a.RID, Claim: r.Claim, Keep: true, Prompt: 90, Completion: 40, CostNUSD: 3000,
			Record: record}).Wait(ctx)
		if err != nil || done != Replaced {
			b.Fatalf("%d %v", done, err)
		}
	}
}

// naivePair does one request of the probe each time; nil without YARDSTICK.
func naivePair(b *testing.B, s *pipeline.Store) func() {
	ctx, dir := b.Context(), os.Getenv("YARDSTICK")
	if dir == "" {
		return nil
	}
	naive := func(name string) *pipeline.Script {
		text, err := os.ReadFile(filepath.Join(dir, name+".lua"))
		if err != nil {
			b.Fatal(err)
		}
		return pipeline.NewScript(name, string(text))
	}
	admit, settle := naive("naive-admit"), naive("naive-settle")
	for suffix, more := range map[string][]string{":key:k1": {"id", "key_1", "team", "search"}, ":team:search": {"id", "x"}, "": {"id", "x"}} {
		if _, err := s.Do(ctx, "HSET", "hg:{t:naive}"+suffix, append(more, "rpm", "100000000", "tpm", "1000000000", "budget_nusd", "1000000000000000")...); err != nil {
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

// measure is Redis' own CPU per call of once.
func measure(b *testing.B, s *pipeline.Store, once func()) float64 {
	once()
	before, n := scriptUsec(b, s), 0
	for range b.N {
		once()
		n++
	}
	return (scriptUsec(b, s) - before) / float64(n)
}

// perRequest is measure over one block.
func perRequest(b *testing.B, s *pipeline.Store, once func()) float64 {
	once()
	before := scriptUsec(b, s)
	for range costBlock {
		once()
	}
	return (scriptUsec(b, s) - before) / costBlock
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
