package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/headgate/headgate/bench/load"
)

// smallShape: about 300 bytes in, 413 out, as many clients as keep a core busy.
func (b *bench) smallShape() shape {
	return shape{ask: load.Ask{Bytes: 294, Tokens: 100}, plan: load.Plan{Tokens: 1}, clients: 64, warm: 500 * time.Millisecond, window: b.window, least: 200}
}

// bigShape: a long prompt, a stream that comes at once.
func (b *bench) bigShape(bytes int) shape {
	return shape{ask: load.Ask{Bytes: bytes, Stream: true, Tokens: 100}, plan: load.Plan{Tokens: 1}, clients: 32, warm: 700 * time.Millisecond, window: b.window, least: 100}
}

// small is the table of small requests.
func small(b *bench) error {
	return b.perRequest(b.smallShape(), []pair{{lua, bare}, {luaRedis, bare}, {headgate, bare}, {headgate, lua}, {headgate, luaRedis}})
}

// big is the table of 100 KB prompts.
func big(b *bench) error {
	return b.perRequest(b.bigShape(100_000), []pair{{lua, bare}, {luaRedis, bare}, {headgate, bare}, {headgate, lua}, {headgate, luaRedis}})
}

// perRequest prints CPU per request of everybody in the pairs, and the pairs' ratios.
func (b *bench) perRequest(s shape, pairs []pair) error {
	var found []finding
	for _, p := range pairs {
		f, err := paired(p, b.rounds, func(who string) (float64, error) {
			r, err := b.measure(who, s)
			return per(r.cpu.total(), r.out.Served), err
		})
		if err != nil {
			return err
		}
		found = append(found, f)
	}
	var order []string
	for _, p := range pairs {
		for _, who := range []string{p.reference, p.candidate} {
			if !slices.Contains(order, who) {
				order = append(order, who)
			}
		}
	}
	header("", "CPU µs/request", "user / sys", "requests/s", "p50 / p99 ms", "Redis CPU µs/request")
	for _, who := range order {
		b.row(who)
	}
	fmt.Println()
	return b.ratios("CPU per request", found)
}

// row is the middle of all runs of who.
func (b *bench) row(who string) {
	mid := b.middleOf(who)
	line(who,
		mid(func(r run) float64 { return per(r.cpu.total(), r.out.Served) }),
		fmt.Sprintf("%.1f / %.1f", mid(func(r run) float64 { return per(r.cpu.user, r.out.Served) }), mid(func(r run) float64 { return per(r.cpu.sys, r.out.Served) })),
		fmt.Sprintf("%.0f", mid(func(r run) float64 { return float64(r.out.Served) / r.out.Window.Seconds() })),
		fmt.Sprintf("%.1f / %.1f", mid(func(r run) float64 { return quantile(r.out.Whole, 0.5) }), mid(func(r run) float64 { return quantile(r.out.Whole, 0.99) })),
		mid(func(r run) float64 { return per(r.redis.total(), r.out.Served) }))
}

// middleOf gives the middle of a figure over all runs of who.
func (b *bench) middleOf(who string) func(figure func(run) float64) float64 {
	return func(figure func(run) float64) float64 {
		var all []float64
		for _, r := range b.runs[who] {
			all = append(all, figure(r))
		}
		return middle(slices.Sorted(slices.Values(all)))
	}
}

func (b *bench) ratios(of string, found []finding) error {
	header(of, "÷", "median of pairs (min..max)")
	for _, f := range found {
		line(f.candidate, f.reference, f)
	}
	return b.keep(b.table, found)
}

