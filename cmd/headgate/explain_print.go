package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/coordinator"
)

// verdict is the one line somebody in a hurry reads, and the state behind it for scripts.
func (x explained) verdict() (state, text string) {
	r, open := x.found.Record, x.found.Open
	switch {
	case x.found.Where == "" && x.would != nil:
		return "would_be_refused", "WOULD BE REFUSED  by " + refusalText(*x.would)
	case x.found.Where == "":
		return "would_pass", fmt.Sprintf("WOULD PASS  limits and budgets, holding %s USD", catalogue.USD(x.hold))
	case open != nil && open.Pool == "":
		return "running", fmt.Sprintf("RUNS  for %s on replica %s, without a slot", ago(time.Since(open.Since)), open.Replica)
	case open != nil && open.Backend == "":
		return "waiting", fmt.Sprintf("WAITS  for %s in the queue of pool %s: %d ahead of it, %d waiting in all", ago(time.Since(open.Since)), open.Pool, open.Ahead, open.Waiting)
	case open != nil:
		return "running", fmt.Sprintf("RUNS  for %s on backend %s, attempt %d", ago(time.Since(open.Since)), open.Backend, open.Attempt)
	case r.Refusal != nil:
		by := coordinator.Refusal{By: r.Refusal.By, For: r.Refusal.For, Limit: r.Refusal.Limit, Remaining: r.Refusal.Remaining, ResetMS: r.Refusal.ResetMS}
		return "refused", fmt.Sprintf("REFUSED  %d %s by %s", r.Status, r.ErrorCode, refusalText(by))
	case r.Outcome == coordinator.OutcomeOK && r.Cache == coordinator.CacheHit:
		return "ended", fmt.Sprintf("OK  %d from the response cache", r.Status)
	case r.Outcome == coordinator.OutcomeOK:
		return "ended", fmt.Sprintf("OK  %d from backend %s", r.Status, r.Backend)
	case r.Outcome == coordinator.OutcomeLost:
		return "lost", fmt.Sprintf("LOST  replica %s died; charged at the hold", r.Replica)
	case r.Outcome == coordinator.OutcomeRejected && r.Attempts == 0:
		return "refused", fmt.Sprintf("REFUSED  %d %s%s", r.Status, r.ErrorCode, hints[r.ErrorCode])
	}
	return "ended", fmt.Sprintf("%s  %d %s%s", strings.ToUpper(r.Outcome), r.Status, r.ErrorCode, hints[r.ErrorCode])
}

// hints say what codes that are no policy's mean.
var hints = map[string]string{
	"queue_full":        ": no slot came free in HG_QUEUE_WAIT, HG_QUEUE_LIMIT requests were waiting, or the engine said 503",
	"no_backend":        ": no backend of the pool could take it, now or later",
	"redis_unavailable": ": Redis could not be asked",
	"invalid_api_key":   ": no key, or an unknown one",
	"model_not_found":   ": neither the catalogue nor a backend knows the model",
	"upstream_error":    ": no engine answered",
	"stream_truncated":  ": the engine broke off",
	"shutdown":          ": the replica was told to end",
}

func refusalText(r coordinator.Refusal) string {
	by := cmp.Or(printable(r.By), "the gateway")
	again := "; never ends by itself"
	if r.ResetMS > 0 {
		again = "; again in " + ago(time.Duration(r.ResetMS)*time.Millisecond)
	}
	switch r.For {
	case "rpm":
		return fmt.Sprintf("%s: rpm %s, %s left%s", by, thousands(r.Limit), thousands(r.Remaining), again)
	case "tpm":
		return fmt.Sprintf("%s: tpm %s, %s left, and it asks for more%s", by, thousands(r.Limit), thousands(r.Remaining), again)
	case "parallel":
		return fmt.Sprintf("%s: parallel %s, as many were running", by, thousands(r.Limit))
	case "budget":
		return fmt.Sprintf("%s: budget of %s USD, %s left, and it may cost more%s", by, catalogue.USD(r.Limit), catalogue.USD(r.Remaining), again)
	case "models":
		return by + ": its list of models does not have this one"
	case "model":
		return "the gateway" + hints["model_not_found"]
	case "price":
		return "its model, which has no price, under a budget"
	case "expires_at":
		return by + ": it has expired"
	case "record":
		return by + ": its record cannot be read (see show)"
	}
	return by + ": " + r.For
}

// ago is a length as people say it.
func ago(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func (x explained) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, verdict := x.verdict()
	fmt.Fprintln(w, printable(verdict))
	r := x.found.Record
	if x.found.Where != "" {
		x.printRequest(w)
	}
	who := []string{}
	for _, one := range [][2]string{{"tenant", r.Tenant}, {"team", r.Team}, {"user", r.User}, {"key", r.KeyID}, {"end user", r.EndUser}, {"tags", strings.Join(r.Tags, " ")}} {
		if one[1] != "" {
			text := one[0] + " " + one[1]
			if one[0] == "key" && x.key != "" {
				text += " (" + x.key + ")"
			}
			who = append(who, text)
		}
	}
	fmt.Fprintf(w, "who\t%s\n", printable(strings.Join(who, ", ")))
	if err := w.Flush(); err != nil {
		return err
	}
	x.printScopes(w)
	x.printPlace(w)
	return w.Flush()
}

