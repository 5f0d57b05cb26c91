package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/coordinator"
)

// recordCommand is one command on records of a kind: tenants show, keys create …
type recordCommand struct {
	surroundings
	kind   coordinator.Kind
	tenant string
	json   bool
	policy policyFlags

	withKeys, scan bool
}

// records is the group of commands on one kind.
func (s surroundings) records(kind coordinator.Kind) *cobra.Command {
	group := &cobra.Command{Use: string(kind) + "s", Short: fmt.Sprintf("Create, list, show, change and delete %ss", kind), Long: longHelp(kind)}
	asGroup(group)
	new := func() *recordCommand { return &recordCommand{surroundings: s, kind: kind} }
	group.AddCommand(new().create(), new().list(), new().show(), new().set(), new().remove())
	if kind == coordinator.KindKey {
		group.AddCommand(new().rotate(), new().importKeys())
	}
	return group
}

func longHelp(kind coordinator.Kind) string {
	where := map[coordinator.Kind]string{
		coordinator.KindTenant: "hg:{t:<tenant>}",
		coordinator.KindTeam:   "hg:{t:<tenant>}:team:<id>",
		coordinator.KindUser:   "hg:{t:<tenant>}:user:<id>",
		coordinator.KindKey:    "hg:{t:<tenant>}:key:<SHA-256 of the key>",
	}[kind]
	more := ""
	if kind == coordinator.KindKey {
		more = `
A key may be named by its id, its name or its secret. A key made by hand needs the field id, and to have the form
sk-<tenant>-<32 or more of A-Z a-z 0-9>; keys import takes keys of any form.`
	}
	return fmt.Sprintf(`A %s is a plain Redis hash, %s, in the Redis of HG_REDIS_URL. Changes act on the next request, also
those made with redis-cli. Fields that may be set: %s
(budget, as 50/month, stands for budget_usd, period and budgets).
An absent limit limits nothing; 0 allows nothing.%s`, kind, where, strings.Join(coordinator.FieldNames(kind), ", "), more)
}

// command is a cobra command with the flags all record commands have.
func (r *recordCommand) command(use, short, example string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: strings.TrimRight(example, "\n"), DisableFlagsInUseLine: true}
	c.Flags().BoolVar(&r.json, "json", false, "print JSON")
	if r.kind != coordinator.KindTenant {
		usage := "tenant it belongs to"
		if strings.HasPrefix(use, "create") {
			usage += "; made, without limits, if it is missing"
		}
		c.Flags().StringVar(&r.tenant, "tenant", "", usage)
	}
	return c
}

func (r *recordCommand) create() *cobra.Command {
	if r.kind == coordinator.KindKey {
		return r.createKey()
	}
	c := r.command("create <id>"+r.tenantUse(), "Create a "+string(r.kind), r.example("create"))
	r.policy.add(c, r.kind)
	c.Args = arguments(1, -1)
	c.RunE = func(c *cobra.Command, args []string) error {
		return r.change(c, args, (*coordinator.Directory).Create, "created")
	}
	return c
}

func (r *recordCommand) set() *cobra.Command {
	c := r.command("set <id>"+r.tenantUse()+" [flags] [field=value …]", "Change fields; an empty value removes the field", r.example("set"))
	r.policy.add(c, r.kind)
	c.Args = arguments(1, -1)
	c.RunE = func(c *cobra.Command, args []string) error {
		return r.change(c, args, (*coordinator.Directory).Set, "changed")
	}
	return c
}

type changeFunc func(*coordinator.Directory, context.Context, coordinator.Ref, coordinator.Changes) (coordinator.Entry, error)

func (r *recordCommand) change(c *cobra.Command, args []string, apply changeFunc, done string) error {
	changes, err := r.policy.changes(c, args[1:])
	if err != nil {
		return err
	}
	return r.withDirectory(c.Context(), func(ctx context.Context, d *coordinator.Directory) error {
		ref, err := r.ref(ctx, d, args[0])
		if err != nil {
			return err
		}
		entry, err := apply(d, ctx, ref, changes)
		if err != nil {
			return err
		}
		r.tellMade(entry)
		fmt.Fprintf(r.stderr, "%s %s\n", entry.Ref, done)
		return r.print(entry)
	})
}

