package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// lookCommand is a command that looks at what the fleet has in Redis and changes nothing.
type lookCommand struct {
	surroundings
	json bool
	logs []string
}

func (l *lookCommand) command(use, short, example string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: strings.TrimRight(example, "\n"), DisableFlagsInUseLine: true, Args: arguments(0, 0)}
	c.Flags().BoolVar(&l.json, "json", false, "print JSON")
	return c
}

// withStore runs fn on the Redis of HG_REDIS_URL.
func (s surroundings) withStore(ctx context.Context, fn func(context.Context, *pipeline.Store) error) error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	store, stop, err := dial(ctx, cfg)
	if err != nil {
		return err
	}
	defer stop()
	err = fn(ctx, store)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("redis at %s does not answer: nothing came in %v", redisHosts(cfg.RedisURL), commandTimeout)
	}
	return err
}

// tenantNames is the tenant asked for, or all of the directory.
func tenantNames(ctx context.Context, store *pipeline.Store, asked string) ([]string, error) {
	if asked != "" {
		return []string{asked}, nil
	}
	entries, err := coordinator.NewDirectory(store).List(ctx, coordinator.KindTenant, "")
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Tenant
	}
	return names, nil
}

func tenantThere(ctx context.Context, store *pipeline.Store, tenant string) (bool, error) {
	there, err := store.Do(ctx, "EXISTS", coordinator.TenantRoot(tenant))
	if err != nil {
		return false, err
	}
	n, err := there.AsInt64()
	return n > 0, err
}

// openLogs opens the usage logs that were given; - is standard input, once.
func (l *lookCommand) openLogs() (logs []coordinator.UsageLog, end func(), err error) {
	var files []*os.File
	end = func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	stdin := false
	for _, name := range l.logs {
		if name == "-" {
			if stdin {
				end()
				return nil, nil, usagef("--usage-log - is given twice")
			}
			stdin = true
			in := l.stdin
			if in == nil {
				in = strings.NewReader("")
			}
			logs = append(logs, coordinator.UsageLog{Name: "standard input", From: in})
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			end()
			return nil, nil, fmt.Errorf("--usage-log: %w", err)
		}
		files = append(files, f)
		logs = append(logs, coordinator.UsageLog{Name: name, From: f})
	}
	return logs, end, nil
}

func encodeTo(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}

// thousands writes a count for people.
func thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
