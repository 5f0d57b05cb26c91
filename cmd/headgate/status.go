package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/config"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// redisStatus is what Redis says of itself; of a cluster one node's.
type redisStatus struct {
	Hosts      string `json:"hosts"`
	Version    string `json:"version"`
	Mode       string `json:"mode"` // standalone, sentinel, cluster
	Role       string `json:"role"`
	Replicas   int64  `json:"replicas"`
	UsedBytes  int64  `json:"used_bytes"`
	MaxBytes   int64  `json:"max_bytes"` // 0: no limit
	Policy     string `json:"maxmemory_policy"`
	Evicts     bool   `json:"evicts"`  // by its policy: budgets and limits would be lost
	Evicted    int64  `json:"evicted"` // keys since it started
	AppendOnly bool   `json:"append_only"`
	Clients    int64  `json:"clients"`
	OpsPerSec  int64  `json:"ops_per_s"`
	UptimeS    int64  `json:"uptime_s"`
}

func (s surroundings) status() *cobra.Command {
	l := &lookCommand{surroundings: s}
	c := l.command("status", "The fleet on one screen",
		"  headgate status\n  watch -n1 headgate status\n  headgate status --json | jq '.pools[].backends[] | select(.state != \"ok\")'")
	c.Long = `Shows what the fleet says of itself in Redis: Redis and whether it throws keys away; replicas by their last beat; pools with their
queues; backends with their slots, what others run there, the use of the KV cache, cool-downs and the prompt work that lies before
them; and tenants with open reservations. It changes nothing.

SLOTS HELD and WAITING of a replica are its own requests; OTHERS are requests the fleet did not send; BACKLOG is the time that the prompt work
before a backend takes; MU/S is its speed in model units (-: not known yet, 200 is taken); READ is when a replica last read it.

A backend's state: ok, full (no slot free), kv_cache_full (above 95 %), cooling_down, draining, unreadable (its record).`
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := l.config()
		if err != nil {
			return err
		}
		return l.withStore(c.Context(), func(ctx context.Context, store *pipeline.Store) error {
			status, err := coordinator.ReadStatus(ctx, store)
			if err != nil {
				return err
			}
			redis := readRedis(ctx, store, cfg)
			if l.json {
				return encodeTo(l.stdout, statusJSON(redis, status))
			}
			return printStatus(l.stdout, redis, status)
		})
	}
	return c
}

// readRedis asks Redis of itself; what it may not or cannot say stays empty.
func readRedis(ctx context.Context, store *pipeline.Store, cfg config.Config) redisStatus {
	r := redisStatus{Hosts: redisHosts(cfg.RedisURL)}
	info := map[string]string{}
	for _, section := range []string{"server", "memory", "replication", "stats", "clients", "persistence"} {
		m, err := store.Do(ctx, "INFO", "", section)
		if err != nil {
			continue
		}
		text, _ := m.ToString()
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				info[name] = value
			}
		}
	}
	figure := func(name string) int64 {
		n, _ := strconv.ParseInt(info[name], 10, 64)
		return n
	}
	r.Version, r.Mode, r.Role, r.Policy = info["redis_version"], info["redis_mode"], info["role"], info["maxmemory_policy"]
	if strings.Contains(cfg.RedisURL, "sentinel=") {
		r.Mode = "sentinel"
	}
	r.Replicas, r.UsedBytes, r.MaxBytes, r.Evicted = figure("connected_slaves"), figure("used_memory"), figure("maxmemory"), figure("evicted_keys")
	r.AppendOnly, r.Clients, r.OpsPerSec, r.UptimeS = info["aof_enabled"] == "1", figure("connected_clients"), figure("instantaneous_ops_per_sec"), figure("uptime_in_seconds")
	if r.Policy == "" {
		r.Policy = configured(ctx, store)
	}
	r.Evicts = strings.HasPrefix(r.Policy, "allkeys-") || strings.HasPrefix(r.Policy, "volatile-")
	return r
}