// tellMade names what came into being beside the record: a tenant of a mistyped name limits nothing.
func (r *recordCommand) tellMade(entry coordinator.Entry) {
	for _, made := range entry.Made {
		fmt.Fprintf(r.stderr, "%s made (no limits)\n", made)
	}
}

func (r *recordCommand) createKey() *cobra.Command {
	c := r.command("create --tenant <tenant> [flags] [field=value …]", "Create a key and print it, once", r.example("create"))
	r.policy.add(c, r.kind)
	c.Args = arguments(0, -1)
	c.RunE = func(c *cobra.Command, args []string) error {
		if r.tenant == "" {
			return usagef("keys create needs --tenant")
		}
		if len(args) == 1 && !strings.Contains(args[0], "=") && args[0] != "true" && args[0] != "false" {
			return usagef("%q: a key's name is given as --name %s", args[0], args[0])
		}
		changes, err := r.policy.changes(c, args)
		if err != nil {
			return err
		}
		return r.withDirectory(c.Context(), func(ctx context.Context, d *coordinator.Directory) error {
			entry, key, err := d.CreateKey(ctx, r.tenant, changes)
			if err != nil {
				return err
			}
			r.tellMade(entry)
			if r.json {
				return r.printCreated(entry, key)
			}
			fmt.Fprintf(r.stderr, "%s created for tenant %s; the key is shown only now:\n", entry.ID, entry.Tenant)
			_, err = fmt.Fprintln(r.stdout, key) // M2
			return err
		})
	}
	return c
}

func (r *recordCommand) list() *cobra.Command {
	use := "list"
	if r.kind != coordinator.KindTenant {
		use = "list [--tenant <tenant>]"
	}
	c := r.command(use, fmt.Sprintf("List %ss", r.kind), r.example("list"))
	if r.kind != coordinator.KindTenant {
		c.Flags().BoolVar(&r.scan, "scan", false, "look through Redis first for records made by hand")
	}
	c.Args = arguments(0, 0)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return r.withDirectory(c.Context(), func(ctx context.Context, d *coordinator.Directory) error {
			entries, err := r.entries(ctx, d)
			if err != nil {
				return err
			}
			return r.printAll(entries)
		})
	}
	return c
}

// entries is what list shows: of one tenant, or of all.
func (r *recordCommand) entries(ctx context.Context, d *coordinator.Directory) ([]coordinator.Entry, error) {
	if r.kind == coordinator.KindTenant {
		return d.List(ctx, r.kind, "")
	}
	tenants := []string{r.tenant}
	if r.tenant == "" {
		tenants = nil
		all, err := d.List(ctx, coordinator.KindTenant, "")
		if err != nil {
			return nil, err
		}
		for _, t := range all {
			tenants = append(tenants, t.Tenant)
		}
	}
	var entries []coordinator.Entry
	for _, t := range tenants {
		if r.scan {
			if err := d.Reindex(ctx, t); err != nil {
				return nil, err
			}
		}
		some, err := d.List(ctx, r.kind, t)
		if err != nil {
			return nil, err
		}
		entries = append(entries, some...)
	}
	return entries, nil
}

func (r *recordCommand) show() *cobra.Command {
	c := r.command("show <id>"+r.tenantUse(), "Show one "+string(r.kind)+" with all its fields", r.example("show"))
	c.Args = arguments(1, 1)
	c.RunE = func(c *cobra.Command, args []string) error {
		return r.withDirectory(c.Context(), func(ctx context.Context, d *coordinator.Directory) error {
			ref, err := r.ref(ctx, d, args[0])
			if err != nil {
				return err
			}
			entry, err := d.Show(ctx, ref)
			if err != nil {
				return err
			}
			spent, err := d.Spent(ctx, entry)
			if err != nil {
				return err
			}
			return r.printShown(entry, spent)
		})
	}
	return c
}

