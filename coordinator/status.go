package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/headgate/headgate/pipeline"
)

// Status is what the fleet says of itself in Redis at one moment, in order of names.
type Status struct {
	Now      time.Time // Redis' clock
	Replicas []ReplicaStatus
	Pools    []PoolStatus
	Tenants  []TenantStatus // those with something open, stuck or doubtful
	Odd      []string       // keys that could not be read, each with why: somebody wrote something else there
}

// ReplicaStatus is one replica that was not cleared yet.
type ReplicaStatus struct {
	ID      string
	Beat    time.Duration // how long ago
	Alive   bool          // its last beat is not older than a dead one's
	Leases  int64
	Waiting int64 // of its requests, in queues
}

// PoolStatus is one pool with backends or replicas.
type PoolStatus struct {
	Name     string
	Replicas int64
	Queue    int64
	Tenants  map[string]int64 // waiting requests of each, of the first 1,000
	Backends []BackendStatus
}

// BackendStatus is one backend as placement sees it.
type BackendStatus struct {
	ID, Address  string
	State        string // ok, full, kv_cache_full, cooling_down, draining, unreadable
	Models       []string
	Slots, Held  int64
	External     int64         // requests that are not the fleet's
	KVUse        float64       // 0 to 1, of the engine's KV cache
	Read         time.Duration // how long ago the engine was read; < 0: never, and External and KVUse say nothing
	Cooldown     time.Duration // until it ends
	Backlog      time.Duration // of prompt work that lies before it
	RateMU       int64         // per second, thousandths
	OutputHeldMU int64
	Failures     int64
	Restarts     int64
	RunningOnIt  int64 // as the engine says
	WaitingOnIt  int64
}

// Fresh is true while the last reading of the engine counts.
func (b BackendStatus) Fresh() bool { return b.Read >= 0 && b.Read <= readingFresh }

// TenantStatus is what is unsettled in one tenant.
type TenantStatus struct {
	Tenant   string
	Open     int64 // reservations
	Overdue  int64 // of these, past their deadline by a minute
	Doubtful int64 // settlements that were not charged
}

// readingFresh is as in slots.part.lua: an older reading says nothing.
const readingFresh = 5 * time.Second

// ReadStatus looks at everything once, in a few round trips.
func ReadStatus(ctx context.Context, store *pipeline.Store) (Status, error) {
	r := reads{store: store}
	now, err := NewDirectory(store).now(ctx)
	if err != nil {
		return Status{}, err
	}
	s := Status{Now: now}
	r.odd = &s.Odd
	names := r.list("SMEMBERS", PoolIndex())
	beats := read(&r, "ZRANGE", Replicas(wholeFleet), []string{"0", "-1", "WITHSCORES"}, func(m rueidis.RedisMessage) ([]rueidis.ZScore, error) { return m.AsZScores() })
	tenants := r.list("SMEMBERS", TenantIndex())
	if err := r.wait(ctx); err != nil {
		return Status{}, err
	}
	slices.Sort(*names)
	for _, one := range *beats {
		beat := now.Sub(time.UnixMilli(int64(one.Score)))
		s.Replicas = append(s.Replicas, ReplicaStatus{ID: one.Member, Beat: beat, Alive: beat < placementTimes{}.orPromised().dead})
	}
	slices.SortFunc(s.Replicas, func(a, b ReplicaStatus) int { return strings.Compare(a.ID, b.ID) })
	if err := s.readPools(ctx, &r, *names); err != nil {
		return Status{}, err
	}
	return s, s.readTenants(ctx, &r, *tenants)
}

