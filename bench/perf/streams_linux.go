package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"encoding/json"

	"github.com/headgate/headgate/bench/load"
)

// pacedShape: streams of 100 tokens, 20 a second each, from prompts of 100 KB; new ones begin as others end.
func (b *bench) pacedShape(streams int) shape {
	plan := load.Plan{TTFT: 20 * time.Millisecond, Pace: 50 * time.Millisecond, Tokens: 100}
	return shape{ask: load.Ask{Bytes: 100_000, Stream: true, Tokens: 100}, plan: plan, clients: streams,
		ramp: 5 * time.Second, warm: 6 * time.Second, window: max(3*b.window, 6*time.Second), least: streams / 4}
}

// stream is CPU per chunk where a core is about 45 % busy.
func stream(b *bench) error {
	s := b.pacedShape(1000)
	var found []finding
	for _, p := range []pair{{headgate, bare}, {headgate, lua}} {
		f, err := paired(p, b.rounds, func(who string) (float64, error) {
			r, err := b.measure(who, s)
			return per(r.cpu.total(), r.chunks()), err
		})
		if err != nil {
			return err
		}
		found = append(found, f)
	}
	b.chunkRows(s, bare, lua, headgate)
	return b.ratios("CPU per chunk", found)
}

// chunks is how many tokens passed in the window.
func (r run) chunks() int { return int(r.out.BodyBytes) / load.EventBytes }

func (b *bench) chunkRows(s shape, all ...string) {
	ideal := s.plan.TTFT + time.Duration(s.plan.Tokens)*s.plan.Pace
	header("", "CPU µs/chunk", "user / sys", "chunks/s", "one core at", "stream p50 / p99 over ideal", "TTFB p50 / p99 ms", "resident MiB")
	for _, who := range all {
		mid := b.middleOf(who)
		over := func(q float64) float64 {
			return mid(func(r run) float64 { return 100 * (quantile(r.out.Whole, q)/(ideal.Seconds()*1000) - 1) })
		}
		line(who, mid(func(r run) float64 { return per(r.cpu.total(), r.chunks()) }),
			fmt.Sprintf("%.1f / %.1f", mid(func(r run) float64 { return per(r.cpu.user, r.chunks()) }), mid(func(r run) float64 { return per(r.cpu.sys, r.chunks()) })),
			fmt.Sprintf("%.0f", mid(func(r run) float64 { return float64(r.chunks()) / r.out.Window.Seconds() })),
			fmt.Sprintf("%.0f %%", mid(func(r run) float64 { return 100 * float64(r.cpu.total()) / float64(r.out.Window) })),
			fmt.Sprintf("%+.1f / %+.1f %%", over(0.5), over(0.99)),
			fmt.Sprintf("%.1f / %.1f", mid(func(r run) float64 { return quantile(r.out.TTFB, 0.5) }), mid(func(r run) float64 { return quantile(r.out.TTFB, 0.99) })),
			fmt.Sprintf("%.0f", mid(func(r run) float64 { return float64(r.memory) / (1 << 20) })))
	}
	fmt.Println()
}

// stretch is how much longer streams take where a core is full: 2,000 at 20 tokens a second.
func stretch(b *bench) error {
	s := b.pacedShape(2000)
	all := []string{bare, headgate, lua, luaRedis}
	for range b.rounds {
		for _, who := range all {
			if _, err := b.measure(who, s); err != nil {
				return err
			}
		}
	}
	b.chunkRows(s, all...)
	return nil
}

// mem is memory per open stream: prompts of 100 KB, the first token received, the answer still open.
func mem(b *bench) error {
	counts := []int{100, 500, 2000, 9500}
	if n, err := strconv.Atoi(b.only); err == nil {
		counts = []int{n}
	}
	all := []string{bare, lua, luaRedis, headgate}
	header("open streams", "nginx KiB each", "nginx+Lua", "nginx+Lua+Redis", "headgate", "headgate, resident MiB in all")
	points := map[string][]float64{}
	for _, n := range counts {
		cells := []any{n}
		for _, who := range all {
			each, sum, err := b.held(who, n)
			if err != nil && who != headgate { // that a peer cannot hold them is a result
				fmt.Fprintln(os.Stderr, err)
				cells, points[who] = append(cells, "fails"), append(points[who], 0)
				b.stop(who)
				continue
			}
			if err != nil {
				return err
			}
			cells = append(cells, each)
			points[who] = append(points[who], each)
			if who == headgate {
				cells = append(cells, sum)
			}
		}
		line(cells...)
	}
	return b.keep("mem", map[string]any{"streams": counts, "kib": points})
}

