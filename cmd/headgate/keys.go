package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/coordinator"
)

func (r *recordCommand) rotate() *cobra.Command {
	grace := "24h"
	c := r.command("rotate <id> [--tenant <tenant>] [--grace 24h]", "Give a key a new secret and print it, once",
		"  headgate keys rotate ci --tenant acme --grace 24h\n  headgate keys rotate key_01J8… --grace 7d\n  headgate keys rotate key_01J8… --grace 0s --json")
	c.Long = `Makes a new key with the id, name and policy of the old one: the two share every limit and budget. The old one works on for the
grace time (0s: it is refused from the next request on); what is set on or deleted from the id later concerns both.`
	c.Flags().StringVar(&grace, "grace", grace, "how long the old key works on, as 90m, 24h or 7d")
	c.Args = arguments(1, 1)
	c.RunE = func(c *cobra.Command, args []string) error {
		left, ok := coordinator.ParseLength(grace)
		if !ok {
			return usagef("--grace %q: want a length as 90m, 24h or 7d", grace)
		}
		return r.withDirectory(c.Context(), func(ctx context.Context, d *coordinator.Directory) error {
			ref, err := r.ref(ctx, d, args[0])
			if err != nil {
				return err
			}
			done, err := d.Rotate(ctx, ref, left)
			if err != nil {
				return err
			}
			end := coordinator.FormatTime(done.OldEnd)
			if r.json {
				return r.printCreated(done.Entry, done.Secret, member{"old_expires_at", end})
			}
			fmt.Fprintf(r.stderr, "%s rotated; the old key ends at %s; the new key is shown only now:\n", done.ID, end)
			_, err = fmt.Fprintln(r.stdout, done.Secret) // M2
			return err
		})
	}
	return c
}

func (r *recordCommand) importKeys() *cobra.Command {
	var from string
	c := r.command("import --from <file> [--tenant <tenant>]", "Take over keys that were made elsewhere",
		"  headgate keys import --from keys.jsonl --tenant acme\n  headgate keys import --from - < keys.jsonl")
	c.Long = `Reads one JSON object per line: "key" (any text, also sk-proj-…), "tenant" (or --tenant for all), and what keys create takes: id, name,
team, user, rpm, tpm, parallel, budget ("50/month", or a list), models, priority, tags, isolate_prefix, disabled,
expires_at, created_at. Clients go on with the keys they have. Nothing is written when any line is at fault; a key that is
there already is left as it is. The keys themselves are stored nowhere and printed nowhere.`
	c.Flags().StringVar(&from, "from", "", "file to read; - is standard input")
	c.Args = arguments(0, 0)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if from == "" {
			return usagef("keys import needs --from")
		}
		keys, err := r.readForeign(from)
		if err != nil {
			return err
		}
		return r.withDirectory(c.Context(), func(ctx context.Context, d *coordinator.Directory) error {
			done, err := d.Import(ctx, keys)
			return r.tellImported(done, err)
		})
	}
	return c
}

// tellImported prints what was taken over, also before an err.
func (r *recordCommand) tellImported(done []coordinator.Imported, err error) error {
	there := 0
	for _, one := range done {
		r.tellMade(one.Entry)
		if one.There {
			there++
		}
		if r.json {
			if err := encode(r, map[string]any{"id": one.ID, "tenant": one.Tenant, "name": one.Fields["name"], "there": one.There}); err != nil {
				return err
			}
		}
	}
	if err == nil || len(done) > 0 {
		fmt.Fprintf(r.stderr, "%s imported, %d there already\n", some(int64(len(done)-there), "key"), there)
	}
	return err
}

// readForeign reads the file of an import. Errors name the line and quote nothing of it: it holds a secret.
func (r *recordCommand) readForeign(from string) ([]coordinator.Foreign, error) {
	in := r.stdin
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	if in == nil {
		in = strings.NewReader("")
	}
	var keys []coordinator.Foreign
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		k, err := foreign(line, r.tenant)
		if err != nil {
			return nil, usagef("line %d: %w", n, err)
		}
		k.Line = n
		keys = append(keys, k)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", from, err)
	}
	if len(keys) == 0 {
		return nil, usagef("%s holds no keys", from)
	}
	return keys, nil
}

// foreign reads one line; tenant is for lines that name none.
func foreign(line []byte, tenant string) (coordinator.Foreign, error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(line, &members) != nil {
		return coordinator.Foreign{}, fmt.Errorf("want one JSON object")
	}
	k := coordinator.Foreign{Tenant: tenant, Policy: coordinator.Changes{}}
	for name, raw := range members {
		text, err := textOf(name, raw)
		if err != nil {
			return coordinator.Foreign{}, fmt.Errorf("%s: %w", printable(name), err)
		}
		switch name {
		case "key":
			k.Secret = text
		case "tenant":
			k.Tenant = text
		case "id":
			k.ID = text
		case "created_at":
			k.Created = text
		default:
			if text != "" {
				k.Policy[name] = text
			}
		}
	}
	switch {
	case k.Secret == "":
		return k, fmt.Errorf("it has no key")
	case k.Tenant == "":
		return k, fmt.Errorf("it has no tenant, and --tenant is not given")
	}
	return k, nil
}

// textOf is a member as a flag would have it; null is nothing.
func textOf(name string, raw json.RawMessage) (string, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil && err != io.EOF {
		return "", fmt.Errorf("not readable")
	}
	switch v := value.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return fmt.Sprint(v), nil
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			text, ok := item.(string)
			if !ok {
				return "", fmt.Errorf("want a list of texts")
			}
			parts[i] = text
		}
		if name == "budget" || name == "budgets" {
			return strings.Join(parts, " "), nil
		}
		return strings.Join(parts, ","), nil
	}
	return "", fmt.Errorf("want a text, a number, true or false, or a list of texts")
}
