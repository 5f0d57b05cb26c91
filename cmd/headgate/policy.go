package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/headgate/headgate/coordinator"
)

// policyFlags are the flags that write fields. They are texts: the directory judges them, as it judges field=value.
type policyFlags struct{ fields map[string]string } // flag → field

func (p *policyFlags) add(c *cobra.Command, kind coordinator.Kind) {
	p.fields = map[string]string{}
	text := func(name, field, usage string) {
		p.fields[name] = field
		c.Flags().String(name, "", usage)
	}
	text("rpm", "rpm", "requests per sliding minute")
	text("tpm", "tpm", "tokens per sliding minute")
	text("parallel", "parallel", "requests running at one time")
	p.fields["budget"] = "budget"
	c.Flags().StringArray("budget", nil, "dollars per period, as 50/month, 5/day, 20/week, 900/total or 100/30d; may repeat")
	text("models", "models", "model names or patterns, comma-separated; * is one or more characters")
	text("priority", "priority", "0 to 9, lower goes first")
	text("tags", "tags", "up to 8, comma-separated")
	text("name", "name", "a name for people")
	p.flag(c, "disabled", "disabled", "refuse its requests")
	p.flag(c, "isolate-prefix", "isolate_prefix", "share no engine prefix cache with others")
	if kind == coordinator.KindKey {
		text("team", "team", "team the key belongs to; made if it is missing")
		text("user", "user", "user the key belongs to; made if it is missing")
		text("expires", "expires_at", "when it ends: a length as 720h or 30d, a time as 2026-12-31T00:00:00Z, or its last day (UTC) as 2026-12-31")
	}
}

// flag may stand without a value.
func (p *policyFlags) flag(c *cobra.Command, name, field, usage string) {
	p.fields[name] = field
	c.Flags().String(name, "", usage)
	f := c.Flags().Lookup(name)
	f.NoOptDefVal, f.DefValue = "true", ""
}

// changes is what the flags and the field=value arguments say together.
func (p *policyFlags) changes(c *cobra.Command, args []string) (coordinator.Changes, error) {
	changes := coordinator.Changes{}
	c.Flags().Visit(func(f *pflag.Flag) {
		field, ok := p.fields[f.Name]
		if !ok {
			return
		}
		changes[field] = f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			changes[field] = strings.Join(list.GetSlice(), " ")
		}
	})
	for _, arg := range args {
		field, value, ok := strings.Cut(arg, "=")
		switch {
		case !ok && (arg == "true" || arg == "false"):
			return nil, usagef("%q: want field=value, and for a flag --disabled=%s", arg, arg)
		case !ok:
			return nil, usagef("%q: want field=value", arg)
		}
		if before, twice := changes[field]; twice {
			if field != "budget" || before == "" || value == "" {
				return nil, usagef("%s is given twice", field)
			}
			value = before + " " + value
		}
		changes[field] = value
	}
	return changes, nil
}