func (r *recordCommand) remove() *cobra.Command {
	short := "Delete a " + string(r.kind)
	if r.kind == coordinator.KindKey {
		short = "Delete a key: it is refused from the next request on"
	}
	c := r.command("delete <id>"+r.tenantUse(), short, r.example("delete"))
	if r.kind != coordinator.KindKey {
		c.Flags().BoolVar(&r.withKeys, "keys", false, "delete the keys that refer to it too; without this it is refused while there are some")
	}
	c.Args = arguments(1, 1)
	c.RunE = func(c *cobra.Command, args []string) error {
		return r.withDirectory(c.Context(), func(ctx context.Context, d *coordinator.Directory) error {
			ref, err := r.ref(ctx, d, args[0])
			if err != nil {
				return err
			}
			err = d.Delete(ctx, ref, r.withKeys)
			if errors.Is(err, coordinator.ErrInUse) {
				return fmt.Errorf("%w (--keys deletes them too)", err)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(r.stderr, "%s deleted\n", ref)
			if r.json {
				return encode(r, map[string]any{"deleted": true, "kind": ref.Kind, "tenant": ref.Tenant, "id": ref.ID})
			}
			return nil
		})
	}
	return c
}

// ref names the record that id means. A key may be named without its tenant; then all tenants are looked through.
func (r *recordCommand) ref(ctx context.Context, d *coordinator.Directory, id string) (coordinator.Ref, error) {
	switch {
	case r.kind == coordinator.KindTenant:
		return coordinator.Ref{Kind: r.kind, Tenant: id}, nil
	case r.kind == coordinator.KindKey && coordinator.LooksSecret(id):
		entry, err := d.FindSecret(ctx, id)
		return entry.Ref, err
	case r.tenant != "":
		return coordinator.Ref{Kind: r.kind, Tenant: r.tenant, ID: id}, nil
	case r.kind != coordinator.KindKey:
		return coordinator.Ref{}, usagef("a %s needs --tenant", r.kind)
	}
	tenants, err := d.List(ctx, coordinator.KindTenant, "")
	if err != nil {
		return coordinator.Ref{}, err
	}
	var found []coordinator.Ref
	for _, t := range tenants {
		entry, err := d.Show(ctx, coordinator.Ref{Kind: r.kind, Tenant: t.Tenant, ID: id})
		if err == nil {
			found = append(found, entry.Ref)
		} else if !errors.Is(err, coordinator.ErrNotFound) {
			return coordinator.Ref{}, err
		}
	}
	switch len(found) {
	case 0:
		return coordinator.Ref{}, fmt.Errorf("key %q: %w in any tenant", id, coordinator.ErrNotFound)
	case 1:
		return found[0], nil
	}
	return coordinator.Ref{}, usagef("keys named %q are in several tenants: give --tenant", id)
}

func (r *recordCommand) tenantUse() string {
	switch r.kind {
	case coordinator.KindTenant:
		return ""
	case coordinator.KindKey:
		return " [--tenant <tenant>]"
	}
	return " --tenant <tenant>"
}

// example is a line that works for the command.
func (r *recordCommand) example(verb string) string {
	id := map[coordinator.Kind]string{coordinator.KindTenant: "acme", coordinator.KindTeam: "search --tenant acme",
		coordinator.KindUser: "bob --tenant acme", coordinator.KindKey: "ci --tenant acme"}[r.kind]
	line := "  headgate " + string(r.kind) + "s " + verb
	switch verb {
	case "create":
		if r.kind == coordinator.KindKey {
			return line + ` --tenant acme --team search --name ci --rpm 60 --tpm 100000 --budget 50/month --models 'qwen*'
` + line + ` --tenant acme --expires 720h --budget 50/month --budget 5/day --json`
		}
		return line + " " + id + " --rpm 600 --budget 500/month"
	case "set":
		return line + " " + id + " --rpm 120 --budget 80/month\n" + line + " " + id + " rpm=120 tpm= disabled=true"
	case "list":
		if r.kind == coordinator.KindTenant {
			return line + " --json"
		}
		return line + " --tenant acme"
	}
	return line + " " + id
}
