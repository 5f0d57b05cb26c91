package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/admin"
	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/config"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway"
	"github.com/headgate/headgate/pipeline"
)

// replica is one gateway of the fleet with everything it is made of.
type replica struct {
	cfg  config.Config
	name string // with the boot nonce
	log  zerolog.Logger

	catalogue *catalogue.Store
	store     *pipeline.Store // what the fleet shares
	answers   *pipeline.Store // the response cache; a client of its own, also where it is the same Redis
	pipeline  *pipeline.Pipeline
	cluster   *cluster.Cluster
	ledger    *coordinator.Ledger
	placement *coordinator.Placement
	usageLog  *gateway.UsageLog
	gateway   *gateway.Gateway
	admin     *admin.Server

	public, private net.Listener
	certificate     *certificate   // of the public port; nil: it speaks cleartext
	roots           *x509.CertPool // nil: the system's

	leaving context.Context // ends when the replica begins to leave: with depart
	depart  context.CancelFunc
}

// cacheTimeout is the longest a request waits for the response cache: what comes later is a miss.
const cacheTimeout = 150 * time.Millisecond

// substitutes are what dev puts in place of what the environment does not set; serve has none.
type substitutes struct {
	simple    bool             // the Redis is the embedded one
	catalogue *catalogue.Store // nil: the file of HG_CATALOG
	patience  time.Duration    // of what serve gives less: the response cache, the watch on readiness
}

// build puts a replica together and opens its ports. Nothing runs before run.
func build(cfg config.Config, instead substitutes, log zerolog.Logger) (*replica, error) {
	r := &replica{cfg: cfg, log: log, catalogue: instead.catalogue, pipeline: pipeline.New()}
	r.leaving, r.depart = context.WithCancel(context.Background())
	var err error
	if r.catalogue == nil {
		if r.catalogue, err = openCatalogue(cfg.Catalog, log); err != nil {
			return nil, err
		}
	}
	if r.roots, err = authorities(cfg.CAFile); err != nil {
		return nil, err
	}
	if err := r.buildStores(instead); err != nil {
		return nil, err
	}
	r.cluster = cluster.New(cluster.Config{ConsulAddr: cfg.ConsulAddr, ConsulService: cfg.ConsulService, Static: static(cfg.Backends), Roots: r.roots}, r.catalogue, log)

	name := replicaName(cfg.ReplicaID)
	r.name = name
	if err := writable(cfg.SpoolDir); err != nil {
		log.Warn().Err(err).Msg("HG_SPOOL_DIR cannot be written: settlements that redis does not acknowledge wait in memory only, and are lost with this process")
	}
	r.ledger = coordinator.NewLedger(coordinator.LedgerConfig{Replica: name, Store: r.store, Pipeline: r.pipeline, SpoolDir: cfg.SpoolDir,
		Serve: cfg.OnRedisDown == config.Serve, Replicas: func() int { return r.placement.Replicas() }, Log: log})
	r.placement = coordinator.NewPlacement(coordinator.PlacementConfig{
		Replica: name, Store: r.store, Pipeline: r.pipeline, Pools: r.pools, OnDead: r.settleDead, QueueLimit: cfg.QueueLimit, Log: log})
	cache := coordinator.NewCache(coordinator.CacheConfig{Store: r.answers, Log: log})
	responses := coordinator.NewResponses(coordinator.ResponsesConfig{Store: r.store, Log: log})

	if r.usageLog, err = gateway.OpenUsageLog(cfg.UsageLog, log); err != nil {
		return nil, err
	}
	metrics := admin.NewMetrics(r.sources())
	r.gateway = gateway.New(gateway.Config{
		Replica: name, MaxBodyBytes: cfg.MaxBodyBytes, FirstTokenTimeout: cfg.FirstTokenTimeout, StreamSilence: cfg.StreamSilence,
		RequestTimeout: cfg.RequestTimeout, QueueWait: cfg.QueueWait, Attempts: cfg.Attempts, ServeAlone: cfg.OnRedisDown == config.Serve, CORSOrigins: cfg.CORSOrigins,
		EngineRoots: r.roots,
	}, gateway.Deps{
		Ledger: r.ledger, Placement: r.placement, Cache: cache, Responses: responses, Cluster: r.cluster, Catalogue: r.catalogue,
		Pipeline: r.pipeline, UsageLog: r.usageLog, Observe: metrics.Observe, Log: log,
	})
	r.admin = admin.New(admin.Config{Token: cfg.AdminToken, Checks: r.checks(instead.simple), Watch: instead.patience, Capacity: r.placement.Capacity}, metrics, log)
	if err := r.listen(); err != nil {
		return nil, errors.Join(err, r.usageLog.Close())
	}
	return r, nil
}

