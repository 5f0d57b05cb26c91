package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/headgate/headgate/pipeline"
)

// keepsKeys is nil when the Redis of the ledger throws nothing away: an evicted counter is a budget that is full again.
// INFO tells it, or else CONFIG; where both are forbidden, nothing can be said against it.
func keepsKeys(ctx context.Context, store *pipeline.Store) error {
	policy := informed(ctx, store)
	if policy == "" {
		policy = configured(ctx, store)
	}
	if strings.HasPrefix(policy, "allkeys-") || strings.HasPrefix(policy, "volatile-") {
		return fmt.Errorf("maxmemory-policy is %s: it would evict budgets and limits; set it to noeviction", policy)
	}
	return nil
}

func configured(ctx context.Context, store *pipeline.Store) string {
	m, err := store.Do(ctx, "CONFIG", "", "GET", "maxmemory-policy")
	if err != nil {
		return ""
	}
	values, err := m.AsStrMap()
	if err != nil {
		return ""
	}
	return values["maxmemory-policy"]
}

func informed(ctx context.Context, store *pipeline.Store) string {
	m, err := store.Do(ctx, "INFO", "", "memory")
	if err != nil {
		return ""
	}
	text, err := m.ToString()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		if policy, ok := strings.CutPrefix(line, "maxmemory_policy:"); ok {
			return strings.TrimSpace(policy)
		}
	}
	return ""
}
