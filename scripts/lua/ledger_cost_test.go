package lua

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

// BenchmarkDecision prints the Redis CPU of one admission and its settlement, in µs, from INFO commandstats. With
// YARDSTICK set to a directory that holds naive-admit.lua and naive-settle.lua, it prints the ratio to them as well.
func BenchmarkDecision(b *testing.B) {
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
	root := "hg:{t:acme}"
	for _, record := range [][]string{
		{":key:k1", "id", "key_1", "name", "ci", "team", "search", "rpm", "100000000", "tpm", "1000000000", "budget_usd", "1000000", "period", "month", "created_at", "1"},
		{":team:search", "rpm", "100000000", "tpm", "1000000000", "budget_usd", "1000000", "period", "month", "created_at", "1"},
		{"", "rpm", "100000000", "tpm", "1000000000", "budget_usd", "1000000", "period", "month", "created_at", "1"},
	} {
		if _, err := s.Do(ctx, "HSET", root+record[0], record[1:]...); err != nil {
			b.Fatal(err)
		}
	}
	label := ClaimText(`"request_id":"0123456789","rid":"0123456789abcdef0123456789abcdef","replica":"host-1","tenant":"acme","end_user":"","tags":[],"route":"/v1/chat/completions","model":"qwen-7b","stream":true`)
	record := []byte(`{"time":"2026-11-30T12:00:00.000Z",` + label + fmt.Sprintf(`,"pad":"%0500d"}`, 0))
	rid := 0
	ours := measure(b, s, func() {
		rid++
		id := fmt.Sprintf("%032x", rid)
		batch := &pipeline.Batch{}
		r, err := Admit(batch, s, root, AdmitArgs{RID: id, KeyHash: "k1", Owner: "host-1", Model: "qwen-7b", Known: true, Priced: true,
			Prompt: 100, Usual: 256, HoldNUSD: 400000, Label: label}, func(r AdmitReply) AdmitReply { return r }).Wait(ctx)
		if err != nil || r.Verdict != 1 {
			b.Fatalf("%+v %v", r, err)
		}
		done, err := Settle(batch, s, root, SettleArgs{RID: id, Claim: r.Claim, Keep: true, Prompt: 90, Completion: 40, CostNUSD: 3000, Record: record}).Wait(ctx)
		if err != nil || done != Replaced {
			b.Fatalf("%d %v", done, err)
		}
	})
	b.ReportMetric(ours, "redis-µs/request")
	dir := os.Getenv("YARDSTICK")
	if dir == "" {
		return
	}
	naive := func(name string) *pipeline.Script {
		text, err := os.ReadFile(filepath.Join(dir, name+".lua"))
		if err != nil {
			b.Fatal(err)
		}
		return pipeline.NewScript(name, string(text))
	}
	admit, settle := naive("naive-admit"), naive("naive-settle")
	if _, err := s.Do(ctx, "HSET", "hg:{t:naive}:key:k1", "id", "key_1", "team", "search", "rpm", "100000000", "tpm", "1000000000", "budget_nusd", "1000000000000000"); err != nil {
		b.Fatal(err)
	}
	for _, k := range []string{"hg:{t:naive}:team:search", "hg:{t:naive}"} {
		if _, err := s.Do(ctx, "HSET", k, "id", "x", "rpm", "100000000", "tpm", "1000000000", "budget_nusd", "1000000000000000"); err != nil {
			b.Fatal(err)
		}
	}
	theirs := measure(b, s, func() {
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
	})
	b.ReportMetric(theirs, "yardstick-µs/request")
	b.ReportMetric(ours/theirs, "ratio")
}

var evalUsec = regexp.MustCompile(`cmdstat_(?:evalsha|eval):calls=\d+,usec=(\d+)`)

// measure is Redis' own CPU per call of once.
func measure(b *testing.B, s *pipeline.Store, once func()) float64 {
	usec := func() (sum float64) {
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
	once()
	before, n := usec(), 0
	for range b.N {
		once()
		n++
	}
	return (usec() - before) / float64(n)
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
