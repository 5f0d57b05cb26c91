package main

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

// used is what a Redis has done so far. Its CPU is that of the whole process: the time it counts for scripts alone is taken from
// the clock, and on a busy machine runs on while the process does not.
type used struct {
	cpu      float64 // µs, with reading and replying
	runs     float64 // of scripts
	commands float64 // that clients sent, and those inside of scripts
}

func (u used) minus(v used) used {
	return used{u.cpu - v.cpu, u.runs - v.runs, u.commands - v.commands}
}

func (u used) plus(v used) used { return used{u.cpu + v.cpu, u.runs + v.runs, u.commands + v.commands} }

func (u used) per(n float64) used { return used{u.cpu / n, u.runs / n, u.commands / n} }

var (
	scriptRuns = regexp.MustCompile(`cmdstat_(?:evalsha|eval):calls=(\d+)`)
	cpuSeconds = regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`)
	allCalls   = regexp.MustCompile(`total_commands_processed:(\d+)`)
)

func usedBy(s *lab.RedisServer) (u used) {
	text := s.CLI("INFO", "everything")
	for _, f := range scriptRuns.FindAllStringSubmatch(text, -1) {
		u.runs += number(f[1])
	}
	for _, f := range cpuSeconds.FindAllStringSubmatch(text, -1) {
		u.cpu += number(f[1]) * 1e6
	}
	for _, f := range allCalls.FindAllStringSubmatch(text, -1) {
		u.commands += number(f[1])
	}
	return u
}

// during is what nodes do while fn runs.
func during(nodes []*lab.RedisServer, fn func()) []used {
	before := make([]used, len(nodes))
	for i, n := range nodes {
		before[i] = usedBy(n)
	}
	fn()
	after := make([]used, len(nodes))
	for i, n := range nodes {
		after[i] = usedBy(n).minus(before[i])
	}
	return after
}

func number(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// median of some runs, by CPU.
func median(all []used) used {
	slices.SortFunc(all, func(a, b used) int { return int(a.cpu - b.cpu) })
	return all[len(all)/2]
}

// pile is the keys of one kind.
type pile struct {
	keys           int
	entries, bytes int64
}

// memory is what a Redis holds, by the kind of key: what follows the hash tag.
func memory(b *bench, s *pipeline.Store) map[string]pile {
	piles := map[string]pile{}
	for _, key := range texts(b, s, "KEYS", "hg:*") {
		kind := kindOf(key)
		p := piles[kind]
		p.keys++
		p.bytes += whole(b, s, "MEMORY", "USAGE", key, "SAMPLES", "0")
		p.entries += entries(b, s, key)
		piles[kind] = p
	}
	return piles
}

// kindOf is the part of a key's name that says what it is: rate, spend, open, prefix, …
func kindOf(key string) string {
	_, rest, tagged := strings.Cut(key, "}")
	switch {
	case !tagged && strings.HasSuffix(key, ":tenants"):
		return "replica:tenants"
	case !tagged:
		return key
	case rest == "":
		return "policy"
	}
	return strings.Split(rest, ":")[1]
}

func entries(b *bench, s *pipeline.Store, key string) int64 {
	m, err := s.Do(context.Background(), "TYPE", key)
	b.must(err)
	kind, err := m.ToString()
	b.must(err)
	count := map[string]string{"hash": "HLEN", "zset": "ZCARD", "stream": "XLEN", "set": "SCARD", "list": "LLEN"}[kind]
	if count == "" {
		return 1
	}
	return whole(b, s, count, key)
}

func whole(b *bench, s *pipeline.Store, command string, args ...string) int64 {
	m, err := s.Do(context.Background(), command, "", args...)
	b.must(err)
	if m.IsNil() { // gone meanwhile
		return 0
	}
	n, err := m.ToInt64()
	b.must(err)
	return n
}

func texts(b *bench, s *pipeline.Store, command string, args ...string) []string {
	m, err := s.Do(context.Background(), command, "", args...)
	b.must(err)
	all, err := m.AsStrSlice()
	b.must(err)
	return all
}
