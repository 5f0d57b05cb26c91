package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// usageCommand is the flags of usage.
type usageCommand struct {
	lookCommand
	tenant, team, user, key, endUser, tag, model, since, until string
	by                                                         []string
}

func (s surroundings) usage() *cobra.Command {
	u := &usageCommand{lookCommand: lookCommand{surroundings: s}}
	c := u.command("usage [--tenant <tenant>] [--since 24h] [--by key,day] [flags]", "Add up requests, tokens and money",
		"  headgate usage --tenant acme --since 7d --by team,day\n  headgate usage --key ci --tenant acme --by model\n  headgate usage --since 2026-11-01 --usage-log usage.jsonl --by outcome --json")
	c.Long = `Adds up the usage records of the tenants' streams: admitted requests, about the last 100,000 of each tenant. With --usage-log it reads
usage logs instead; these have every request, refused ones too. Tokens and money are what was charged: none for cache hits.

--by takes one or more of ` + strings.Join(coordinator.UsageBy, ", ") + `; a request with several tags counts in the row of
each. For the tenant, team, user or key asked for, what its counters in Redis say of their current periods is shown too.`
	f := c.Flags()
	f.StringVar(&u.tenant, "tenant", "", "one tenant; all without it")
	f.StringVar(&u.team, "team", "", "only its requests")
	f.StringVar(&u.user, "user", "", "only requests of keys of this user")
	f.StringVar(&u.key, "key", "", "only requests with this key: id, name or the secret itself")
	f.StringVar(&u.endUser, "end-user", "", "only requests that name this end user")
	f.StringVar(&u.tag, "tag", "", "only requests with this tag")
	f.StringVar(&u.model, "model", "", "only requests of this model, by the catalogue's name")
	f.StringVar(&u.since, "since", "24h", "from when: a length as 24h or 7d, a day (UTC) as 2026-11-01, or a time as 2026-11-01T12:00:00Z")
	f.StringVar(&u.until, "until", "", "until when, exclusive; likewise")
	f.StringSliceVar(&u.by, "by", nil, "a row for each: "+strings.Join(coordinator.UsageBy, ", ")+" (default key; tenant where there are several)")
	f.StringArrayVar(&u.logs, "usage-log", nil, "a usage log (HG_USAGE_LOG) to read instead; - is standard input; may repeat")
	c.RunE = func(c *cobra.Command, _ []string) error { return u.run(c.Context()) }
	return c
}

func (u *usageCommand) run(ctx context.Context) error {
	q := coordinator.UsageQuery{Team: u.team, User: u.user, EndUser: u.endUser, Tag: u.tag, Model: u.model, By: u.by}
	now := time.Now()
	var err error
	if q.Since, err = moment(u.since, now); err != nil {
		return usagef("--since %w", err)
	}
	if q.Until, err = moment(u.until, now); err != nil {
		return usagef("--until %w", err)
	}
	logs, end, err := u.openLogs()
	if err != nil {
		return err
	}
	defer end()
	q.Logs = logs
	return u.withStore(ctx, func(ctx context.Context, store *pipeline.Store) error {
		q.Store = store
		return u.answer(ctx, q)
	})
}

func (u *usageCommand) answer(ctx context.Context, q coordinator.UsageQuery) error {
	d := coordinator.NewDirectory(q.Store)
	entries, err := u.entries(ctx, d)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Kind == coordinator.KindKey {
			u.tenant, q.KeyID = e.Tenant, e.ID
		}
	}
	if q.Tenants, err = tenantNames(ctx, q.Store, u.tenant); err != nil {
		return err
	}
	if len(q.By) == 0 {
		q.By = []string{map[bool]string{true: "key", false: "tenant"}[len(q.Tenants) == 1]}
	}
	if len(q.Logs) > 0 && u.tenant == "" {
		q.Tenants = nil // also those the directory does not know, and what belongs to none
	}
	sums, short, err := coordinator.SumUsage(ctx, q)
	var lacking *coordinator.UnreadableError
	if err != nil && !errors.As(err, &lacking) {
		return err
	}
	for _, tenant := range slices.Sorted(maps.Keys(short)) {
		fmt.Fprintf(u.stderr, "warning: the usage stream of %s begins at %s: what is older is not in the sums (give the usage logs)\n", tenant,
			coordinator.FormatTime(short[tenant]))
	}
	if u.tenant != "" {
		if there, err := tenantThere(ctx, q.Store, u.tenant); err != nil {
			return err
		} else if !there {
			fmt.Fprintf(u.stderr, "warning: tenant %q: not found\n", u.tenant)
		}
	}
	counters := make([][]coordinator.Spent, len(entries))
	for i, e := range entries {
		if counters[i], err = d.Spent(ctx, e); err != nil {
			return err
		}
	}
	answer := usageAnswer{q, sums, entries, counters}
	if err := u.print(ctx, d, answer); err != nil || lacking == nil {
		return err
	}
	return lacking // said last, and by the status
}

func (u *usageCommand) print(ctx context.Context, d *coordinator.Directory, answer usageAnswer) error {
	if u.json {
		return encodeTo(u.stdout, answer.inJSON())
	}
	names, err := keyNames(ctx, d, answer.query)
	if err != nil {
		return err
	}
	return u.printTable(answer, names)
}

