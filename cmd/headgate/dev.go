package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/config"
	"github.com/headgate/headgate/coordinator"
)

// What dev uses where the environment sets nothing.
const (
	devListen = "127.0.0.1:8080"
	devNotice = 0 // nobody balances load over one replica
	devDrain  = 5 * time.Second
	// devRedisTimeout is long: on a laptop that compiles something else nobody is helped by a 503, or by a warning.
	devRedisTimeout = 2 * time.Second
	devTenant       = "dev"
	devModels       = `models:
  qwen-7b:
    aliases: [small]
    price: {prompt: 0.20, cached: 0.05, completion: 0.60}
    max_output_tokens: 4096
    cache: {ttl: 10m}
`
	devEngines = 2
	devSlots   = 8
)

// devLogLevel is quiet: what dev writes is for people.
const devLogLevel = "warn"

// devStart bounds how long dev waits for Redis and for a backend.
const devStart = 10 * time.Second

// instance is a gateway with everything it needs in one process.
type instance struct {
	surroundings
	cfg     config.Config
	log     zerolog.Logger
	redis   *miniredis.Miniredis // nil: HG_REDIS_URL
	models  *catalogue.Store     // nil: none, and no engines of ours
	priced  bool                 // the models are ours: a budget locks none of them out
	engines []*engine.Server
	replica *replica
}

func (s surroundings) dev() *cobra.Command {
	return &cobra.Command{
		DisableFlagsInUseLine: true,
		Use:                   "dev",
		Short:                 "Run everything on this machine, with nothing installed",
		Long: `Runs a replica with an embedded store, two simulated engines, one priced model, one tenant and one key, for whatever
the environment does not set: with HG_REDIS_URL it uses that Redis, with HG_BACKENDS or HG_CONSUL_ADDR those engines,
with HG_CATALOG those models. It prints the key, two curl lines that work as they stand, and each request's usage record.`,
		Example: `  headgate dev
  HG_LISTEN=127.0.0.1:9000 HG_REDIS_URL=redis://127.0.0.1:6379/0 headgate dev`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := s.config()
			if err != nil {
				return err
			}
			i := &instance{surroundings: s, cfg: cfg}
			defer i.close()
			return i.run(c.Context())
		},
	}
}

func (i *instance) run(ctx context.Context) error {
	i.fillIn()
	for _, start := range []func() error{func() error { return i.startRedis(ctx) }, i.startEngines, i.chooseAdminPort} {
		if err := start(); err != nil {
			return err
		}
	}
	var err error
	if i.replica, err = build(i.cfg, substitutes{simple: i.redis != nil, catalogue: i.models, patience: i.cfg.RedisTimeout}, i.log); err != nil {
		return err
	}
	return i.replica.run(ctx, conduct{started: i.welcome, waiting: i.waiting, hurry: i.atOnce()})
}

// waiting says why ctrl-c has not ended it yet.
func (i *instance) waiting(running int) {
	thing := "request"
	if running > 1 {
		thing = "requests"
	}
	fmt.Fprintf(i.stderr, "waiting for %d %s; ctrl-c again to end at once\n", running, thing)
}

// fillIn sets what the environment does not.
func (i *instance) fillIn() {
	c := &i.cfg
	c.Listen = orDefault(*c, "HG_LISTEN", c.Listen, devListen)
	c.NoticeTime = orDefault(*c, "HG_NOTICE_TIME", c.NoticeTime, devNotice)
	c.RedisTimeout = orDefault(*c, "HG_REDIS_TIMEOUT", c.RedisTimeout, devRedisTimeout)
	c.DrainTime = orDefault(*c, "HG_DRAIN_TIME", c.DrainTime, max(devDrain, c.RedisTimeout))
	c.LogLevel = orDefault(*c, "HG_LOG_LEVEL", c.LogLevel, devLogLevel)
	i.log = logger(i.stderr, c.LogLevel)
}

// orDefault is value where the environment sets name, else fallback.
func orDefault[T any](cfg config.Config, name string, value, fallback T) T {
	if cfg.IsSet(name) {
		return value
	}
	return fallback
}

// startRedis starts the embedded store, or makes sure that the one of the environment is there: nothing works without.
func (i *instance) startRedis(ctx context.Context) (err error) {
	if i.cfg.IsSet("HG_REDIS_URL") {
		_, stop, err := dial(ctx, i.cfg)
		if err == nil {
			stop()
		}
		return err
	}
	if i.redis, err = miniredis.Run(); err != nil {
		return fmt.Errorf("embedded store: %w", err)
	}
	i.cfg.RedisURL = "redis://" + i.redis.Addr() + "/0"
	return nil
}

// startEngines runs simulated engines for every pool of the catalogue.
func (i *instance) startEngines() error {
	own := !i.cfg.IsSet("HG_BACKENDS") && !i.cfg.IsSet("HG_CONSUL_ADDR")
	switch {
	case i.cfg.IsSet("HG_CATALOG"):
		var err error
		if i.models, err = openCatalogue(i.cfg.Catalog, i.log); err != nil {
			return err
		}
	case own:
		models, err := catalogue.Parse([]byte(devModels))
		if err != nil {
			return err
		}
		i.models, i.priced = catalogue.NewStore(models), true
	}
	if !own {
		return nil
	}
	pools, models := poolsOf(i.models.Current())
	for _, pool := range pools {
		for range devEngines {
			server, err := engine.Start(engine.Options{Models: models[pool], Slots: devSlots})
			if err != nil {
				return fmt.Errorf("simulated engine: %w", err)
			}
			i.engines = append(i.engines, server)
			i.cfg.Backends = append(i.cfg.Backends, config.StaticBackend{Pool: pool, URL: server.URL, Slots: devSlots,
				ID: fmt.Sprintf("b%d", len(i.engines))})
		}
	}
	return nil
}

