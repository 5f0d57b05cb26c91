package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// explainCommand is the flags of explain.
type explainCommand struct {
	lookCommand
	tenant, key, model         string
	promptTokens, outputTokens int64
	catalogue                  *catalogue.Catalogue
}

// explained is all that is said about one request.
type explained struct {
	id     string
	found  coordinator.FoundRequest // Where "": a request that was only thought of
	key    string                   // its name
	would  *coordinator.Refusal     // of a thought one
	hold   int64                    // of a thought one, nano-dollars
	scopes []coordinator.ScopeState
	place  *coordinator.Outlook // nil: placement has no say
}

func (s surroundings) explain() *cobra.Command {
	e := &explainCommand{lookCommand: lookCommand{surroundings: s}}
	c := e.command("explain <request-id> [--tenant <tenant>] [--usage-log <file> …]\n  headgate explain --key <key> --model <model> [--prompt-tokens 1000] [--max-tokens 500]",
		"Why a request was refused, waits, or went where it went",
		"  headgate explain 5f0c1c2b9a6e4d0f8b7a6c5d4e3f2a1b\n  headgate explain my-label-7 --tenant acme --usage-log /var/log/headgate/usage.jsonl\n  headgate explain --key ci --tenant acme --model qwen-7b --prompt-tokens 20000 --json")
	c.Long = `Looks for the request by x-request-id or rid: among those that run or wait, then in the usage logs given, else in the tenants' usage streams.
The streams have no refused requests (a refusal writes nothing to Redis): for these give the usage logs.

Shows what decided: the scope that refused with its figures, or the hold, the charge and the backend; then the figures of every scope of
the request, and what placement weighs for it. These two are of now, not of then, except for a request that waits.
The score is the time until the prompt is computed there: backlog + requests of others + uncached prompt + a share of the
output held. The smallest wins; within 2 % or 10 ms of it the ring order of the replicas decides, which is not shown here.

With --key and --model, and no request: what would decide now.`
	c.Args = arguments(0, 1)
	f := c.Flags()
	f.StringVar(&e.tenant, "tenant", "", "tenant of the request; without it all are looked through")
	f.StringArrayVar(&e.logs, "usage-log", nil, "a usage log (HG_USAGE_LOG) to look in; - is standard input; may repeat")
	f.StringVar(&e.key, "key", "", "id, name or secret of a key, for a request that was not made")
	f.StringVar(&e.key, "key-id", "", "the same as --key")
	f.StringVar(&e.model, "model", "", "its model")
	f.Int64Var(&e.promptTokens, "prompt-tokens", 1000, "tokens of its prompt")
	f.Int64Var(&e.outputTokens, "max-tokens", 256, "tokens of its answer")
	c.RunE = func(c *cobra.Command, args []string) error { return e.run(c.Context(), args) }
	return c
}

func (e *explainCommand) run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0 && (e.key == "" || e.model == ""):
		return usagef("want a request id, or --key and --model")
	case len(args) == 1 && (e.key != "" || e.model != ""):
		return usagef("want a request id or --key and --model, not both")
	case e.promptTokens < 0 || e.outputTokens < 0:
		return usagef("--prompt-tokens and --max-tokens are 0 or more")
	}
	cfg, err := e.config()
	if err != nil {
		return err
	}
	known, err := openCatalogue(cfg.Catalog, zerolog.Nop())
	if err != nil {
		return err
	}
	e.catalogue = known.Current()
	if len(args) == 0 && cfg.Catalog == "" {
		fmt.Fprintln(e.stderr, "warning: HG_CATALOG is not set here: no model has a price, units or an alias; set it to the file the replicas read")
	}
	logs, end, err := e.openLogs()
	if err != nil {
		return err
	}
	defer end()
	return e.withStore(ctx, func(ctx context.Context, store *pipeline.Store) error {
		var x explained
		var err error
		if len(args) == 1 {
			x, err = e.request(ctx, store, args[0], logs)
		} else {
			x, err = e.thought(ctx, store)
		}
		if err != nil {
			return err
		}
		if e.json {
			return encodeTo(e.stdout, x.inJSON())
		}
		return x.print(e.stdout)
	})
}

