// Command scanners measures what reading a request's body costs: the gateway's scanner, copies of it without one check
// each, and the libraries that could do the same. See docs/scanner.md for what came out and how to run it.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// found is what every contender has to find: what the gateway decides by, and the beginning of the prompt.
type found struct {
	model, user string
	stream      bool
	maxTokens   int64
	prompt      string // at most promptBytes of the list of messages, as written
}

const promptBytes = 512

// contender is one way to read a body. It may keep nothing of it.
type contender struct {
	name string
	read func(body []byte) (found, error)
}

func main() {
	rounds := flag.Int("rounds", 25, "how often each is measured on each body")
	only := flag.String("only", "", "only libraries whose names contain this")
	flag.Parse()
	runtime.GOMAXPROCS(1)
	if *only == "" {
		printChecks(*rounds)
	}
	var all []contender
	for _, c := range libraries {
		if strings.Contains(c.name, *only) {
			all = append(all, c)
		}
	}
	printLibraries(append([]contender{scanner}, all...), *rounds)
}

// printChecks is the table of the scanner's own checks.
func printChecks(rounds int) {
	all := append([]contender{scanner}, checks...)
	mustAgree(all)
	fmt.Print("| the scanner |")
	for _, b := range bodies {
		fmt.Printf(" %s, ns/KB | difference |", b.name)
	}
	fmt.Print("\n|---|" + strings.Repeat("---|---|", len(bodies)) + "\n")
	times := make([][][]float64, len(bodies))
	for i, b := range bodies {
		times[i] = measure(all, b, rounds)
	}
	for k, c := range all {
		fmt.Printf("| %s |", c.name)
		for i, b := range bodies {
			kb := float64(b.size) / 1024
			if k == 0 {
				fmt.Printf(" %.1f | |", median(times[i][k])/kb)
				continue
			}
			fmt.Printf(" %.1f | %+.1f |", median(times[i][k])/kb, median(minus(times[i][k], times[i][0]))/kb)
		}
		fmt.Println()
	}
	fmt.Println()
}

// printLibraries is the table of everything else.
func printLibraries(all []contender, rounds int) {
	mustAgree(all)
	fmt.Print("| |")
	for _, b := range bodies {
		fmt.Printf(" %s, µs |", b.name)
	}
	fmt.Print(" ns/KB (100 KB) | × the scanner | B, allocations (100 KB) |")
	for _, h := range hostile {
		fmt.Printf(" %s |", h.name)
	}
	fmt.Print("\n|---|" + strings.Repeat("---|", len(bodies)+3+len(hostile)) + "\n")
	times := make([][][]float64, len(bodies))
	for i, b := range bodies {
		times[i] = measure(all, b, rounds)
	}
	for k, c := range all {
		fmt.Printf("| %s |", c.name)
		for i := range bodies {
			fmt.Printf(" %.1f |", median(times[i][k])/1000)
		}
		kb := float64(bodies[1].size) / 1024
		size, n := allocations(c, bodies[1])
		fmt.Printf(" %.0f | %.1f | %d, %d |", median(times[1][k])/kb, median(over(times[1][k], times[1][0])), size, n)
		for _, h := range hostile {
			fmt.Printf(" %s |", h.verdict(c))
		}
		fmt.Println()
	}
	fmt.Println()
}

// mustAgree: a contender that finds something else measures something else.
func mustAgree(all []contender) {
	for _, b := range bodies {
		for _, c := range all {
			for i := range b.texts {
				want := b.want(i)
				got, err := c.read(b.text(i))
				if err != nil || got != want {
					fmt.Fprintf(os.Stderr, "%s on %s: %+v, %v\nwant %+v\n", c.name, b.name, got, err, want)
					os.Exit(1)
				}
			}
		}
	}
}

// measure returns the nanoseconds of processor time one reading took in each round. In a round all contenders take their turns, in an order
// of its own, so that what the machine does meanwhile falls on all.
func measure(all []contender, b body, rounds int) [][]float64 {
	const turn = 15 * time.Millisecond
	times := make([][]float64, len(all))
	count := make([]int, len(all))
	for k, c := range all {
		for started := processorTime(); processorTime()-started < turn; count[k]++ {
			_, _ = c.read(b.text(count[k]))
		}
	}
	for range rounds {
		for _, k := range rand.Perm(len(all)) {
			runtime.GC()
			started := processorTime()
			for i := range count[k] {
				_, _ = all[k].read(b.text(i))
			}
			times[k] = append(times[k], float64((processorTime()-started).Nanoseconds())/float64(count[k]))
		}
	}
	return times
}

// processorTime is what the process has used, garbage collection included; others on the machine do not count.
func processorTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// allocations is what one reading allocates.
func allocations(c contender, b body) (bytes, count uint64) {
	const n = 64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range n {
		_, _ = c.read(b.text(i))
	}
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) / n, (after.Mallocs - before.Mallocs) / n
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.Sort(x)
	return x[len(x)/2]
}

func minus(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] - b[i]
	}
	return out
}

func over(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

func head(b []byte) string { return string(b[:min(len(b), promptBytes)]) }

// messages is the list as written, where a library does not tell where it stands.
func messages(body []byte) []byte {
	_, list, _ := bytes.Cut(body, []byte(`"messages":`))
	if i := bytes.LastIndex(list, []byte(`],"`)); i >= 0 {
		return list[:i+1]
	}
	return list
}
