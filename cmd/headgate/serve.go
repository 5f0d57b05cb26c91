package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/headgate/headgate/gateway"
	"github.com/headgate/headgate/scripts/lua"
)

func (s surroundings) serve() *cobra.Command {
	return &cobra.Command{
		DisableFlagsInUseLine: true,
		Use:                   "serve",
		Short:                 "Run one replica",
		Long: `Runs one replica of the gateway until SIGTERM or SIGINT. On the signal /readyz answers 503 at once, requests are served
for HG_NOTICE_TIME, then running ones get HG_DRAIN_TIME to end; a second signal cuts and bills what runs, exit status 1.
SIGHUP opens the usage log anew (rename the file first) and reads the models file and the certificate again.

Logs go to stderr, usage records to HG_USAGE_LOG (default: stdout), metrics and readiness to HG_ADMIN_LISTEN.`,
		Example: `  HG_REDIS_URL=redis://10.0.0.5:6379/0 HG_CONSUL_ADDR=127.0.0.1:8500 HG_CATALOG=models.yaml headgate serve
  HG_BACKENDS='qwen-7b=http://10.0.0.7:8000;slots=16' headgate serve`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := s.config()
			if err != nil {
				return err
			}
			r, err := build(cfg, substitutes{}, logger(s.stderr, cfg.LogLevel))
			if err != nil {
				return err
			}
			return r.run(c.Context(), conduct{hurry: s.atOnce()})
		},
	}
}

func logger(w io.Writer, level string) zerolog.Logger {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	parsed, err := zerolog.ParseLevel(level)
	if err != nil {
		parsed = zerolog.InfoLevel // config allows known levels only
	}
	return zerolog.New(zerolog.SyncWriter(w)).Level(parsed).With().Timestamp().Logger()
}

// conduct is how a replica is run.
type conduct struct {
	started func(context.Context) error // called once everything runs; its error ends the replica too; nil: nothing
	waiting func(running int)           // called when the drain begins while requests run; nil: nobody wants to know
	hurry   context.Context             // ends when a leaving replica shall not wait any more
}

// run serves until ctx ends or a part fails, then leaves in order.
func (r *replica) run(ctx context.Context, how conduct) error {
	// Two groups: what writes to Redis ends before the connections do, and /livez and /readyz answer to the last.
	base, work := newGroup(), newGroup()
	server := r.gateway.Server()
	base.start("redis", r.store.Run)
	base.start("cache", r.answers.Run)
	base.start("readiness", r.admin.Watch)
	base.start("admin port", func(ctx context.Context) error { return r.admin.Serve(ctx, r.private) })
	work.start("scripts", r.loadScripts)
	work.start("catalogue", r.catalogue.Watch)
	work.start("certificate", r.certificate.watch)
	work.start("usage log", r.rotateUsage)
	work.start("cluster", r.cluster.Run)
	work.start("ledger", r.ledger.Run)
	work.start("placement", r.placement.Run)
	work.start("readings", r.read)
	work.start("registration", r.register)
	work.start("public port", func(context.Context) error {
		if err := server.Serve(gateway.Listener(r.certificate.cover(r.public), connections(), r.log)); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	r.introduce()
	if how.started != nil {
		work.start("start", how.started)
	}
	select {
	case <-ctx.Done():
		r.serveOn(work, how)
	case <-work.failed:
	case <-base.failed:
	}
	r.leave(server, work, how)
	base.stop()
	err := errors.Join(work.fault(), base.fault(), r.usageLog.Close())
	if err == nil && how.hurry.Err() != nil {
		err = errAtOnce
	}
	return err
}

// introduce says who serves, with what, and what is missing to be of use.
func (r *replica) introduce() {
	line := r.log.Info().Str("version", thisBuild().release).Str("replica", r.name).Str("listen", r.public.Addr().String()).
		Str("admin", r.private.Addr().String()).Str("redis", redisHosts(r.cfg.RedisURL))
	if r.cfg.CacheRedisURL != "" {
		line = line.Str("cache_redis", redisHosts(r.cfg.CacheRedisURL))
	}
	if r.cfg.ConsulAddr != "" {
		line = line.Str("consul", r.cfg.ConsulAddr).Str("service", r.cfg.ConsulService)
	}
	if len(r.cfg.Backends) > 0 {
		line = line.Int("static_backends", len(r.cfg.Backends))
	}
	if r.cfg.Catalog != "" {
		line = line.Str("catalogue", r.cfg.Catalog)
	}
	line.Int("models", len(r.catalogue.Current().Names())).Str("usage_log", r.cfg.UsageLog).Msg("serving")
	if r.cfg.ConsulAddr == "" && len(r.cfg.Backends) == 0 {
		r.log.Warn().Msg("no engine can be found: neither HG_CONSUL_ADDR nor HG_BACKENDS is set")
	}
}

// rotateUsage opens the usage log anew on SIGHUP.
func (r *replica) rotateUsage(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			if err := r.usageLog.Reopen(); err != nil {
				r.log.Error().Err(err).Msg("usage log not opened anew: lines go on to the old file")
			} else {
				r.log.Info().Str("usage_log", r.cfg.UsageLog).Msg("usage log opened anew")
			}
		}
	}
}