// sources are the figures that are not counted but looked up.
func (r *replica) sources() admin.Sources {
	sources := admin.Sources{
		Version: thisBuild().release, Pools: r.cluster.Pools, Held: r.placement.HeldIn, Waiting: r.placement.WaitingIn,
		Running: func() int { return r.gateway.Running() }, PromptBytes: func() int64 { return r.gateway.PromptBytes() },
		Backlog: map[string]func() int{"redis": r.store.Backlog, "cache": r.answers.Backlog},
		Open:    r.ledger.Open, Unsettled: r.ledger.Unsettled, BeatAge: r.placement.LastBeat,
		Catalogue: r.catalogue.Current, LastLoad: r.catalogue.LastLoad, Capacity: r.placement.Capacity,
	}
	if r.cfg.ConsulAddr != "" {
		sources.ConsulUp = r.cluster.ConsulUp
	}
	return sources
}

func openCatalogue(path string, log zerolog.Logger) (*catalogue.Store, error) {
	store, err := catalogue.Open(path, log)
	if err != nil {
		return nil, fmt.Errorf("HG_CATALOG: %w", err)
	}
	return store, nil
}

func (r *replica) buildStores(instead substitutes) (err error) {
	simple := instead.simple
	cacheURL := r.cfg.CacheRedisURL
	if cacheURL == "" {
		cacheURL = r.cfg.RedisURL
	} else {
		simple = false
	}
	if r.store, err = pipeline.NewStore(pipeline.StoreConfig{Name: "redis", URL: r.cfg.RedisURL, Timeout: r.cfg.RedisTimeout,
		Roots: r.roots, Simple: simple, Log: r.log}); err != nil {
		return fmt.Errorf("HG_REDIS_URL: %w", err)
	}
	if r.answers, err = pipeline.NewStore(pipeline.StoreConfig{Name: "cache", URL: cacheURL, Timeout: max(min(cacheTimeout, r.cfg.RedisTimeout), instead.patience),
		Roots: r.roots, Simple: simple, Log: r.log}); err != nil {
		return fmt.Errorf("HG_CACHE_REDIS_URL: %w", err)
	}
	return nil
}

// checks are what makes this replica ready.
func (r *replica) checks(simple bool) []admin.Check {
	checks := []admin.Check{
		{Name: "redis", Ready: r.store.Ready},
		{Name: "beat", Ready: func(context.Context) error { return r.placement.Beating() }},
		{Name: "consul", Ready: func(context.Context) error { return r.cluster.Ready() }},
		{Name: "announcements", Needs: "redis", Mild: true, Ready: func(context.Context) error { return r.placement.Hearing() }},
	}
	if !simple {
		checks = append(checks, admin.Check{Name: "eviction_policy", Needs: "redis", Ready: func(ctx context.Context) error { return keepsKeys(ctx, r.store) }})
	}
	return checks
}

// pools is the cluster as placement wants to know it.
func (r *replica) pools() []coordinator.PoolView {
	pools := r.cluster.Pools()
	views := make([]coordinator.PoolView, len(pools))
	for i, p := range pools {
		views[i] = coordinator.PoolView{Name: p.Name, Backends: make([]coordinator.BackendFacts, len(p.Backends))}
		for j, b := range p.Backends {
			views[i].Backends[j] = coordinator.BackendFacts{ID: b.ID, Address: b.Host, Slots: b.Slots, Draining: b.Draining || b.Critical(),
				CapacityMU: 1000 * b.CapacityMU, Models: strings.Join(b.Models, ",")}
		}
	}
	return views
}

// settleDead charges what a dead replica had reserved.
func (r *replica) settleDead(ctx context.Context, replica string) error {
	n, err := r.ledger.Expire(ctx, replica)
	if n > 0 {
		r.log.Warn().Str("replica", replica).Int("reservations", n).Msg("a replica died: its reservations are charged at their holds")
	}
	return err
}

func (r *replica) listen() (err error) {
	if r.cfg.TLSCert != "" {
		if r.certificate, err = openCertificate(r.cfg.TLSCert, r.cfg.TLSKey, r.log); err != nil {
			return err
		}
	}
	if r.public, err = listen("HG_LISTEN", r.cfg.Listen); err != nil {
		return err
	}
	if r.private, err = listen("HG_ADMIN_LISTEN", r.cfg.AdminListen); err != nil {
		r.public.Close()
		return err
	}
	return nil
}

// listen says in one line, by the variable's name, why a port cannot be had.
func listen(name, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is taken by another process (set %s to another port)", name, addr, name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

func static(backends config.StaticBackends) []cluster.Static {
	all := make([]cluster.Static, len(backends))
	for i, b := range backends {
		all[i] = cluster.Static{Pool: b.Pool, URL: b.URL, Slots: b.Slots, ID: b.ID}
	}
	return all
}

// replicaName is id and a boot nonce: two starts never share leases. It fits the 64 characters of ids in key names.
func replicaName(id string) string {
	var nonce [4]byte
	rand.Read(nonce[:])
	return id[:min(len(id), 55)] + "-" + hex.EncodeToString(nonce[:])
}

// writable makes the directory and a file in it.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "try-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