// sizes is how the cost of a request grows with its prompt.
func sizes(b *bench) error {
	header("prompt", "headgate µs/request", "nginx µs/request", "nginx+Lua µs/request", "headgate ÷ nginx", "headgate ÷ nginx+Lua", "headgate memory MiB, 32 at a time")
	type point struct {
		Bytes                int
		Headgate, Nginx, Lua float64
	}
	var points []point
	for _, bytes := range []int{1_000, 10_000, 100_000, 1_000_000} {
		b.runs = map[string][]run{}
		b.stop(headgate) // so that its memory is of this size alone
		s := b.bigShape(bytes)
		cost := func(who string) (float64, error) {
			r, err := b.measure(who, s)
			return per(r.cpu.total(), r.out.Served), err
		}
		toBare, err := paired(pair{headgate, bare}, b.rounds, cost)
		if err != nil {
			return err
		}
		toLua, err := paired(pair{headgate, lua}, b.rounds, cost)
		if err != nil {
			return err
		}
		mid := func(who string) float64 {
			return b.middleOf(who)(func(r run) float64 { return per(r.cpu.total(), r.out.Served) })
		}
		runs := b.runs[headgate]
		line(fmt.Sprintf("%d KB", bytes/1000), mid(headgate), mid(bare), mid(lua), toBare, toLua, float64(runs[len(runs)-1].memory)/(1<<20))
		points = append(points, point{bytes, mid(headgate), mid(bare), mid(lua)})
	}
	return b.keep("sizes", points)
}

// besideLiteLLM compares small requests with the proxy people take first.
func besideLiteLLM(b *bench) error {
	if b.site.LiteLLM == "" {
		fmt.Println("LiteLLM is not installed here: `make bench-litellm` installs it into .tools where its registry can be reached.")
		return nil
	}
	s := b.smallShape()
	slow := s
	slow.clients, slow.warm, slow.window, slow.least = 16, 3*time.Second, max(b.window, 5*time.Second), 20
	one, slowOne := s, slow
	one.clients, slowOne.clients, slowOne.least = 1, 1, 5
	var rate, alone finding
	var err error
	f, err := paired(pair{liteLLM, headgate}, b.rounds, func(who string) (float64, error) {
		shape := s
		if who == liteLLM {
			shape = slow
		}
		r, err := b.measure(who, shape)
		return per(r.cpu.total(), r.out.Served), err
	})
	if err != nil {
		return err
	}
	header("", "CPU µs/request", "user / sys", "requests/s", "p50 / p99 ms", "Redis CPU µs/request")
	b.row(headgate)
	b.row(liteLLM)
	fmt.Println()
	rate = finding{pair: pair{headgate, liteLLM}}
	for i, r := range b.runs[liteLLM] {
		before, after := b.runs[headgate][i], b.runs[headgate][i+1]
		ours := (before.rate() + after.rate()) / 2
		rate.Ratios = append(rate.Ratios, ours/r.rate())
	}
	straight, err := b.straight(one)
	if err != nil {
		return err
	}
	alone, err = paired(pair{liteLLM, headgate}, b.rounds, func(who string) (float64, error) {
		shape := one
		if who == liteLLM {
			shape = slowOne
		}
		r, err := b.measure(who, shape)
		return max(0.001, quantile(r.out.Whole, 0.5)-straight), err
	})
	if err != nil {
		return err
	}
	header("", "LiteLLM as a multiple of headgate, median of pairs (min..max)")
	line("CPU per request", f)
	line("p50 added, one client", alone)
	header("", "headgate as a multiple of LiteLLM")
	line("requests per second of one core", rate)
	return b.keep("litellm", []finding{f, alone, rate})
}

func (r run) rate() float64 { return float64(r.out.Served) / r.out.Window.Seconds() }

// straight is the p50 without anything between, in milliseconds.
func (b *bench) straight(s shape) (float64, error) {
	if err := load.Tell(b.url, s.plan); err != nil {
		return 0, err
	}
	at, err := addrOf(b.site.Engines[0])
	if err != nil {
		return 0, err
	}
	out, err := load.Run(load.Job{Addr: at, Requests: b.requests(s.ask, 1), Clients: s.clients, Warm: s.warm, Window: s.window})
	if err == nil {
		err = refuse(out, s.least)
	}
	return quantile(out.Whole, 0.5), err
}
