package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/headgate/headgate/coordinator"
)

// print shows one record: a line per field, or one JSON object.
func (r *recordCommand) print(e coordinator.Entry) error {
	if r.json {
		return encode(r, e)
	}
	w := tabwriter.NewWriter(r.stdout, 0, 0, 2, ' ', 0)
	for _, line := range e.Lines() {
		fmt.Fprintf(w, "%s\t%s\n", line.Name, printable(line.Value))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, fault := range e.Faults() {
		fmt.Fprintln(r.stderr, "warning: "+printable(fault))
	}
	return nil
}

// printAll shows a table, or a JSON array.
func (r *recordCommand) printAll(entries []coordinator.Entry) error {
	if r.json {
		if entries == nil {
			entries = []coordinator.Entry{}
		}
		return encode(r, entries)
	}
	w := tabwriter.NewWriter(r.stdout, 0, 0, 2, ' ', 0)
	columns := map[coordinator.Kind][]string{
		coordinator.KindTenant: {"tenant"},
		coordinator.KindTeam:   {"tenant", "id"},
		coordinator.KindUser:   {"tenant", "id"},
		coordinator.KindKey:    {"tenant", "id", "name", "team", "user", "expires_at"},
	}[r.kind]
	fmt.Fprintln(w, strings.ToUpper(strings.Join(columns, "\t"))+"\tPOLICY")
	for _, e := range entries {
		fmt.Fprintln(w, row(e, columns))
	}
	return w.Flush()
}

// row has a column for each name, and what else the record says in one more.
func row(e coordinator.Entry, columns []string) string {
	cells := make([]string, len(columns))
	var rest []string
	lines := append([]coordinator.Line{}, e.Lines()...)
next:
	for _, line := range lines {
		for i, name := range columns {
			if name == line.Name {
				cells[i] = printable(line.Value)
				continue next
			}
		}
		if line.Name != "created_at" {
			rest = append(rest, printable(line.Name+"="+line.Value))
		}
	}
	if len(e.Faults()) > 0 {
		rest = append(rest, "(faulty: see show)")
	}
	return strings.Join(append(cells, strings.Join(rest, " ")), "\t")
}

// printable keeps what anybody may have written into Redis from moving the terminal's cursor.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 || c == 0x2028 || c == 0x2029 {
			return '?'
		}
		return c
	}, s)
}

func encode(r *recordCommand, value any) error {
	enc := json.NewEncoder(r.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}