func printStatus(out io.Writer, r redisStatus, s coordinator.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "redis %s  %s\n", r.Hosts, redisText(r))
	alive := 0
	for _, one := range s.Replicas {
		if one.Alive {
			alive++
		}
	}
	fmt.Fprintf(w, "\nreplicas: %d\n", alive)
	if len(s.Replicas) > 0 {
		fmt.Fprintln(w, "  REPLICA\tLAST BEAT\tSLOTS HELD\tWAITING\t")
	}
	for _, one := range s.Replicas {
		dead := ""
		if !one.Alive {
			dead = "DEAD: not cleared yet"
		}
		fmt.Fprintf(w, "  %s\t%s ago\t%d\t%d\t%s\n", printable(one.ID), ago(one.Beat), one.Leases, one.Waiting, dead)
	}
	if len(s.Pools) == 0 {
		fmt.Fprintln(w, "\nno pools: no replica has a backend")
	}
	for _, p := range s.Pools {
		printPool(w, p)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	printTenants(w, s.Tenants)
	if len(s.Odd) > 0 {
		fmt.Fprintln(w, "\nUNREADABLE: what these keys hold is no figure of headgate's, and is left out above")
	}
	for _, one := range s.Odd {
		fmt.Fprintf(w, "  %s\n", printable(one))
	}
	return w.Flush()
}

func redisText(r redisStatus) string {
	if r.Version == "" {
		return "says nothing of itself (no version: the store of headgate dev, or INFO is not allowed)"
	}
	limit := "without a limit"
	if r.MaxBytes > 0 {
		limit = fmt.Sprintf("of %s MiB (%d %%)", thousands(r.MaxBytes>>20), 100*r.UsedBytes/r.MaxBytes)
	}
	parts := []string{r.Version, r.Mode + " " + r.Role, fmt.Sprintf("%s MiB %s", thousands(r.UsedBytes>>20), limit), some(r.Replicas, "replica"),
		map[bool]string{true: "append-only file", false: "NO append-only file"}[r.AppendOnly], thousands(r.OpsPerSec) + " commands/s", "up " + ago(time.Duration(r.UptimeS)*time.Second)}
	switch {
	case r.Evicts:
		parts = append(parts, "EVICTS: maxmemory-policy is "+r.Policy+", set it to noeviction")
	case r.Policy != "":
		parts = append(parts, r.Policy)
	}
	if r.Evicted > 0 {
		parts = append(parts, thousands(r.Evicted)+" KEYS EVICTED")
	}
	if r.Mode == "cluster" {
		parts = append(parts, "(of one node)")
	}
	return strings.Join(parts, ", ")
}

func printPool(w io.Writer, p coordinator.PoolStatus) {
	var slots, held, external int64
	for _, b := range p.Backends {
		slots, held, external = slots+b.Slots, held+b.Held, external+b.External
	}
	fmt.Fprintf(w, "\npool %s: %s, %d of %s held, others run %d, %d waiting%s\n", printable(p.Name), some(int64(len(p.Backends)), "backend"), held, some(slots, "slot"), external,
		p.Queue, printable(waitingOf(p)))
	if len(p.Backends) > 0 {
		fmt.Fprintln(w, "  BACKEND\tSTATE\tHELD\tOTHERS\tKV\tBACKLOG\tMU/S\tREAD\tADDRESS")
	}
	for _, b := range p.Backends {
		state := b.State
		if b.Cooldown > 0 && b.State == "cooling_down" {
			state += fmt.Sprintf(" %s (%s)", ago(b.Cooldown), some(b.Failures, "failure"))
		}
		read, kv, others := "never", "-", "-"
		if b.Read >= 0 {
			if read = ago(b.Read) + " ago"; b.Fresh() {
				kv, others = fmt.Sprintf("%.0f %%", 100*b.KVUse), strconv.FormatInt(b.External, 10)
			}
		}
		fmt.Fprintf(w, "  %s\t%s\t%d of %d\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(b.ID), state, b.Held, b.Slots, others, kv, ago(b.Backlog.Round(time.Millisecond)),
			orName(map[bool]string{true: decimal(b.RateMU)}[b.RateMU > 0], "-"), read, printable(b.Address))
	}
}

