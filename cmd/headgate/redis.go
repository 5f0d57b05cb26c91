package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
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
	return r.withStore(ctx, func(ctx context.Context, store *pipeline.Store) error {
		return fn(ctx, coordinator.NewDirectory(store))
	})
}

// dial connects to HG_REDIS_URL. The store runs until stop is called. The error says in one line what is wrong.
func dial(ctx context.Context, cfg config.Config) (store *pipeline.Store, stop func(), err error) {
	store, stop, err = connect(ctx, cfg, false)
	if err != nil {
		return nil, nil, err
	}
	// The store inside of dev takes scripts without their first line only.
	if _, err := store.Do(ctx, "EVAL", "", "#!lua\nreturn 1", "0"); err != nil && strings.Contains(err.Error(), "compiling") {
		stop()
		return connect(ctx, cfg, true)
	}
	return store, stop, nil
}

func connect(ctx context.Context, cfg config.Config, simple bool) (store *pipeline.Store, stop func(), err error) {
	wait, end := context.WithTimeout(ctx, commandTimeout)
	defer end()
	reason := &lastError{lasting: end}
	roots, err := authorities(cfg.CAFile)
	if err != nil {
		return nil, nil, err
	}
	store, err = pipeline.NewStore(pipeline.StoreConfig{Name: "redis", URL: cfg.RedisURL, Timeout: commandTimeout,
		Roots: roots, Simple: simple, Log: zerolog.New(reason)})
	if err != nil {
		return nil, nil, fmt.Errorf("HG_REDIS_URL: %w", err)
	}
	run, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = store.Run(run) })
	stop = func() { cancel(); wg.Wait() }
	if store.WaitConnected(wait) != nil {
		stop()
		if ctx.Err() != nil {
			return nil, nil, fmt.Errorf("redis at %s not reached: interrupted", redisHosts(cfg.RedisURL))
		}
		return nil, nil, unreachable(cfg, reason.text())
	}
	return store, stop, nil
}

// unreachable says why Redis cannot be used; text is what the client met.
func unreachable(cfg config.Config, text string) error {
	where := "redis at " + redisHosts(cfg.RedisURL)
	if !cfg.IsSet("HG_REDIS_URL") {
		where += " (HG_REDIS_URL is not set)"
	}
	secure := strings.HasPrefix(cfg.RedisURL, "rediss:")
	switch {
	case text == "", strings.Contains(text, "deadline exceeded"):
		return fmt.Errorf("%s does not answer: nothing came in %v%s", where, commandTimeout, tlsHint(secure))
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%s does not speak TLS (rediss:// asks for it): try redis://", where)
	case strings.Contains(text, "x509:"), strings.Contains(text, "tls:"):
		return fmt.Errorf("%s: TLS: %s", where, text)
	case refuses.MatchString(text):
		return fmt.Errorf("%s refuses: %s", where, text)
	case strings.Contains(text, "EOF"), strings.Contains(text, "timeout"), strings.Contains(text, "reset by peer"):
		return fmt.Errorf("%s does not answer as a Redis does: %s%s", where, text, tlsHint(secure))
	}
	return fmt.Errorf("%s not reached: %s", where, text)
}

// refuses is an error that Redis itself replied: a wrong database, user or password.
var refuses = regexp.MustCompile(`^(ERR|[A-Z]{5,}) |DB index|invalid username-password|NOAUTH|WRONGPASS|NOPERM`)

func tlsHint(secure bool) string {
	if secure {
		return " (does it speak TLS? if not, redis://)"
	}
	return " (does it want TLS? then rediss://)"
}

// shownURL is a Redis URL without its password.
func shownURL(raw string) string {
	scheme, rest, _ := strings.Cut(raw, "://")
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndexByte(rest[:end], '@')
	if at < 0 {
		return raw
	}
	user, _, secret := strings.Cut(rest[:at], ":")
	if secret {
		user += ":…"
	}
	return scheme + "://" + user + rest[at:]
}

// redisHosts is a Redis URL without user, password and parameters.
func redisHosts(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	if end := strings.IndexAny(rest, "/?"); end >= 0 {
		rest = rest[:end]
	}
	return rest[strings.LastIndexByte(rest, '@')+1:]
}

// lastError takes log lines and keeps the error of the last one: why a connection failed. lasting is called with one
// that trying again does not mend.
type lastError struct {
	lasting func()
	mu      sync.Mutex
	last    string
}

func (l *lastError) Write(line []byte) (int, error) {
	var fields struct{ Error string }
	if json.Unmarshal(line, &fields) == nil && fields.Error != "" {
		l.mu.Lock()
		l.last = fields.Error
		l.mu.Unlock()
		if refuses.MatchString(fields.Error) || strings.Contains(fields.Error, "tls:") {
			l.lasting()
		}
	}
	return len(line), nil
}

func (l *lastError) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
