package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/cluster"
)

// simFlags are the flags of one simulated engine.
type simFlags struct {
	options   engine.Options
	consul    string
	service   string
	id        string
	advertise string // host:port that others reach it at
	pool      string
	faults    []string // kind[:after[:times]]
}

// simFaults are the failures --fault takes.
var simFaults = []string{engine.Refuse, engine.CloseBeforeHead, engine.CloseAfterHead, engine.Cut, engine.Reset, engine.HangBeforeHead,
	engine.HangStream, engine.ErrorEvent, engine.NoUsage, engine.NoDone, engine.Garbage, engine.Unhealthy}

// simDrain is how long a simulated engine that was told to end goes on with what runs.
const simDrain = 10 * time.Second

func (s surroundings) sim() *cobra.Command {
	f := simFlags{}
	c := &cobra.Command{
		DisableFlagsInUseLine: true,
		Use:                   "sim [flags]",
		Short:                 "Run a simulated engine",
		Long: `A simulated vLLM engine: it computes nothing, but takes the time a real one would (prefill by uncached tokens, decode
by batch, prefix blocks, slots) and answers like one. With --consul it is registered there, with a health check, until
it ends; Consul and the replicas must reach it at --advertise.

--fault kind[:after[:times]] makes requests fail: after so many events of a stream (default 0), so many times (default 0: always).
Kinds: ` + strings.Join(simFaults, ", ") + `, or a status from 400 to 599. While it runs, POST /sim/faults takes the same
as JSON, {"kind":"cut","after":3,"times":1,"delay":"150ms"}, and DELETE /sim/faults ends them.`,
		Example: `  headgate sim --model qwen-7b --slots 8
  headgate sim --listen :8000 --advertise engine-1:8000 --model qwen-7b --consul 127.0.0.1:8500
  headgate sim --fault cut:3:1 --fault 503`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return s.runSim(c.Context(), f) },
	}
	c.Flags().StringVar(&f.options.Listen, "listen", "127.0.0.1:8000", "address to listen on")
	c.Flags().StringSliceVar(&f.options.Models, "model", []string{"qwen-7b"}, "model it serves; may repeat")
	c.Flags().IntVar(&f.options.Slots, "slots", 8, "requests computed at one time")
	c.Flags().Float64Var(&f.options.Speed, "speed", 1, "1 is the speed of the hardware, 10 ten times as fast")
	c.Flags().StringVar(&f.options.Profile, "profile", "8b-a100", "hardware: 8b-h100, 8b-a100, 70b-2xh100")
	c.Flags().IntVar(&f.options.MaxModelLen, "max-model-len", 32768, "tokens of prompt and answer together")
	c.Flags().StringVar(&f.consul, "consul", "", "Consul agent to register with (host:port)")
	c.Flags().StringVar(&f.service, "service", "vllm", "service name in Consul")
	c.Flags().StringVar(&f.id, "id", "", "service id in Consul (default: sim-<host>-<port>)")
	c.Flags().StringVar(&f.advertise, "advertise", "", "address that replicas and Consul reach it at (default: --listen)")
	c.Flags().StringArrayVar(&f.faults, "fault", nil, "failure, as kind[:after[:times]]; may repeat")
	c.Flags().StringVar(&f.pool, "pool", "", "pool it belongs to (default: that of its first model)")
	return c
}

func (s surroundings) runSim(ctx context.Context, f simFlags) error {
	faults, err := f.check()
	if err != nil {
		return err
	}
	server, err := engine.Start(f.options)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--listen: %s is taken by another process (set --listen to another port)", f.options.Listen)
	}
	if err != nil {
		return err
	}
	defer server.Close()
	if len(faults) > 0 {
		if err := server.SetFault(faults...); err != nil {
			return err
		}
	}
	fmt.Fprintf(s.stdout, "simulated engine for %s on %s\n", strings.Join(f.options.Models, ", "), server.URL)
	if f.consul == "" {
		<-ctx.Done()
	} else {
		registration, err := f.registration(server.Addr)
		if err != nil {
			return err
		}
		log := zerolog.New(s.stderr).With().Timestamp().Logger()
		if err := cluster.Register(ctx, f.consul, registration, log); err != nil {
			return err
		}
	}
	finish(server, s.atOnce())
	if s.atOnce().Err() != nil {
		return errAtOnce
	}
	return nil
}

