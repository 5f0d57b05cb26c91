package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/headgate/headgate/gateway"
	"github.com/headgate/headgate/scripts/lua"
)

func (s surroundings) serve() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run one replica",
		Long: `Runs one replica of the gateway until SIGTERM or SIGINT. On the signal /readyz answers 503 at once, requests are served
for HG_NOTICE_TIME, then running ones get HG_DRAIN_TIME to end; a second signal ends everything at once.

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
			return r.run(c.Context(), func(context.Context) error { return nil })
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

// run serves until ctx ends or a part fails, then leaves in order. started is called once everything runs; its error
// ends the replica too.
func (r *replica) run(ctx context.Context, started func(context.Context) error) error {
	// Two groups: what writes to Redis ends before the connections do, and /livez and /readyz answer to the last.
	base, work := newGroup(), newGroup()
	server := r.gateway.Server()
	base.start("redis", r.store.Run)
	base.start("cache", r.answers.Run)
	base.start("admin port", func(ctx context.Context) error { return r.admin.Serve(ctx, r.private) })
	work.start("scripts", r.loadScripts)
	work.start("catalogue", r.catalogue.Watch)
	work.start("cluster", r.cluster.Run)
	work.start("ledger", r.ledger.Run)
	work.start("placement", r.placement.Run)
	work.start("public port", func(context.Context) error {
		if err := server.Serve(gateway.Listener(r.public)); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	r.log.Info().Str("version", thisBuild().release).Str("listen", r.public.Addr().String()).
		Str("admin", r.private.Addr().String()).Msg("serving")
	work.start("start", started)
	select {
	case <-ctx.Done():
		r.serveOn(work)
	case <-work.failed:
	case <-base.failed:
	}
	r.leave(server, work)
	base.stop()
	return errors.Join(work.fault(), base.fault(), r.usageLog.Close())
}

// lastBytes is how long connections stay open after the last request was answered.
const lastBytes = time.Second

// serveOn gives load balancers HG_NOTICE_TIME to see that the replica is not ready any more.
func (r *replica) serveOn(work *group) {
	r.admin.Drain()
	r.log.Info().Dur("notice", r.cfg.NoticeTime).Msg("leaving: not ready, still serving")
	notice := time.NewTimer(r.cfg.NoticeTime)
	defer notice.Stop()
	select {
	case <-notice.C:
	case <-work.failed:
	}
}

// leave ends requests, then what they left for Redis, then this replica's place in the fleet.
func (r *replica) leave(server *http.Server, work *group) {
	r.admin.Drain()
	drain, cancel := context.WithTimeout(context.Background(), r.cfg.DrainTime)
	defer cancel()
	r.log.Info().Dur("drain", r.cfg.DrainTime).Int("running", r.gateway.Running()).Msg("draining")
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

	last, done := context.WithTimeout(context.Background(), 4*r.cfg.RedisTimeout)
	defer done()
	// In this order: the ledger repeats what the pipeline could not write.
	if err := errors.Join(r.pipeline.Drain(last, r.store, r.answers), r.ledger.Drain(last)); err != nil {
		r.log.Error().Err(err).Msg("not everything was written to redis")
	}
	if err := r.placement.Leave(last); err != nil {
		r.log.Warn().Err(err).Msg("others will notice in 15 s that this replica is gone")
	}
	r.log.Info().Msg("left")
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
