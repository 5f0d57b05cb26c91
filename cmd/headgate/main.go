// Command headgate is the gateway and the tool to run it: dev, serve and sim start something, tenants, teams, users and
// keys look after the records in Redis. It is the only place where the parts are put together.
//
// Invariants:
//
//	M1. What is wrong with the environment, the catalogue or an argument is one line on stderr; exit status 1, or 2 for a
//	    wrong command line.
//	M2. A key is printed once, alone on stdout, and is in no message.
//	M3. SIGTERM and SIGINT end serve, dev and sim in order, exit status 0; a second one ends them at once: what runs is cut
//	    and billed, exit status 1. A third does not wait for that either.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/config"
	"github.com/headgate/headgate/coordinator"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		coarseSleeps()
	}
	asked, hurry := untilSignals()
	os.Exit(surroundings{environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, hurry: hurry}.run(asked, os.Args[1:]))
}

// sameSignal is how soon after a signal the next one counts as the same: timeout(1) and other wrappers that pass a signal
// on make two of one ctrl-c. No person is as fast.
const sameSignal = 150 * time.Millisecond

// untilSignals returns what ends with the first SIGTERM or SIGINT, and with the second; a third ends the process. // M3
func untilSignals() (asked, hurry context.Context) {
	asked, first := context.WithCancel(context.Background())
	hurry, second := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for _, then := range []func(){first, second, func() { os.Exit(statusFailed) }} {
			<-signals
			then()
			for same := time.After(sameSignal); same != nil; {
				select {
				case <-signals:
				case <-same:
					same = nil
				}
			}
		}
	}()
	return asked, hurry
}

// surroundings is what a command knows of the world.
type surroundings struct {
	environ        []string
	stdin          io.Reader
	stdout, stderr io.Writer
	hurry          context.Context // ends when a command that is ending shall end at once; nil: never
}

// errAtOnce is the end of a command that was told twice.
var errAtOnce = errors.New("ended at once, as the second signal asked")

// atOnce ends when a command that is ending shall end at once.
func (s surroundings) atOnce() context.Context {
	if s.hurry == nil {
		return context.Background()
	}
	return s.hurry
}

// Exit statuses.
const (
	statusFailed = 1
	statusUsage  = 2
)

// usageError is a command line that cannot be understood.
type usageError struct{ error }

// statusError is an end whose status a command promises.
type statusError struct {
	error
	status int
}

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run executes one command line and returns the exit status. // M1
func (s surroundings) run(ctx context.Context, args []string) int {
	root := s.root()
	root.SetArgs(args)
	root.SetOut(s.stdout)
	root.SetErr(s.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(s.stderr, "headgate: "+oneLine(err.Error()))
	var own statusError
	if errors.As(err, &own) {
		return own.status
	}
	var usage usageError
	if errors.As(err, &usage) || errors.Is(err, coordinator.ErrInvalid) {
		return statusUsage
	}
	return statusFailed
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func (s surroundings) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "headgate",
		Short: "An LLM gateway: API keys, limits, budgets and one queue for a fleet of engines",
		Long: `headgate stands in front of vLLM (and other OpenAI-compatible) engines. Replicas share API keys, budgets, limits,
engine slots, a queue and a response cache through Redis; engines are found in Consul or in HG_BACKENDS.

It is configured by environment variables that begin with HG_; flags only choose what a command works on.`,
		Example: `  headgate dev                                          # everything on this machine, nothing installed
  headgate serve                                        # one replica
  headgate keys create --tenant acme --team search --name ci --rpm 60 --budget 50/month --models 'qwen*'`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w (see %s --help)", err, c.CommandPath())
	})
	asGroup(root)
	root.Version = thisBuild().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetHelpCommand(helpCommand(root))
	root.AddCommand(s.dev(), s.serve(), s.sim(), s.ready(), s.version())
	root.AddCommand(s.status(), s.usage(), s.explain(), s.audit())
	for _, kind := range []coordinator.Kind{coordinator.KindTenant, coordinator.KindTeam, coordinator.KindUser, coordinator.KindKey} {
		root.AddCommand(s.records(kind))
	}
	return root
}

// helpCommand is cobra's, except that what it does not know is an error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Explain a command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("no command %q (headgate help lists them)", strings.Join(args, " "))
			}
			return c.Help()
		},
	}
}

// asGroup makes c a command that only has commands below it.
func asGroup(c *cobra.Command) {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf(", did you mean %q?", near[0])
		}
		return usagef("unknown command %q%s (see %s --help)", args[0], hint, c.CommandPath())
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.SuggestionsMinimumDistance = 2
}

// arguments makes a wrong number of arguments a usage error that shows the right form.
func arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return usagef("want %s", strings.ReplaceAll(c.UseLine(), "\n", ", or"))
		}
		return nil
	}
}

// config reads the environment.
func (s surroundings) config() (config.Config, error) {
	cfg, err := config.Load(s.environ)
	if err != nil {
		return cfg, fmt.Errorf("environment: %w", err)
	}
	return cfg, nil
}
