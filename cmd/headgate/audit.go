package main

import (
	"context"
	"fmt"
	"regexp"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// audit compares Redis' counters with the usage records. Its status says what came out, so that scripts can rely on it.
func (s surroundings) audit() *cobra.Command {
	l := &lookCommand{surroundings: s}
	var tenant, period string
	c := l.command("audit [--tenant <tenant>] [--period 2026-11] [--usage-log <file> …]", "Compare the counters in Redis with the usage records",
		"  headgate audit --tenant acme --period 2026-11\n  headgate audit --usage-log r1.jsonl --usage-log r2.jsonl\n  zcat usage-*.gz | headgate audit --tenant acme --usage-log - --json")
	c.Long = `Adds up the usage records of each spend counter (money, requests, tokens) and says where Redis counted something else; what is
reserved and running is compared with the requests that are open. It may be run at any time, also while requests run.

The records are those of the tenants' usage streams, which hold about the last 100,000 of each. With usage logs each line is looked
for in the stream too; give the logs of all replicas then, and what the stream no longer has is taken from them. A log may be larger
than memory: it is sorted on disk, in TMPDIR.

Differences: counter (it says something else than its records), reserved, running, stuck (a dead replica's, that nobody could settle),
missing (in a log, charged nowhere), unlogged (charged, in no log), double, figures (log and stream disagree), doubtful (a
settlement that came too late to be charged), unreadable, incomplete (the stream is shorter than the counters' lives).
No differences, and shown: open (not settled yet), lost (charged at the hold, because a replica died), estimated (from bytes,
because the engine gave no figures).

Exit status: 0 all agree, 1 something differs, 2 it could not be found out.`
	c.Flags().StringVar(&tenant, "tenant", "", "one tenant; all without it")
	c.Flags().StringVar(&period, "period", "", "only counters of periods that begin so, as in key names: 2026-11 (and its days), 2026-11-30, 2026-W48, total, 30d@")
	c.Flags().StringArrayVar(&l.logs, "usage-log", nil, "a usage log (HG_USAGE_LOG); - is standard input; may repeat")
	c.RunE = func(c *cobra.Command, _ []string) error {
		all, err := l.runAudit(c.Context(), tenant, period)
		if err != nil {
			return statusError{err, statusUsage}
		}
		if err := l.printAudit(all); err != nil {
			return statusError{err, statusUsage}
		}
		if coordinator.Agrees(all) {
			return nil
		}
		return statusError{differences(all), statusFailed}
	}
	return c
}

// periods are the beginnings of names of periods that --period takes.
var periods = regexp.MustCompile(`^(\d{1,4}|\d{4}-(W\d{0,2}|[01]?|(0[1-9]|1[0-2])(-\d{0,2})?)|total|[1-9]\d*[smhd](@\d*)?)$`)

// runAudit fails where there can be nothing to compare: a name typed wrong must not look like books that agree.
func (l *lookCommand) runAudit(ctx context.Context, tenant, period string) (all []coordinator.TenantAudit, err error) {
	if period != "" && !periods.MatchString(period) {
		return nil, fmt.Errorf("--period %q: want the beginning of a period's name, as 2026-11, 2026-11-30, 2026-W48, total or 30d@", period)
	}
	logs, end, err := l.openLogs()
	if err != nil {
		return nil, err
	}
	defer end()
	err = l.withStore(ctx, func(ctx context.Context, store *pipeline.Store) error {
		cfg := coordinator.AuditConfig{Store: store, Period: period, Logs: logs}
		if tenant != "" {
			cfg.Tenants = []string{tenant}
		}
		if all, err = coordinator.Audit(ctx, cfg); err != nil || tenant == "" {
			return err
		}
		return l.someBooks(ctx, store, tenant, all)
	})
	return all, err
}

// someBooks is an error for a tenant that does not exist and of which nothing was found.
func (l *lookCommand) someBooks(ctx context.Context, store *pipeline.Store, tenant string, all []coordinator.TenantAudit) error {
	for _, t := range all {
		if t.Records+t.Counters+t.Open+int64(len(t.Differences)) > 0 {
			return nil
		}
	}
	if there, err := tenantThere(ctx, store, tenant); err != nil || there {
		return err
	}
	return fmt.Errorf("tenant %q: not found, and it has no counters and no records", tenant)
}

func (l *lookCommand) printAudit(all []coordinator.TenantAudit) error {
	if l.json {
		return encodeTo(l.stdout, all)
	}
	w := tabwriter.NewWriter(l.stdout, 0, 0, 2, ' ', 0)
	for _, t := range all {
		verdict, differ := "agree", "do not agree: "
		if t.Counters == 1 {
			verdict, differ = "agrees", "does not agree: "
		}
		if n := int64(len(t.Differences)) + t.More; n > 0 {
			verdict = differ + some(n, "difference")
		}
		fmt.Fprintf(w, "%s: %s, %s USD; %s %s\n", printable(orName(t.Tenant, "no tenant")), some(t.Records, "charged request"), catalogue.USD(t.CostNUSD), some(t.Counters, "counter"), verdict)
		for _, d := range t.Differences {
			fmt.Fprintf(w, "  %s\t%s\n", d.Kind, printable(d.Text))
		}
		if t.More > 0 {
			fmt.Fprintf(w, "  …\t%s more\n", thousands(t.More))
		}
		for _, n := range []struct {
			name    string
			n, nusd int64
			what    string
		}{{"open", t.Open, t.OpenNUSD, "held, not settled yet"}, {"lost", t.Lost, t.LostNUSD, "charged at the hold: their replica died"},
			{"estimated", t.Estimated, t.EstimatedNUSD, "charged from bytes: the engine gave no figures"}} {
			if n.n > 0 {
				fmt.Fprintf(w, "  (%s)\t%s, %s USD %s\n", n.name, some(n.n, "request"), catalogue.USD(n.nusd), n.what)
			}
		}
	}
	return w.Flush()
}

func differences(all []coordinator.TenantAudit) error {
	var n int64
	tenants := 0
	for _, t := range all {
		if len(t.Differences) > 0 {
			n, tenants = n+int64(len(t.Differences))+t.More, tenants+1
		}
	}
	return fmt.Errorf("audit: %s in %s", some(n, "difference"), some(int64(tenants), "tenant"))
}

// some is a count of things for people.
func some(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return thousands(n) + " " + thing + "s"
}

func orName(name, none string) string {
	if name == "" {
		return none
	}
	return name
}
