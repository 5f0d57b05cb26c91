package faults

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/coordinator"
)

// books are what is left of a run: what clients were answered, what was recorded, what Redis says.
type books struct {
	w       *world
	answers []answer
	records map[string]fleet.Line // by rid: the one that counts
	rids    map[string][]string   // by label
	billed  map[string]int64      // nano-dollars of the records, by tenant
	over    map[string]int64      // of these, beyond what was held
	spent   map[string]int64      // what Redis says
	quiet   time.Duration         // how long after the last step nothing was held any more
}

// patience is how long after the last fault a slot or a hold may be left.
const patience = 30 * time.Second

// close waits until nothing is held, then reads everything.
func (w *world) close(answers []answer, since time.Time) (*books, error) {
	b := &books{w: w, answers: answers, records: map[string]fleet.Line{}, rids: map[string][]string{},
		billed: map[string]int64{}, over: map[string]int64{}, spent: map[string]int64{}}
	var held error
	for deadline := since.Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if held = w.quiet(); held == nil || time.Now().After(deadline) {
			break
		}
	}
	b.quiet = time.Since(since)
	if err := b.read(); err != nil {
		return b, err
	}
	return b, held
}

// quiet is nil when nothing is reserved, held or waiting. // I3
func (w *world) quiet() error {
	for _, t := range []string{tenant, tight} {
		if n, err := w.reallyOpen(t); n > 0 || err != nil {
			return cmp.Or(err, fmt.Errorf("%d reservations of %s are open", n, t))
		}
		for key, command := range map[string]string{":parallel": "HLEN", ":reservations": "ZCARD"} {
			if n, err := w.size(command, root(t)+key); n > 0 || err != nil {
				return cmp.Or(err, fmt.Errorf("%d entries in %s", n, root(t)+key))
			}
		}
		if err := w.zero(root(t)+":spend:*", "reserved_nusd"); err != nil {
			return err
		}
	}
	if err := w.zero(poolRoot+":backend:*", "held"); err != nil {
		return err
	}
	for _, pattern := range []string{poolRoot + ":held:*", poolRoot + ":waiting:*", poolRoot + ":queue"} {
		if keys, err := w.keysOf(pattern); len(keys) > 0 || err != nil {
			return cmp.Or(err, fmt.Errorf("left: %v", keys))
		}
	}
	return nil
}

// zero is nil when the field is 0 or absent in all hashes of the pattern.
func (w *world) zero(pattern, field string) error {
	keys, err := w.keysOf(pattern)
	if err != nil {
		return err
	}
	for _, key := range keys {
		fields, err := w.hash(key)
		if n := fields[field]; err != nil || n != "0" && n != "" {
			return cmp.Or(err, fmt.Errorf("%s of %s is %s", field, key, n))
		}
	}
	return nil
}

// reallyOpen counts reservations without those that were charged at their hold and are kept an hour for a late settlement.
func (w *world) reallyOpen(tenant string) (n int64, err error) {
	fields, err := w.hash(root(tenant) + ":open")
	for _, claim := range fields {
		if !strings.HasPrefix(claim, "x ") {
			n++
		}
	}
	return n, err
}

func (b *books) read() error {
	add := func(l fleet.Line) {
		if l.RID == "" {
			return
		}
		if old, ok := b.records[l.RID]; ok {
			l.RequestID = cmp.Or(l.RequestID, old.RequestID)
		} else if l.RequestID != "" {
			b.rids[l.RequestID] = append(b.rids[l.RequestID], l.RID)
		}
		b.records[l.RID] = l
	}
	for _, l := range b.w.Lines() {
		add(l)
	}
	for _, t := range []string{tenant, tight} {
		lines, err := b.w.stream(t)
		if err != nil {
			return err
		}
		for _, l := range lines {
			add(l) // the stream's last record of a rid counts
		}
		keys, err := b.w.keysOf(root(t) + ":spend:tenant:*")
		if err != nil {
			return err
		}
		for _, key := range keys {
			fields, err := b.w.hash(key)
			if err != nil {
				return err
			}
			n, _ := strconv.ParseInt(fields["spent_nusd"], 10, 64)
			b.spent[t] += n
		}
	}
	for _, l := range b.records {
		if l.CostNUSD != nil {
			b.billed[l.Tenant] += *l.CostNUSD
			b.over[l.Tenant] += l.OverNUSD
		}
	}
	return nil
}