// poolsOf is the pools of a catalogue in order, and the models of each.
func poolsOf(c *catalogue.Catalogue) (pools []string, models map[string][]string) {
	models = map[string][]string{}
	for _, name := range c.Names() {
		if m, ok := c.Resolve(name); ok {
			if !slices.Contains(pools, m.Pool) {
				pools = append(pools, m.Pool)
			}
			models[m.Pool] = append(models[m.Pool], name)
		}
	}
	return pools, models
}

// chooseAdminPort takes any port where the usual one is taken and nobody asked for it.
func (i *instance) chooseAdminPort() error {
	if i.cfg.IsSet("HG_ADMIN_LISTEN") {
		return nil
	}
	l, err := net.Listen("tcp", i.cfg.AdminListen)
	if errors.Is(err, syscall.EADDRINUSE) {
		i.cfg.AdminListen = "127.0.0.1:0"
		return nil
	}
	if err != nil {
		return fmt.Errorf("HG_ADMIN_LISTEN: %w", err)
	}
	return l.Close()
}

// welcome makes the key and says what can be done with it.
func (i *instance) welcome(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	if err := i.replica.store.WaitConnected(ctx); err != nil {
		return err
	}
	directory := coordinator.NewDirectory(i.replica.store)
	if err := dropExpired(ctx, directory); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	policy := coordinator.Changes{"name": "dev", "rpm": "600", "expires_at": "24h"}
	if i.priced {
		policy["budget"] = "10/day"
	}
	_, key, err := directory.CreateKey(ctx, devTenant, policy)
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	model := i.awaitModel(ctx)
	url := "http://" + reachable(i.replica.public.Addr())
	_, err = fmt.Fprintf(i.stdout, `headgate %s

  url    %s/v1
  key    %s
  redis  %s
  admin  http://%s  (/readyz, /metrics, /capacity)

  %s
  %s

For another terminal, so that headgate and redis-cli mean these:
  %s

press ctrl-c to end; usage records follow, one per request

`, thisBuild().release, url, key, shownURL(i.cfg.RedisURL), reachable(i.replica.private.Addr()),
		curl(url, key, model, false), curl(url, key, model, true), i.shellLine())
	return err
}

// shellLine makes a shell's headgate and redis-cli those of this instance.
func (i *instance) shellLine() string {
	program, err := os.Executable()
	if err != nil {
		program = "headgate"
	}
	url := i.cfg.RedisURL
	if shownURL(url) != url {
		url = "" // it has a password: the other terminal has to know it itself
	} else {
		url = "export HG_REDIS_URL=" + url + "; "
	}
	return fmt.Sprintf(`%salias headgate='%s' redis-cli='redis-cli -u "$HG_REDIS_URL"'`, url, strings.ReplaceAll(program, "'", `'\''`))
}

// dropExpired removes the keys of earlier runs, which a Redis that outlives them still has.
func dropExpired(ctx context.Context, d *coordinator.Directory) error {
	keys, err := d.List(ctx, coordinator.KindKey, devTenant)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if end := k.ExpiresAt(); k.Fields["name"] == "dev" && !end.IsZero() && end.Before(time.Now()) {
			if err := d.Delete(ctx, k.Ref, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitModel returns a model that can be asked now, or the best guess when none can in time.
func (i *instance) awaitModel(ctx context.Context) string {
	for {
		for _, name := range append(i.replica.catalogue.Current().Names(), i.replica.cluster.Models()...) {
			if pool, ok := i.replica.cluster.ModelPool(name); ok {
				if p, ok := i.replica.cluster.Pool(pool); ok && p.Usable() {
					return name
				}
			}
		}
		select {
		case <-ctx.Done():
			fmt.Fprintln(i.stderr, "headgate: no backend is usable yet")
			if names := i.replica.catalogue.Current().Names(); len(names) > 0 {
				return names[0]
			}
			return "MODEL"
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// curl is a line that works as it stands.
func curl(url, key, model string, stream bool) string {
	name, err := json.Marshal(model)
	if err != nil {
		panic(err) // a text always can
	}
	flags, ask, more := "", "Say hello.", ""
	if stream {
		flags, ask, more = "-N ", "Tell me a story.", `,"stream":true` // another prompt: the first one's answer is in the cache
	}
	body := fmt.Sprintf(`{"model":%s,"messages":[{"role":"user","content":"%s"}],"max_tokens":64%s}`, name, ask, more)
	return fmt.Sprintf("curl %s%s/v1/chat/completions -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' -d '%s'",
		flags, url, key, strings.ReplaceAll(body, "'", `'\''`))
}

// reachable is a listener's address as somebody on this machine can use it.
func reachable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// close ends what this process started beside the replica.
func (i *instance) close() {
	for _, e := range i.engines {
		_ = e.Close()
	}
	if i.redis != nil {
		i.redis.Close()
	}
}