func (x explained) printRequest(w io.Writer) {
	r := x.found.Record
	label := ""
	if r.RequestID != "" && r.RequestID != r.RID {
		label = r.RequestID + ", "
	}
	fmt.Fprintf(w, "request\t%s\n", printable(fmt.Sprintf("%srid %s, %s (%s ago), replica %s", label, r.RID, coordinator.FormatTime(r.Time), ago(time.Since(r.Time)), r.Replica)))
	what := []string{r.Route, "model " + orName(r.Model, "-")}
	if r.Pool != "" {
		what = append(what, "pool "+r.Pool)
	}
	if r.Stream {
		what = append(what, "stream")
	}
	fmt.Fprintf(w, "what\t%s\n", printable(strings.Join(what, ", ")))
	if x.found.Open != nil {
		fmt.Fprintf(w, "hold\t%s, %s USD\n", some(r.HeldTokens, "token"), catalogue.USD(r.HeldNUSD))
		return
	}
	if r.HeldTokens+r.HeldNUSD > 0 || len(r.Charged) > 0 {
		cost := "unknown: the model has no price"
		if r.CostNUSD != nil {
			cost = catalogue.USD(*r.CostNUSD) + " USD"
		}
		fmt.Fprintf(w, "charged\t%s; held %s USD for %s; %s + %s tokens (%s cached), by %s\n", cost, catalogue.USD(r.HeldNUSD), some(r.HeldTokens, "token"),
			thousands(r.Prompt), thousands(r.Completion), thousands(r.Cached), orName(r.Source, "-"))
		if r.OverNUSD > 0 {
			fmt.Fprintf(w, "\t%s USD of it above the hold\n", catalogue.USD(r.OverNUSD))
		}
		fmt.Fprintf(w, "\tin %s\n", printable(orName(strings.Join(r.Charged, ", "), "no counter: given back")))
	}
	if r.Candidates > 0 || r.Attempts > 0 {
		fmt.Fprintf(w, "placed\t%s\n", printable(fmt.Sprintf("on %s, of %d weighed; %s; %s taken for warm; prompt expected after %s, queued %s",
			orName(r.Backend, "none"), r.Candidates, some(int64(r.Attempts), "attempt"), some(int64(r.Matched), "prompt token"), ago(milliseconds(r.ExpectedMS)), ago(milliseconds(float64(r.QueueMS))))))
	}
	fmt.Fprintf(w, "took\t%s, first token after %s, redis %s in %s\n", ago(milliseconds(r.DurationMS)), ago(milliseconds(r.TTFTMS)),
		ago(milliseconds(r.RedisMS)), some(int64(r.RoundTrips), "round trip"))
	if x.found.Others > 0 {
		fmt.Fprintf(w, "note\t%s with this label; this is the latest\n", some(int64(x.found.Others), "other request"))
	}
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// refuser is the scope that said no.
func (x explained) refuser() string {
	switch {
	case x.would != nil:
		return x.would.By
	case x.found.Record.Refusal != nil:
		return x.found.Record.Refusal.By
	}
	return ""
}

func (x explained) printScopes(w io.Writer) {
	if len(x.scopes) == 0 {
		return
	}
	fmt.Fprintln(w, "\nscopes now:\n  SCOPE\tRPM LEFT\tTPM LEFT\tRUNNING\tBUDGETS")
	for _, s := range x.scopes {
		mark := "  "
		if s.Scope == x.refuser() {
			mark = "→ "
		}
		if !s.Found {
			fmt.Fprintf(w, "%s%s\tno policy: limits nothing\n", mark, printable(s.Scope))
			continue
		}
		parallel := "-"
		if s.Parallel != nil {
			parallel = fmt.Sprintf("%d of %d", s.Parallel.Used, s.Parallel.Limit)
		}
		budgets := make([]string, len(s.Budgets))
		for i, b := range s.Budgets {
			budgets[i] = b.Period + ": " + spentText(b)
			if end := s.BudgetEnds[i]; !end.IsZero() && b.LimitNUSD >= 0 {
				budgets[i] += ", ends " + end.Format(time.RFC3339)
			}
		}
		budgets = append(budgets, s.Trouble()...)
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%s\n", mark, printable(s.Scope), limitText(s.RPM), limitText(s.TPM), parallel, printable(strings.Join(budgets, " | ")))
	}
}

func limitText(l *coordinator.LimitState) string {
	if l == nil {
		return "-"
	}
	text := thousands(l.Left()) + " of " + thousands(l.Limit)
	if l.Used > 0 && l.Reset > 0 {
		text += ", more in " + ago(l.Reset)
	}
	return text
}

func (x explained) printPlace(w io.Writer) {
	if x.place == nil {
		return
	}
	p := *x.place
	fmt.Fprintf(w, "\nweighed now, for %s MU; %d waiting before a new request:\n", decimal(p.MU), p.Waiting)
	if len(p.Backends) == 0 {
		fmt.Fprintf(w, "  no backend of pool %s serves the model\n", printable(x.found.Record.Pool))
		return
	}
	fmt.Fprintln(w, "  BACKEND\tSCORE\t= BACKLOG\t+ OTHERS\t+ PROMPT\t+ OUTPUT\tWARM\tFREE\tKV\t")
	for _, b := range p.Backends {
		mark := "  "
		if b.Chosen {
			mark = "→ "
		}
		backlog, others, prompt, output := p.Split(b)
		out := ""
		if b.WhyNot != "" {
			out = "out: " + strings.ReplaceAll(b.WhyNot, "_", " ")
			if !b.CooldownUntil.IsZero() {
				out += " for " + ago(time.Until(b.CooldownUntil))
			}
		}
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d of %d\t%.0f %%\t%s\n", mark, printable(b.Backend), ago(b.Score), ago(backlog), ago(others), ago(prompt), ago(output),
			thousands(b.Matched), max(b.Slots-b.Held-b.External, 0), b.Slots, float64(b.KV)/100, out)
	}
	if len(p.Others) > 0 {
		fmt.Fprintf(w, "  (of the pool, without the model: %s)\n", printable(strings.Join(p.Others, ", ")))
	}
}

// decimal writes thousandths.
func decimal(thousandths int64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", float64(thousandths)/1000), "0"), ".")
}