// lastBytes is how long connections stay open after the last request was answered.
const lastBytes = time.Second

// serveOn gives load balancers HG_NOTICE_TIME to see that the replica is not ready any more.
func (r *replica) serveOn(work *group, how conduct) {
	r.admin.Drain()
	r.gateway.Leave()
	r.depart()
	r.log.Info().Dur("notice_ms", r.cfg.NoticeTime).Msg("leaving: not ready, still serving")
	notice := time.NewTimer(r.cfg.NoticeTime)
	defer notice.Stop()
	select {
	case <-notice.C:
	case <-how.hurry.Done():
	case <-work.failed:
	}
}

// leave ends requests, then what they left for Redis, then this replica's place in the fleet.
func (r *replica) leave(server *http.Server, work *group, how conduct) {
	r.admin.Drain()
	r.depart()
	drain, cancel := context.WithTimeout(context.Background(), r.cfg.DrainTime)
	defer cancel()
	running := r.gateway.Running()
	r.log.Info().Dur("drain_ms", r.cfg.DrainTime).Int("running", running).Msg("draining")
	if running > 0 && how.waiting != nil && how.hurry.Err() == nil {
		how.waiting(running)
	}
	defer context.AfterFunc(how.hurry, func() {
		r.log.Warn().Int("cut", r.gateway.Running()).Msg("ending at once: running requests are cut and billed")
		cancel()
	})()
	shut, give := context.WithTimeout(context.Background(), r.cfg.DrainTime+lastBytes)
	defer give()
	var closing sync.WaitGroup
	closing.Go(func() { _ = server.Shutdown(shut) })
	r.gateway.Drain(drain)
	// The requests are over, but net/http may still hold the end of an answer.
	defer time.AfterFunc(lastBytes, give).Stop()
	closing.Wait()
	_ = server.Close()
	work.stop()

	r.signOff()
	r.log.Info().Msg("left")
}

// signOff writes what requests left for Redis and takes this replica off the lists.
func (r *replica) signOff() {
	last, done := context.WithTimeout(context.Background(), 4*r.cfg.RedisTimeout)
	defer done()
	ended, end := context.WithCancel(last)
	if end(); r.store.WaitConnected(ended) != nil {
		r.log.Warn().Msg("redis was never reached: nothing was served and nothing is left there")
		return
	}
	// In this order: the ledger repeats what the pipeline could not write.
	if err := errors.Join(r.pipeline.Drain(last, r.store, r.answers), r.ledger.Drain(last)); err != nil {
		r.log.Error().Err(err).Msg("not everything was written to redis")
	}
	if err := r.placement.Leave(last); err != nil {
		r.log.Warn().Err(err).Msg("others will notice in 15 s that this replica is gone")
	}
}

// loadScripts saves the first requests a repeat. What it misses is sent when it is needed.
func (r *replica) loadScripts(ctx context.Context) error {
	if r.store.WaitConnected(ctx) == nil {
		if err := r.store.Load(ctx, lua.All()...); err != nil && ctx.Err() == nil {
			r.log.Debug().Err(err).Msg("scripts not loaded ahead")
		}
	}
	return nil
}

// group runs functions until it is stopped or one of them fails.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	failed chan struct{} // closed with the first failure
	once   sync.Once
	err    error // the first failure; read it when failed is closed or the group was stopped
}

func newGroup() *group {
	g := &group{failed: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// start runs fn; it may end by itself without an error.
func (g *group) start(name string, fn func(context.Context) error) {
	g.wg.Go(func() {
		if err := fn(g.ctx); err != nil && g.ctx.Err() == nil {
			g.once.Do(func() {
				g.err = fmt.Errorf("%s: %w", name, err)
				close(g.failed)
			})
		}
	})
}

// stop ends all and waits for them.
func (g *group) stop() {
	g.cancel()
	g.wg.Wait()
}

// fault is the first failure of a stopped group.
func (g *group) fault() error { return g.err }
