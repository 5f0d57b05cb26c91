package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/pipeline"
)

// settings are the command line.
type settings struct {
	traces, out, redis string
	only, policies     []string // empty: all
	replicas           []int
	speed              float64 // of arrivals, as a multiple of usualSpeed
	capacityMU         int64   // as engines are registered with; 0: not said
	slots              int
	seed               uint64
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	loads, err := s.workloads()
	if err != nil {
		return err
	}
	if s.redis == "" {
		url, stop, err := startRedis()
		if err != nil {
			return err
		}
		defer stop()
		s.redis = url
	}
	store, closed, err := openStore(s.redis)
	if err != nil {
		return err
	}
	defer closed()
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	var all []outcome
	for _, w := range loads {
		found, err := s.compare(w, store, out)
		if err != nil {
			return err
		}
		all = append(all, found...)
		if err := writePlot(filepath.Join(s.out, w.name+".png"), found); err != nil {
			return err
		}
	}
	return writeCSV(filepath.Join(s.out, "replay.csv"), all)
}

func parse(args []string) (settings, error) {
	var s settings
	f := flag.NewFlagSet("replay", flag.ContinueOnError)
	f.StringVar(&s.traces, "traces", "", "directory of traces (README.md names the files); the cuts in testdata if absent")
	f.StringVar(&s.out, "out", filepath.Join("bin", "replay"), "directory for replay.csv and the plots")
	f.StringVar(&s.redis, "redis", "", "URL of an empty Redis; a redis-server of its own if absent")
	only := f.String("only", "", "names of workloads, comma-separated")
	policies := f.String("policies", "", "names of policies, comma-separated")
	replicas := f.String("replicas", "1,4,16", "numbers of gateways")
	f.Float64Var(&s.speed, "speed", 1, "of arrivals, as a multiple of each workload's usual one")
	f.Int64Var(&s.capacityMU, "capacity-mu", 0, "capacity the engines register, in thousandths of MU per second; 0: learned")
	f.IntVar(&s.slots, "slots", 128, "requests an engine runs at once")
	f.Uint64Var(&s.seed, "seed", 1, "of whatever is random")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	s.only, s.policies = list(*only), list(*policies)
	for _, n := range list(*replicas) {
		r, err := strconv.Atoi(n)
		if err != nil || r < 1 {
			return s, fmt.Errorf("replicas %q", n)
		}
		s.replicas = append(s.replicas, r)
	}
	if s.speed <= 0 || s.slots < 1 || s.capacityMU < 0 {
		return s, errors.New("a number below its least")
	}
	return s, nil
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// usualSpeed makes 8 engines busy and keeps them from drowning under the better policies.
var usualSpeed = map[string]float64{"conversation": 1, "synthetic": 1, "code": 6, "azure-conv": 8, "chat": 2, "documents": 2}

// workloads are the traces and the two that are made here.
func (s settings) workloads() ([]workload, error) {
	dir, chats, questions := s.traces, 1500, 6000
	if dir == "" {
		dir, chats, questions = filepath.Join("bench", "replay", "testdata"), 400, 2000
	}
	all, err := loadTraces(dir)
	if err != nil {
		return nil, err
	}
	all = append(all, chat(s.seed, chats), documents(s.seed, questions))
	if len(s.only) > 0 {
		all = slices.DeleteFunc(all, func(w workload) bool { return !slices.Contains(s.only, w.name) })
	}
	return all, nil
}

// compare runs all policies on a workload and prints their lines.
func (s settings) compare(w workload, store *pipeline.Store, out io.Writer) (all []outcome, err error) {
	speed := s.speed * usualSpeed[w.name]
	fmt.Fprintf(out, "\n%s: %d requests, arrivals × %g, 8 engines (Llama-3 8B on A100), KV cache of 430,000 tokens, %d slots\n",
		w.name, len(w.requests), speed, s.slots)
	fmt.Fprintln(out, tableHead)
	for _, p := range s.contestants(store) {
		for _, n := range s.replicas {
			o, err := play(world{workload: w, speed: speed, engines: 8, replicas: n, profile: engine.Profiles["8b-a100"],
				slots: s.slots, kvTokens: 430_000, seed: s.seed}, p)
			if err != nil {
				return nil, fmt.Errorf("%s, %s, %d replicas: %w", w.name, p.name, n, err)
			}
			fmt.Fprintln(out, o.line())
			all = append(all, o)
			if p.alone {
				break
			}
		}
	}
	return all, nil
}

// contestant is a policy by name.
type contestant struct {
	name  string
	alone bool // the number of replicas does not matter to it
	make  func(*simulation) policy
}

func (s settings) contestants(store *pipeline.Store) []contestant {
	all := []contestant{
		{"random", true, func(s *simulation) policy { return randomly{s} }},
		{"round robin", false, newRoundRobin},
		{"least connections", false, func(s *simulation) policy { return leastConnections{newCounting(s, false)} }},
		{"least of the fleet", true, func(s *simulation) policy { return leastConnections{newCounting(s, true)} }},
		{"ring", true, func(s *simulation) policy { return ringed{newCounting(s, false), 0} }},
		{"bounded ring", false, func(s *simulation) policy { return ringed{newCounting(s, false), 1.25} }},
		{"perfect view", true, func(s *simulation) policy { return oracle{s} }},
		{"headgate", false, newHeadgate(store, s.capacityMU)},
	}
	if len(s.policies) > 0 {
		all = slices.DeleteFunc(all, func(c contestant) bool { return !slices.Contains(s.policies, c.name) })
	}
	return all
}

// play runs one policy in one world. An error of Redis voids the run.
func play(w world, c contestant) (o outcome, err error) {
	defer func() {
		if cause, ok := recover().(redisFailed); ok {
			err = cause.error
		}
	}()
	o = newSimulation(w, c.make).run()
	o.policy = c.name
	return o, nil
}
