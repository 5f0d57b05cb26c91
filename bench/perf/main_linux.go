package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/headgate/headgate/bench/load"
)

// Where things run: what is measured alone, everything else together.
const (
	proxyCore = 0
	restCore  = 1
)

// tables by the name of their command.
var tables = map[string]func(*bench) error{
	"small": small, "big": big, "sizes": sizes, "stream": stream, "stretch": stretch, "mem": mem, "start": start,
	"redis": redisCost, "replicas": replicas, "primaries": primaries, "litellm": besideLiteLLM, "profile": profile,
}

func main() {
	raiseFiles()
	if len(os.Args) == 2 && os.Args[1] == "engine" {
		fail(serveEngine())
		return
	}
	b := &bench{}
	flag.IntVar(&b.rounds, "rounds", 3, "pairs of runs per ratio")
	flag.DurationVar(&b.window, "window", 2*time.Second, "what is counted of a run")
	flag.StringVar(&b.out, "out", "", "directory for the figures as JSON")
	flag.StringVar(&b.only, "only", "", "profile: which table's traffic; mem: how many streams")
	flag.BoolVar(&b.verbose, "v", false, "print every run")
	flag.Parse()
	fail(bind(restCore))
	dir, err := os.MkdirTemp("", "headgate-perf-")
	fail(err)
	code := 0
	if err := b.all(dir, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "perf:", err)
		code = 1
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "perf:", err)
		os.Exit(1)
	}
}

// all makes the tables that were asked for.
func (b *bench) all(dir string, names []string) (err error) {
	if b.site.Binary, err = build(dir); err != nil {
		return err
	}
	b.site.Core, b.site.Rest = proxyCore, restCore
	if path, err := filepath.Abs(".tools/litellm/bin/litellm"); err == nil {
		if _, err := os.Stat(path); err == nil {
			b.site.LiteLLM = path
		}
	}
	defer b.close()
	if err := b.open(); err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() { <-interrupted; b.close(); _ = os.RemoveAll(dir); os.Exit(1) }()
	for _, name := range names {
		table := tables[name]
		if table == nil {
			return fmt.Errorf("no table is called %q", name)
		}
		b.runs, b.table = map[string][]run{}, name
		fmt.Printf("\n<!-- %s: %s, %s/%s, %d pairs of %v, load %s before -->\n", name, time.Now().UTC().Format("2006-01-02 15:04"), runtime.Version(), runtime.GOARCH, b.rounds, b.window, load1())
		if err := table(b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// serveEngine is the process that plays the engines: it prints its ports and serves until its parent ends.
func serveEngine() error {
	e, err := load.NewEngine(engines)
	if err != nil {
		return err
	}
	for _, port := range e.Ports {
		fmt.Println(port)
	}
	return e.Run(context.Background())
}