// held opens n streams through a fresh who and returns what each took, in KiB, and what all of it is, in MiB; the middle of
// the rounds.
func (b *bench) held(who string, n int) (each, sum float64, err error) {
	var eaches, sums []float64
	for range b.rounds {
		b.stop(who)
		each, sum, err := b.hold(who, n, 3*time.Second)
		b.stop(who)
		if err != nil {
			return 0, 0, err
		}
		eaches, sums = append(eaches, each), append(sums, sum)
	}
	return middle(slices.Sorted(slices.Values(eaches))), middle(slices.Sorted(slices.Values(sums))), nil
}

// hold opens n streams, waits for the first token of each and then for so long.
func (b *bench) hold(who string, n int, long time.Duration) (each, sum float64, err error) {
	p, err := b.peer(who)
	if err != nil {
		return 0, 0, err
	}
	if err := load.Tell(b.url, load.Plan{Tokens: 1}); err != nil { // so that it has served before
		return 0, 0, err
	}
	ask := load.Ask{Key: b.site.Key, Bytes: 294, Tokens: 100}
	if _, err := load.Run(load.Job{Addr: p.Addr, Requests: b.requests(ask, 8), Clients: 8, Window: 200 * time.Millisecond}); err != nil {
		return 0, 0, err
	}
	before := rss(p.PID)
	if err := load.Tell(b.url, load.Plan{TTFT: 200 * time.Millisecond, Pace: time.Hour, Tokens: 2}); err != nil {
		return 0, 0, err
	}
	ask = load.Ask{Key: b.site.Key, Bytes: 100_000, Stream: true, Tokens: 100}
	var then int64
	out, err := load.Run(load.Job{Addr: p.Addr, Requests: b.requests(ask, 64), Clients: n, Ramp: time.Duration(n) * time.Millisecond,
		Warm: time.Duration(n)*time.Millisecond + time.Second, Window: long, Hold: true, End: func() { then = rss(p.PID) }})
	if err == nil && (out.Errors > 0 || out.Open != n) {
		err = fmt.Errorf("%v", out)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%s, %d streams: %w: %s", who, n, err, p.Output())
	}
	each, sum = float64(then-before)/1024/float64(n), float64(then)/(1<<20)
	if b.verbose {
		fmt.Fprintf(os.Stderr, "%-16s %d streams: %.1f KiB each, %.0f MiB, %.0f before\n", who, n, each, sum, float64(before)/(1<<20))
	}
	return each, sum, nil
}

// start is the time from the program's start to /readyz, and its memory when idle.
func start(b *bench) error {
	var took, idle []float64
	for range max(b.rounds, 5) {
		b.stop(headgate)
		p, err := b.peer(headgate)
		if err != nil {
			return err
		}
		took = append(took, p.Took.Seconds())
		time.Sleep(3 * time.Second) // idle, with its beats and rounds
		idle = append(idle, float64(rss(p.PID))/(1<<20))
	}
	slices.Sort(took)
	slices.Sort(idle)
	header("", "median (min..max)")
	line("start to ready, s", fmt.Sprintf("%.2f (%.2f..%.2f)", middle(took), took[0], took[len(took)-1]))
	line("resident when idle, MiB", fmt.Sprintf("%.1f (%.1f..%.1f)", middle(idle), idle[0], idle[len(idle)-1]))
	return nil
}

// keep writes figures for the plots.
func (b *bench) keep(name string, figures any) error {
	if b.out == "" {
		return nil
	}
	text, err := json.MarshalIndent(figures, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, name+".json"), append(text, '\n'), 0o644)
}

func addrOf(hostPort string) (netip.AddrPort, error) { return netip.ParseAddrPort(hostPort) }
