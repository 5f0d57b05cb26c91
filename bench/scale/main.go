package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// settings are the command line.
type settings struct {
	only     string // sections, comma-separated; "" = all
	rounds   int
	perRound int // requests
	replicas int
	engines  int
	pools    int
	window   time.Duration // of the replay, for each of its states

	out io.Writer
}

var sections = []struct {
	name string
	run  func(settings)
}{
	{"requests", settings.requests},
	{"halves", settings.halves},
	{"primaries", settings.primaries},
	{"duties", settings.duties},
	{"memory", settings.memory},
	{"fleet", settings.fleet},
}

func main() {
	s := settings{out: os.Stdout}
	flag.StringVar(&s.only, "only", "", "sections, comma-separated: requests, halves, primaries, duties, memory, fleet; all by default")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds of requests; the median counts")
	flag.IntVar(&s.perRound, "requests", 6000, "requests of a round")
	flag.IntVar(&s.replicas, "replicas", 100, "of the fleet")
	flag.IntVar(&s.engines, "engines", 1000, "of the fleet")
	flag.IntVar(&s.pools, "pools", 20, "of the fleet")
	flag.DurationVar(&s.window, "window", 10*time.Second, "of the replay of the fleet, for each of its states")
	flag.Parse()
	if err := s.run(); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func (s settings) run() (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			f, ours := cause.(failure)
			if !ours {
				panic(cause)
			}
			err = f.error
		}
	}()
	for _, section := range sections {
		if s.only == "" || slices.Contains(strings.Split(s.only, ","), section.name) {
			section.run(s)
		}
	}
	return nil
}

// title begins a table.
func (s settings) title(text string, columns ...string) {
	fmt.Fprintf(s.out, "\n%s\n\n| %s |\n|%s\n", text, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}

// row is one line of it.
func (s settings) row(cells ...any) {
	for _, c := range cells {
		switch c := c.(type) {
		case float64:
			text := fmt.Sprintf("%.0f", c)
			if c < 100 {
				text = fmt.Sprintf("%.1f", c)
			}
			fmt.Fprintf(s.out, "| %s ", text)
		default:
			fmt.Fprintf(s.out, "| %v ", c)
		}
	}
	fmt.Fprintln(s.out, "|")
}