// usageAnswer is what usage prints: sums by group, and the counters of some records.
type usageAnswer struct {
	query    coordinator.UsageQuery
	sums     []coordinator.UsageSum
	entries  []coordinator.Entry
	counters [][]coordinator.Spent // of each entry
}

// entries are the records whose counters are shown: those that were asked for.
func (u *usageCommand) entries(ctx context.Context, d *coordinator.Directory) ([]coordinator.Entry, error) {
	var entries []coordinator.Entry
	for _, one := range []struct {
		kind coordinator.Kind
		id   string
	}{{coordinator.KindKey, u.key}, {coordinator.KindTeam, u.team}, {coordinator.KindUser, u.user}, {coordinator.KindTenant, u.tenant}} {
		if one.id == "" {
			continue
		}
		r := &recordCommand{surroundings: u.surroundings, kind: one.kind, tenant: u.tenant}
		ref, err := r.ref(ctx, d, one.id)
		if err != nil {
			return nil, err
		}
		e, err := d.Show(ctx, ref)
		if errors.Is(err, coordinator.ErrNotFound) && one.kind != coordinator.KindKey {
			continue // it may have been removed; its records are still there
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// printTable prints the answer for people; names are of keys, by id.
func (u *usageCommand) printTable(a usageAnswer, names map[string]string) error {
	q, sums := a.query, a.sums
	w := tabwriter.NewWriter(u.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(q.By, "\t"))+"\tREQUESTS\tNOT OK\tCACHE HITS\tPROMPT\tCACHED\tCOMPLETION\tUSD")
	var total coordinator.UsageSum
	for _, s := range sums {
		cells := slices.Clone(s.Group)
		for i := range cells {
			if name := names[cells[i]]; q.By[i] == "key" && name != "" {
				cells[i] += " (" + name + ")"
			}
			cells[i] = orName(printable(cells[i]), "-")
		}
		fmt.Fprintln(w, strings.Join(cells, "\t")+"\t"+figuresOf(s))
		total.Requests, total.Failed, total.CacheHits = total.Requests+s.Requests, total.Failed+s.Failed, total.CacheHits+s.CacheHits
		total.Prompt, total.Cached, total.Completion = total.Prompt+s.Prompt, total.Cached+s.Cached, total.Completion+s.Completion
		total.CostNUSD, total.Unpriced = total.CostNUSD+s.CostNUSD, total.Unpriced+s.Unpriced
	}
	if len(sums) != 1 && !slices.Contains(q.By, "tag") { // with tags a request is in several rows
		fmt.Fprintln(w, "total"+strings.Repeat("\t", len(q.By))+figuresOf(total))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, e := range a.entries {
		for _, s := range a.counters[i] {
			fmt.Fprintf(w, "counter of %s\t%s\t%s\n", printable(e.Ref.String()), s.Period, spentText(s))
		}
	}
	return w.Flush()
}

func figuresOf(s coordinator.UsageSum) string {
	cost := catalogue.USD(s.CostNUSD)
	if s.Unpriced > 0 {
		cost += fmt.Sprintf(" (+ %s without a price)", some(s.Unpriced, "request"))
	}
	return strings.Join([]string{thousands(s.Requests), thousands(s.Failed), thousands(s.CacheHits), thousands(s.Prompt), thousands(s.Cached),
		thousands(s.Completion), cost}, "\t")
}

// keyNames are names of keys by id, where rows are of keys.
func keyNames(ctx context.Context, d *coordinator.Directory, q coordinator.UsageQuery) (map[string]string, error) {
	names := map[string]string{}
	if !slices.Contains(q.By, "key") {
		return names, nil
	}
	for _, tenant := range q.Tenants {
		keys, err := d.List(ctx, coordinator.KindKey, tenant)
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			names[k.ID] = k.Fields["name"]
		}
	}
	return names, nil
}

// shownCounter is what a counter in Redis says, in JSON.
type shownCounter struct {
	Kind   coordinator.Kind `json:"kind"`
	Tenant string           `json:"tenant"`
	ID     string           `json:"id"`
	shownSpend
}

func (a usageAnswer) inJSON() map[string]any {
	q, sums := a.query, a.sums
	rows := make([]map[string]any, len(sums))
	for i, s := range sums {
		rows[i] = map[string]any{"requests": s.Requests, "not_ok": s.Failed, "cache_hits": s.CacheHits, "prompt_tokens": s.Prompt,
			"cached_tokens": s.Cached, "completion_tokens": s.Completion, "cost_nusd": s.CostNUSD, "unpriced_requests": s.Unpriced}
		for k, by := range q.By {
			rows[i][by] = s.Group[k]
		}
	}
	shown := []shownCounter{}
	for i, e := range a.entries {
		for _, s := range a.counters[i] {
			shown = append(shown, shownCounter{e.Kind, e.Tenant, e.ID, spendInJSON(s)})
		}
	}
	var until any
	if !q.Until.IsZero() {
		until = coordinator.FormatTime(q.Until)
	}
	return map[string]any{"since": coordinator.FormatTime(q.Since), "until": until, "by": q.By, "rows": rows, "counters": shown}
}

// moment reads a length before now, a day or a time; zero for "".
func moment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, ok := coordinator.ParseLength(text); ok {
		return now.Add(-d), nil
	}
	for _, form := range []string{"2006-01-02", time.RFC3339} {
		if t, err := time.Parse(form, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: want a length as 24h or 7d, a day as 2026-11-01, or a time as 2026-11-01T12:00:00Z", text)
}