// request explains one that was made.
func (e *explainCommand) request(ctx context.Context, store *pipeline.Store, id string, logs []coordinator.UsageLog) (x explained, err error) {
	x.id = id
	tenants, err := tenantNames(ctx, store, e.tenant)
	if err != nil {
		return x, err
	}
	x.found, err = coordinator.FindRequest(ctx, coordinator.RequestQuery{Store: store, Tenants: tenants, Logs: logs, ID: id})
	if errors.Is(err, coordinator.ErrNotFound) && len(logs) == 0 {
		return x, fmt.Errorf("%w: it does not run, and no usage stream has it (a refused request is in the usage logs alone: --usage-log)", err)
	}
	if err != nil {
		return x, err
	}
	r := x.found.Record
	if r.Tenant == "" {
		return x, nil
	}
	if err := e.readScopes(ctx, store, r, &x); err != nil {
		return x, err
	}
	if r.Refusal != nil || r.Cache == coordinator.CacheHit || r.Pool == "" && x.found.Open == nil {
		return x, nil // placement had no say
	}
	model, _ := e.catalogue.Resolve(r.Model)
	u := model.UnitsOrDefault()
	q := coordinator.PlaceQuery{Store: store, Pool: r.Pool, Model: r.Model, OutputMU: u.Completion * r.Completion, PromptTokens: r.Prompt, Open: x.found.Open}
	if q.MU = u.Request + u.Prompt*r.Prompt + u.Completion*r.Completion; q.Pool == "" {
		q.Pool = model.Pool
	}
	return x, e.weigh(ctx, q, &x)
}

// thought explains what would become of a request.
func (e *explainCommand) thought(ctx context.Context, store *pipeline.Store) (x explained, err error) {
	d := coordinator.NewDirectory(store)
	r := &recordCommand{surroundings: e.surroundings, kind: coordinator.KindKey, tenant: e.tenant}
	ref, err := r.ref(ctx, d, e.key)
	if err != nil {
		return x, err
	}
	entry, err := d.Show(ctx, ref)
	if err != nil {
		return x, err
	}
	model, listed := e.catalogue.Resolve(e.model)
	if !listed {
		status, err := coordinator.ReadStatus(ctx, store)
		if err != nil {
			return x, err
		}
		model = catalogue.Unlisted(e.model, coordinator.PoolServing(status, e.model))
	}
	x.found.Record = coordinator.RecordLine{Tenant: entry.Tenant, Team: entry.Fields["team"], User: entry.Fields["user"], KeyID: entry.ID, Model: model.Name,
		Pool: model.Pool, Prompt: e.promptTokens, Completion: e.outputTokens, Tags: coordinator.TagsOf(entry)}
	if err := e.readScopes(ctx, store, x.found.Record, &x); err != nil {
		return x, err
	}
	x.hold = model.HoldNUSD(e.promptTokens, e.outputTokens)
	if x.would = coordinator.WouldRefuse(x.scopes, model.Name, e.promptTokens+e.outputTokens, x.hold); x.would == nil && !model.Priced && budgeted(x.scopes) {
		x.would = &coordinator.Refusal{For: "price"}
	}
	if model.Pool == "" {
		if x.would == nil || x.would.For == "price" {
			x.would = &coordinator.Refusal{For: "model"}
		}
		return x, nil
	}
	u := model.UnitsOrDefault()
	q := coordinator.PlaceQuery{Store: store, Pool: model.Pool, Model: model.Name, OutputMU: u.Completion * e.outputTokens, PromptTokens: e.promptTokens}
	q.MU = u.Request + u.Prompt*e.promptTokens + q.OutputMU
	return x, e.weigh(ctx, q, &x)
}

func budgeted(scopes []coordinator.ScopeState) bool {
	for _, s := range scopes {
		for _, b := range s.Budgets {
			if b.LimitNUSD >= 0 {
				return true
			}
		}
	}
	return false
}

// readScopes reads the scopes of r. What was refused or runs has not the tags of its key in its record.
func (e *explainCommand) readScopes(ctx context.Context, store *pipeline.Store, r coordinator.RecordLine, x *explained) error {
	if r.KeyID != "" {
		key, err := coordinator.NewDirectory(store).Show(ctx, coordinator.Ref{Kind: coordinator.KindKey, Tenant: r.Tenant, ID: r.KeyID})
		if err != nil && !errors.Is(err, coordinator.ErrNotFound) {
			return err
		}
		x.key = key.Fields["name"] // "" where it was removed since
		if r.Refusal != nil || x.found.Open != nil {
			r.Tags = append(r.Tags, coordinator.TagsOf(key)...)
		}
	}
	var err error
	x.scopes, err = coordinator.ReadScopes(ctx, store, r.Tenant, coordinator.ScopesOf(r))
	return err
}

func (e *explainCommand) weigh(ctx context.Context, q coordinator.PlaceQuery, x *explained) error {
	if q.Pool == "" {
		return nil
	}
	place, err := coordinator.WeighNow(ctx, q)
	x.place = &place
	return err
}
