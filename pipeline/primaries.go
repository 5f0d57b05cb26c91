package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// topologyEvery is how often a store looks where the primaries are, beside what errors and announcements tell it: an
// announcement may be missed, and a frozen node says nothing.
const topologyEvery = time.Second

// followPrimaries has the client look by itself, and wait for no sentinel that does not answer.
func followPrimaries(option *rueidis.ClientOption) {
	option.ClusterOption.ShardsRefreshInterval = topologyEvery
	option.Sentinel.TopologyRefreshInterval = topologyEvery
	option.Sentinel.Dialer = option.Dialer
}

// Primaries is the replication id of every primary behind the store, sorted. One that was there and is no more was
// replaced, or started again without its memory: what it acknowledged last may be gone with it. While one of them cannot be
// asked it is an error. Nil without an error: this user may not ask, or the store is embedded.
func (s *Store) Primaries(ctx context.Context) ([]string, error) {
	client := s.client.Load()
	if client == nil {
		return nil, ErrUnavailable
	}
	if s.cfg.Simple {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var ids []string
	var errs []error
	for addr, node := range (*client).Nodes() {
		wg.Go(func() {
			id, err := primaryID(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			if id != "" {
				ids = append(ids, id)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", addr, err))
			}
		})
	}
	wg.Wait()
	slices.Sort(ids)
	return ids, errors.Join(errs...)
}

// primaryID is "" for a replica, and where the user may not ask.
func primaryID(ctx context.Context, node rueidis.Client) (string, error) {
	text, err := node.Do(ctx, node.B().Info().Section("replication").Build()).ToString()
	if err != nil {
		if _, answered := rueidis.IsRedisErr(err); answered {
			err = nil
		}
		return "", err
	}
	var id string
	for line := range strings.SplitSeq(text, "\r\n") {
		if name, value, _ := strings.Cut(line, ":"); name == "role" && value != "master" {
			return "", nil
		} else if name == "master_replid" {
			id = value
		}
	}
	return id, nil
}