// waitingOf names the tenants that wait most.
func waitingOf(p coordinator.PoolStatus) string {
	names := make([]string, 0, len(p.Tenants))
	for t := range p.Tenants {
		names = append(names, t)
	}
	slices.SortFunc(names, func(a, b string) int {
		if p.Tenants[a] != p.Tenants[b] {
			return int(p.Tenants[b] - p.Tenants[a])
		}
		return strings.Compare(a, b)
	})
	texts := []string{}
	for _, t := range names[:min(len(names), 5)] {
		texts = append(texts, fmt.Sprintf("%s %d", t, p.Tenants[t]))
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts, ", ") + ")"
}

// shownTenants is how many tenants fit on a screen.
const shownTenants = 20

func printTenants(w io.Writer, all []coordinator.TenantStatus) {
	slices.SortStableFunc(all, func(a, b coordinator.TenantStatus) int { return int(b.Overdue - a.Overdue + b.Open - a.Open) })
	fmt.Fprintf(w, "\ntenants with something open: %d\n", len(all))
	for _, t := range all[:min(len(all), shownTenants)] {
		text := some(t.Open, "open request")
		if t.Overdue > 0 {
			text += fmt.Sprintf(", %d STUCK: past their deadlines", t.Overdue)
		}
		if t.Doubtful > 0 {
			text += fmt.Sprintf(", %s (headgate audit)", some(t.Doubtful, "doubtful settlement"))
		}
		fmt.Fprintf(w, "  %s\t%s\n", printable(t.Tenant), text)
	}
	if len(all) > shownTenants {
		fmt.Fprintf(w, "  … and %d more\n", len(all)-shownTenants)
	}
}

func statusJSON(r redisStatus, s coordinator.Status) map[string]any {
	replicas, pools, tenants := []map[string]any{}, []map[string]any{}, []map[string]any{}
	for _, one := range s.Replicas {
		replicas = append(replicas, map[string]any{"id": one.ID, "beat_ms": one.Beat.Milliseconds(), "alive": one.Alive, "leases": one.Leases, "waiting": one.Waiting})
	}
	for _, p := range s.Pools {
		backends := []map[string]any{}
		for _, b := range p.Backends {
			backends = append(backends, backendStatusJSON(b))
		}
		pools = append(pools, map[string]any{"name": p.Name, "replicas": p.Replicas, "waiting": p.Queue, "waiting_by_tenant": p.Tenants, "backends": backends})
	}
	for _, t := range s.Tenants {
		tenants = append(tenants, map[string]any{"tenant": t.Tenant, "open": t.Open, "stuck": t.Overdue, "doubtful": t.Doubtful})
	}
	return map[string]any{"time": coordinator.FormatTime(s.Now), "redis": r, "replicas": replicas, "pools": pools, "tenants": tenants, "unreadable": append([]string{}, s.Odd...)}
}

func backendStatusJSON(b coordinator.BackendStatus) map[string]any {
	var read any
	if b.Read >= 0 {
		read = b.Read.Milliseconds()
	}
	return map[string]any{"id": b.ID, "address": b.Address, "state": b.State, "models": append([]string{}, b.Models...), "slots": b.Slots, "held": b.Held, "external": b.External,
		"kv_use": b.KVUse, "read_ms": read, "cooldown_ms": b.Cooldown.Milliseconds(), "failures": b.Failures, "backlog_ms": b.Backlog.Milliseconds(),
		"mu_per_s": float64(b.RateMU) / 1000, "restarts": b.Restarts, "running": b.RunningOnIt, "waiting": b.WaitingOnIt}
}