// check judges the flags and reads the faults.
func (f simFlags) check() ([]engine.Fault, error) {
	switch o := f.options; {
	case o.Speed <= 0:
		return nil, usagef("--speed %v: want more than 0", o.Speed)
	case o.Slots < 1:
		return nil, usagef("--slots %d: want 1 or more", o.Slots)
	case o.MaxModelLen < 2:
		return nil, usagef("--max-model-len %d: want 2 or more", o.MaxModelLen)
	case len(o.Models) == 0 || slices.Contains(o.Models, ""):
		return nil, usagef("--model: want a name")
	case engine.Profiles[o.Profile] == engine.Profile{}:
		return nil, usagef("--profile %s: want one of %s", o.Profile, strings.Join(slices.Sorted(maps.Keys(engine.Profiles)), ", "))
	}
	faults := make([]engine.Fault, len(f.faults))
	for i, text := range f.faults {
		var err error
		if faults[i], err = parseFault(text); err != nil {
			return nil, err
		}
	}
	return faults, nil
}

// parseFault reads kind[:after[:times]].
func parseFault(text string) (engine.Fault, error) {
	parts := strings.Split(text, ":")
	f := engine.Fault{Kind: parts[0]}
	if status, err := strconv.Atoi(f.Kind); err == nil && (status < 400 || status > 599) || err != nil && !slices.Contains(simFaults, f.Kind) {
		return f, usagef("--fault %s: want a status from 400 to 599 or one of %s", text, strings.Join(simFaults, ", "))
	}
	for i, value := range []*int{&f.After, &f.Times} {
		if len(parts) <= i+1 {
			break
		}
		n, err := strconv.Atoi(parts[i+1])
		if err != nil || n < 0 {
			return f, usagef("--fault %s: want kind[:after[:times]] with whole numbers", text)
		}
		*value = n
	}
	if len(parts) > 3 {
		return f, usagef("--fault %s: want kind[:after[:times]]", text)
	}
	return f, nil
}

// finish waits until the engine computes nothing, for simDrain at most, or until hurry ends.
func finish(server *engine.Server, hurry context.Context) {
	limit, done := context.WithTimeout(hurry, simDrain)
	defer done()
	for server.Running()+server.Waiting() > 0 && limit.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
}

func (f simFlags) registration(listening string) (cluster.Registration, error) {
	_, port, err := net.SplitHostPort(listening)
	if err != nil {
		return cluster.Registration{}, err
	}
	advertise := f.advertise
	if advertise == "" {
		advertise = listening
	} else if !strings.Contains(advertise, ":") {
		advertise = net.JoinHostPort(advertise, port)
	}
	host, port, err := net.SplitHostPort(advertise)
	if err != nil {
		return cluster.Registration{}, usagef("--advertise %s: want host:port", f.advertise)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return cluster.Registration{}, usagef("--listen %s is not an address others can use: give --advertise host:port", f.options.Listen)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return cluster.Registration{}, errors.New("--advertise: the port is no number")
	}
	r := cluster.Registration{ID: f.id, Service: f.service, Address: host, Port: int(number), HealthURL: "http://" + advertise + "/health",
		Meta: map[string]string{"model": strings.Join(f.options.Models, ","), "slots": strconv.Itoa(f.options.Slots)}}
	if r.ID == "" {
		r.ID = "sim-" + host + "-" + port
	}
	if f.pool != "" {
		r.Meta["pool"] = f.pool
	}
	return r, nil
}