// stream is the tenant's usage stream.
func (w *world) stream(tenant string) (all []fleet.Line, err error) {
	for from := "-"; ; {
		m, err := w.reader.Do(w.t.Context(), "XRANGE", root(tenant)+":usage", from, "+", "COUNT", "1000")
		if err != nil {
			return nil, err
		}
		page, err := m.AsXRange()
		if err != nil {
			return nil, err
		}
		for _, entry := range page {
			var l fleet.Line
			if err := json.Unmarshal([]byte(entry.FieldValues["record"]), &l); err != nil {
				return nil, fmt.Errorf("usage record %s: %w", entry.ID, err)
			}
			all = append(all, l)
			from = "(" + entry.ID
		}
		if len(page) < 1000 {
			return all, nil
		}
	}
}

// account is what the books say about money.
type account struct {
	unbilled []string // answered whole, and nothing charged
	double   []string // one request charged under two rids
	foreign  []string // charged less or more than the client was shown
	strange  []string // a generation nobody was charged for and no record names
}

// audit compares what clients got with what was recorded and what engines did. // I1
func (b *books) audit() (a account) {
	known := map[string]bool{} // the first 8 digits of rids that have a record
	for rid := range b.records {
		known[rid[:min(8, len(rid))]] = true
	}
	ridOf := map[string]string{} // by label, of the last generation
	for _, e := range b.w.engines {
		for _, g := range e.generations() {
			label, rid := g.label()
			ridOf[label] = rid
			if !known[rid] {
				a.strange = append(a.strange, g.id)
			}
		}
	}
	for _, answer := range b.answers {
		var charged []int64
		for _, rid := range b.rids[answer.id] {
			if l := b.records[rid]; l.CostNUSD != nil && *l.CostNUSD > 0 {
				charged = append(charged, *l.CostNUSD)
			}
		}
		// A lost record has no label: it is found by the rid the engine was told.
		if len(charged) == 0 {
			for rid, l := range b.records {
				if l.Outcome == "lost" && ridOf[answer.id] != "" && strings.HasPrefix(rid, ridOf[answer.id]) {
					charged = append(charged, *l.CostNUSD)
				}
			}
		}
		switch {
		case len(charged) > 1:
			a.double = append(a.double, answer.id)
		case len(charged) == 0 && answer.end == whole:
			a.unbilled = append(a.unbilled, answer.id)
		}
		for _, rid := range b.rids[answer.id] {
			if l := b.records[rid]; answer.end == whole && l.Outcome == "ok" && l.CostNUSD != nil {
				if want := 1000 * (2*l.Prompt + 6*l.Completion); *l.CostNUSD != want {
					a.foreign = append(a.foreign, l.Raw)
				}
			}
		}
	}
	return a
}

// agree has headgate compare its counters with its records. All of them must agree, but for what a killed replica did not get
// done: a record that is not in its log, and one in its log whose settlement never came, so that the hold was charged.
func (b *books) agree(t *testing.T) {
	t.Helper()
	args := []string{"audit", "--json"}
	for _, r := range b.w.Replicas {
		args = append(args, "--usage-log", r.UsageLog())
	}
	for _, args := range [][]string{{"audit"}, args} {
		out, err := b.w.Command(args...).CombinedOutput()
		if err == nil {
			continue
		}
		var all []coordinator.TenantAudit
		text, _, _ := strings.Cut(string(out), "\n")
		if len(args) == 1 || json.Unmarshal([]byte(text), &all) != nil {
			t.Errorf("headgate %v: %v: %s", args[:1], err, out)
			continue
		}
		for _, one := range all {
			for _, d := range one.Differences {
				if d.Kind != "unlogged" && (d.Kind != "figures" || b.records[d.RID].Outcome != "lost") {
					t.Errorf("headgate audit: %+v", d)
				}
			}
		}
	}
}

// crowd is how many requests engine had at once at most, and for how long it had more than its slots in one piece.
func crowd(generations []generation, slots int) (most int, above time.Duration) {
	type change struct {
		at time.Time
		by int
	}
	var changes []change
	for _, g := range generations {
		if g.end.IsZero() {
			continue // its process died under it
		}
		changes = append(changes, change{g.begun, 1}, change{g.end, -1})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.by, b.by)) })
	now := 0
	var since time.Time
	for _, c := range changes {
		if now += c.by; now > slots && since.IsZero() {
			since = c.at
		}
		if now <= slots && !since.IsZero() {
			above, since = max(above, c.at.Sub(since)), time.Time{}
		}
		most = max(most, now)
	}
	return most, above
}