func (s *Status) readPools(ctx context.Context, r *reads, names []string) error {
	type poolReads struct {
		alive, queue     *int64
		waiting, ids     *[]string
		leases, waitings []*int64
	}
	all := make([]poolReads, len(names))
	for i, pool := range names {
		all[i] = poolReads{alive: r.count("ZCARD", Replicas(pool)), queue: r.count("ZCARD", Queue(pool)),
			waiting: r.list("ZRANGE", Arrivals(pool), "0", "999"), ids: r.list("SMEMBERS", BackendIndex(pool))}
		for _, replica := range s.Replicas {
			all[i].leases = append(all[i].leases, r.count("HLEN", Held(pool, replica.ID)))
			all[i].waitings = append(all[i].waitings, r.count("HLEN", Waiting(pool, replica.ID)))
		}
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	for i, pool := range names {
		p := PoolStatus{Name: pool, Replicas: *all[i].alive, Queue: *all[i].queue, Tenants: map[string]int64{}}
		for k := range s.Replicas {
			s.Replicas[k].Leases += *all[i].leases[k]
			s.Replicas[k].Waiting += *all[i].waitings[k]
		}
		for _, member := range *all[i].waiting {
			if f := strings.Split(member, "|"); len(f) > 4 {
				p.Tenants[f[4]]++
			}
		}
		ids := *all[i].ids
		slices.Sort(ids)
		var err error
		if p.Backends, err = readBackends(ctx, r, pool, ids, s.Now); err != nil {
			return err
		}
		if p.Replicas > 0 || len(p.Backends) > 0 {
			s.Pools = append(s.Pools, p)
		}
	}
	return nil
}

// readBackends reads records; what has none is gone.
func readBackends(ctx context.Context, r *reads, pool string, ids []string, now time.Time) ([]BackendStatus, error) {
	records := make([]*map[string]string, len(ids))
	for i, id := range ids {
		records[i] = r.hash(BackendRecord(pool, id))
	}
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	var all []BackendStatus
	for i, id := range ids {
		if len(*records[i]) > 0 {
			all = append(all, backendStatus(id, *records[i], now))
		}
	}
	return all, nil
}

func backendStatus(id string, f map[string]string, now time.Time) BackendStatus {
	b := BackendStatus{ID: id, Address: f["address"], State: "ok", Read: -1}
	readable := true
	figure := func(name string) int64 {
		n, err := strconv.ParseInt(f[name], 10, 64)
		readable = readable && (err == nil || f[name] == "")
		return n
	}
	b.Slots, b.Held, b.OutputHeldMU = figure("slots"), figure("held"), figure("output_held")
	b.Failures, b.Restarts, b.RunningOnIt, b.WaitingOnIt = figure("failures"), figure("restarts"), figure("running"), figure("waiting")
	if at := figure("read_at"); at > 0 {
		b.Read = max(now.Sub(time.UnixMilli(at)), 0)
		if b.Fresh() {
			b.External, b.KVUse = figure("external"), float64(figure("kv"))/1e4
		}
	}
	b.Cooldown = max(time.UnixMilli(figure("cooldown_until")).Sub(now), 0)
	b.RateMU = figure("rate_mu")
	if b.RateMU == 0 {
		b.RateMU = figure("capacity_mu")
	}
	if b.RateMU > 0 {
		left := time.Duration(float64(figure("backlog")) / float64(b.RateMU) * float64(time.Second))
		b.Backlog = max(left-max(now.Sub(time.UnixMilli(figure("backlog_at"))), 0), 0)
	}
	for name := range strings.FieldsSeq(f["models"]) {
		if plain, err := url.PathUnescape(name); err == nil {
			b.Models = append(b.Models, plain)
		}
	}
	switch drains := f["draining"]; {
	case !readable:
		b.State = "unreadable"
	case drains != "" && drains != "0" || b.Slots == 0:
		b.State = "draining"
	case b.Cooldown > 0:
		b.State = "cooling_down"
	case b.KVUse > 0.95:
		b.State = "kv_cache_full"
	case b.Held+b.External >= b.Slots:
		b.State = "full"
	}
	return b
}

func (s *Status) readTenants(ctx context.Context, r *reads, names []string) error {
	slices.Sort(names)
	overdue := strconv.FormatInt(s.Now.Add(-time.Minute).UnixMilli(), 10)
	open, late, doubtful := make([]*map[string]string, len(names)), make([]*int64, len(names)), make([]*int64, len(names))
	for some := range slices.Chunk(indices(len(names)), 1000) {
		for _, i := range some {
			open[i], late[i] = r.hash(OpenReservations(names[i])), r.count("ZCOUNT", Reservations(names[i]), "-inf", overdue)
			doubtful[i] = r.count("LLEN", TenantRoot(names[i])+":doubtful")
		}
		if err := r.wait(ctx); err != nil {
			return err
		}
		for _, i := range some {
			t := TenantStatus{Tenant: names[i], Overdue: *late[i], Doubtful: *doubtful[i]}
			for _, claim := range *open[i] {
				if !strings.HasPrefix(claim, "x") { // charged at its hold, kept for a late settlement
					t.Open++
				}
			}
			if t.Open+t.Overdue+t.Doubtful > 0 {
				s.Tenants = append(s.Tenants, t)
			}
		}
	}
	return nil
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// reads declares plain reads whose results are there after wait.
type reads struct {
	store *pipeline.Store
	batch pipeline.Batch
	after []func(context.Context) error

	odd *[]string // where commands that Redis refuses are noted instead of ending the wait; nil: they end it
}

func (r *reads) list(name, key string, args ...string) *[]string {
	return read(r, name, key, args, func(m rueidis.RedisMessage) ([]string, error) { return m.AsStrSlice() })
}

func (r *reads) count(name, key string, args ...string) *int64 {
	return read(r, name, key, args, func(m rueidis.RedisMessage) (int64, error) { return m.AsInt64() })
}

func (r *reads) hash(key string) *map[string]string {
	return read(r, "HGETALL", key, nil, func(m rueidis.RedisMessage) (map[string]string, error) { return m.AsStrMap() })
}

// text is "" where there is none; numbers as text.
func (r *reads) text(name, key string, args ...string) *string {
	return read(r, name, key, args, func(m rueidis.RedisMessage) (string, error) {
		if m.IsNil() {
			return "", nil
		}
		v, err := m.ToAny()
		return fmt.Sprint(v), err
	})
}

func read[T any](r *reads, name, key string, args []string, as func(rueidis.RedisMessage) (T, error)) *T {
	h, into := pipeline.Declare(&r.batch, pipeline.Command{Store: r.store, Name: name, Key: key, Args: args}, as), new(T)
	r.after = append(r.after, func(ctx context.Context) (err error) {
		if *into, err = h.Wait(ctx); err != nil {
			err = fmt.Errorf("%s %s: %w", name, key, err)
		}
		return err
	})
	return into
}

func (r *reads) wait(ctx context.Context) error {
	after := r.after
	r.after = nil
	for _, fn := range after {
		err := fn(ctx)
		if refused := new(rueidis.RedisError); errors.As(err, &refused) && r.odd != nil {
			*r.odd = append(*r.odd, err.Error()) // the result is its zero value
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
