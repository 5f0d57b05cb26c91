package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/config"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// commandTimeout is how long a command of a person waits for Redis, in all for connecting and per call.
const commandTimeout = 5 * time.Second

// withDirectory runs fn on the directory in HG_REDIS_URL.
func (r *recordCommand) withDirectory(ctx context.Context, fn func(context.Context, *coordinator.Directory) error) error {
	cfg, err := r.config()
	if err != nil {
		return err
	}
	reason := &lastError{}
	store, err := pipeline.NewStore(pipeline.StoreConfig{Name: "redis", URL: cfg.RedisURL, Timeout: commandTimeout, Log: zerolog.New(reason)})
	if err != nil {
		return fmt.Errorf("HG_REDIS_URL: %w", err)
	}
	run, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = store.Run(run) })
	defer wg.Wait()
	defer stop()
	if err := connected(ctx, store, cfg, reason); err != nil {
		return err
	}
	return fn(ctx, coordinator.NewDirectory(store))
}

func connected(ctx context.Context, store *pipeline.Store, cfg config.Config, reason *lastError) error {
	wait, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if store.WaitConnected(wait) == nil {
		return nil
	}
	where := "redis at " + redisHosts(cfg.RedisURL) + " not reached"
	if !cfg.IsSet("HG_REDIS_URL") {
		where += " (HG_REDIS_URL is not set)"
	}
	if text := reason.text(); text != "" {
		where += ": " + text
	}
	return fmt.Errorf("%s", where)
}

// redisHosts is a Redis URL without user, password and parameters.
func redisHosts(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	if end := strings.IndexAny(rest, "/?"); end >= 0 {
		rest = rest[:end]
	}
	return rest[strings.LastIndexByte(rest, '@')+1:]
}

// lastError takes log lines and keeps the error of the last one: why a connection failed.
type lastError struct {
	mu   sync.Mutex
	last string
}

func (l *lastError) Write(line []byte) (int, error) {
	var fields struct{ Error string }
	if json.Unmarshal(line, &fields) == nil && fields.Error != "" {
		l.mu.Lock()
		l.last = fields.Error
		l.mu.Unlock()
	}
	return len(line), nil
}

func (l *lastError) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
