package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/coordinator"
)

// print shows one record: a line per field, or one JSON object.
func (r *recordCommand) print(e coordinator.Entry) error {
	if r.json {
		return encode(r, e)
	}
	return r.printShown(e, nil)
}

// printShown is print with where the record is, and what it has spent in its current periods.
func (r *recordCommand) printShown(e coordinator.Entry, spent []coordinator.Spent) error {
	if r.json {
		return r.printShownJSON(e, spent)
	}
	w := tabwriter.NewWriter(r.stdout, 0, 0, 2, ' ', 0)
	for _, line := range e.Lines() {
		value := printable(line.Value)
		if line.Name == "expires_at" && e.Expired(time.Now()) {
			value += " (expired)"
		}
		fmt.Fprintf(w, "%s\t%s\n", line.Name, value)
	}
	if spent != nil {
		fmt.Fprintf(w, "redis_key\t%s\n", printable(e.RedisKey()))
	}
	for _, s := range spent {
		fmt.Fprintf(w, "spent %s\t%s\n", s.Period, spentText(s))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, fault := range e.Faults() {
		fmt.Fprintln(r.stderr, "warning: "+printable(fault))
	}
	return nil
}

func spentText(s coordinator.Spent) string {
	text := catalogue.USD(s.SpentNUSD) + " USD, " + catalogue.USD(s.ReservedNUSD) + " reserved"
	if s.LimitNUSD >= 0 {
		text += ", " + catalogue.USD(s.LeftNUSD()) + " left of " + catalogue.USD(s.LimitNUSD)
	}
	return text + fmt.Sprintf(" (requests: %d)", s.Requests)
}

// shownSpend is a Spent in JSON.
type shownSpend struct {
	Period       string `json:"period"`
	RedisKey     string `json:"redis_key"`
	SpentNUSD    int64  `json:"spent_nusd"`
	ReservedNUSD int64  `json:"reserved_nusd"`
	LimitNUSD    *int64 `json:"limit_nusd"` // null: no budget
	LeftNUSD     *int64 `json:"left_nusd"`
	Requests     int64  `json:"requests"`
	Prompt       int64  `json:"prompt_tokens"`
	Completion   int64  `json:"completion_tokens"`
}

func (r *recordCommand) printShownJSON(e coordinator.Entry, spent []coordinator.Spent) error {
	shown := make([]shownSpend, len(spent))
	for i, s := range spent {
		shown[i] = spendInJSON(s)
	}
	return r.printObject(e, []member{{"redis_key", e.RedisKey()}}, []member{{"spend", shown}})
}

func spendInJSON(s coordinator.Spent) shownSpend {
	shown := shownSpend{Period: s.Period, RedisKey: s.RedisKey, SpentNUSD: s.SpentNUSD, ReservedNUSD: s.ReservedNUSD,
		Requests: s.Requests, Prompt: s.Prompt, Completion: s.Completion}
	if left := s.LeftNUSD(); s.LimitNUSD >= 0 {
		shown.LimitNUSD, shown.LeftNUSD = &s.LimitNUSD, &left
	}
	return shown
}

// printCreated is what scripts read from keys create --json: six members that are always there, then what else was set.
func (r *recordCommand) printCreated(e coordinator.Entry, key string, more ...member) error {
	first := []member{{"id", e.ID}, {"key", key}, {"tenant", e.Tenant}, {"team", e.Fields["team"]}, {"name", e.Fields["name"]},
		{"created_at", coordinator.FormatTime(e.CreatedAt())}}
	return r.printObject(e, first, more)
}

// member is one member of a JSON object.
type member struct {
	name  string
	value any
}

// printObject prints the record as one object: what stands in first, then the record's other members, then last.
func (r *recordCommand) printObject(e coordinator.Entry, first, last []member) error {
	record, err := e.MarshalJSON()
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(record))
	if _, err := decoder.Token(); err != nil { // the brace
		return err
	}
	members := first
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return err
		}
		if !slices.ContainsFunc(first, func(m member) bool { return m.name == name }) {
			members = append(members, member{name.(string), value})
		}
	}
	var out bytes.Buffer
	for i, m := range append(members, last...) {
		value, err := json.Marshal(m.value)
		if err != nil {
			return err
		}
		out.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		fmt.Fprintf(&out, "%q:%s", m.name, value)
	}
	out.WriteString("}\n")
	_, err = r.stdout.Write(out.Bytes())
	return err
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
	now := time.Now()
	for _, e := range entries {
		fmt.Fprintln(w, row(e, columns, now))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, e := range entries {
		if e.Kind == coordinator.KindKey && e.Fields["id"] == "" {
			fmt.Fprintf(r.stderr, "warning: %s has no field id: every request with it is refused (HSET %s id …)\n", e.ID, e.RedisKey())
		}
	}
	return nil
}

// row has a column for each name, and what else the record says in one more.
func row(e coordinator.Entry, columns []string, now time.Time) string {
	cells := make([]string, len(columns))
	var rest []string
	lines := append([]coordinator.Line{}, e.Lines()...)
next:
	for _, line := range lines {
		for i, name := range columns {
			if name == line.Name {
				cells[i] = printable(line.Value)
				if name == "expires_at" && e.Expired(now) {
					cells[i] += " (expired)"
				}
				continue next
			}
		}
		if line.Name != "created_at" && line.Name != "previous" {
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
