package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// counterPage is how many counters are read at one instant: what is asked for takes Redis a few milliseconds.
const counterPage = 500

// readTenant reads what Redis knows of a tenant. The counters are read page by page, each with the end of the stream at that
// instant, so that a record counts only in counters read behind it. // A1
func (a *audit) readTenant(ctx context.Context, b *tenantBooks) error {
	names := map[string]bool{}
	last, err := a.readStream(ctx, b, "-", func(e audited) error {
		for _, c := range e.Charged {
			names[c] = true
		}
		return a.file(e)
	})
	if err != nil {
		return err
	}
	if err := a.findCounters(ctx, b.Tenant, names); err != nil {
		return err
	}
	maps.DeleteFunc(names, func(c string, _ bool) bool { return !a.covers(c) })
	all := slices.Sorted(maps.Keys(names))
	for first := true; first || len(all) > 0; first = false {
		page := all[:min(len(all), counterPage)]
		all = all[len(page):]
		if err := a.readPage(ctx, b, page, first); err != nil {
			return err
		}
	}
	_, err = a.readStream(ctx, b, last, func(e audited) error { return a.file(e) })
	return err
}

func (a *audit) findCounters(ctx context.Context, tenant string, names map[string]bool) error {
	prefix := TenantRoot(tenant) + ":spend:"
	for cursor := "0"; ; {
		var batch pipeline.Batch
		page, err := lua.Find(&batch, a.cfg.Store, TenantRoot(tenant), cursor, ":spend:*").Wait(ctx)
		if err != nil {
			return fmt.Errorf("spend counters: %w", err)
		}
		for _, key := range page.Keys {
			names[strings.TrimPrefix(key, prefix)] = true
		}
		if cursor = page.Next; cursor == "0" {
			return nil
		}
	}
}

func (a *audit) readPage(ctx context.Context, b *tenantBooks, page []string, first bool) error {
	var batch pipeline.Batch
	r, err := lua.Books(&batch, a.cfg.Store, TenantRoot(b.Tenant), page).Wait(ctx)
	if err != nil {
		return err
	}
	claims, held := map[string]lua.Claim{}, map[string]int64{}
	for rid, text := range r.Open {
		if strings.HasPrefix(text, "x") {
			continue // charged at its hold, and recorded so
		}
		c, err := lua.ParseClaim(text)
		if err != nil {
			if first {
				b.differs(Difference{Kind: DiffUnreadable, RID: rid, Text: "reservation " + rid + " cannot be read: it holds what it holds until somebody removes it"})
			}
			continue
		}
		claims[rid] = c
		for _, counter := range c.Charged() {
			held[counter] += c.HoldNUSD
		}
	}
	if first {
		b.known, b.claims = r, claims
		b.state(a)
	}
	for i, c := range page {
		if !r.Figures[i].Found {
			continue
		}
		b.counter(c, r.Figures[i], parseStreamID(r.Last), held[c])
	}
	return nil
}

// state is what is not told by counters of money: what runs, what is stuck, what was not charged.
func (b *tenantBooks) state(a *audit) {
	r := b.known
	if r.Gone > 0 {
		b.oldest = parseStreamID(r.Oldest)
	}
	running := map[string]int64{}
	for _, c := range b.claims {
		b.Open++
		b.OpenNUSD += c.HoldNUSD
		for scope := range strings.SplitSeq(c.Scopes, ";") {
			name, _ := scopeOf(scope)
			running[name]++
		}
	}
	names := maps.Clone(running)
	for scope := range r.Running {
		names[scope] += 0
	}
	for _, scope := range slices.Sorted(maps.Keys(names)) {
		n, _ := strconv.ParseInt(r.Running[scope], 10, 64)
		if n != running[scope] {
			b.differs(Difference{Kind: DiffRunning, Field: scope, Redis: n, Records: running[scope],
				Text: fmt.Sprintf("running requests of %s: %d counted, %d open", scope, n, running[scope])})
		}
	}
	if r.Overdue > 0 {
		b.differs(Difference{Kind: DiffStuck, Redis: r.Overdue,
			Text: fmt.Sprintf("reservations past their deadline by more than a minute: %d; their replica is gone, and a key they need cannot be read", r.Overdue)})
	}
	for _, text := range r.Doubtful {
		b.doubtful(a, text)
	}
}

func (b *tenantBooks) doubtful(a *audit, text string) {
	e, err := readRecord([]byte(text))
	if err != nil {
		b.differs(Difference{Kind: DiffUnreadable, Text: "a doubtful record: " + err.Error()})
		return
	}
	b.doubts[e.RID] = true
	if len(e.Charged) > 0 && !slices.ContainsFunc(e.Charged, a.covers) {
		return
	}
	var cost struct {
		NUSD int64 `json:"cost_nusd"`
	}
	_ = json.Unmarshal([]byte(text), &cost)
	b.differs(Difference{Kind: DiffDoubtful, RID: e.RID, Records: cost.NUSD,
		Text: fmt.Sprintf("request %s was settled when its admission was no longer known: %d nano-dollars not charged", e.RID, cost.NUSD)})
}

func (b *tenantBooks) counter(name string, f lua.CounterFigures, at streamID, held int64) {
	c := counted{at: at}
	for _, one := range []struct {
		field, text string
		into        *int64
	}{{"spent_nusd", f.SpentNUSD, &c.Cost}, {"reserved_nusd", f.ReservedNUSD, &c.reserved}, {"requests", f.Requests, &c.Requests},
		{"prompt_tokens", f.Prompt, &c.Prompt}, {"cached_tokens", f.Cached, &c.Cached}, {"completion_tokens", f.Completion, &c.Completion}} {
		n, err := strconv.ParseInt(one.text, 10, 64)
		if err != nil && one.text != "" {
			b.differs(Difference{Kind: DiffUnreadable, Counter: name, Field: one.field,
				Text: fmt.Sprintf("%s: %s is %q", name, one.field, one.text)})
		}
		*one.into = n
	}
	if c.reserved != held {
		b.differs(Difference{Kind: DiffReserved, Counter: name, Field: "reserved_nusd", Redis: c.reserved, Records: held,
			Text: fmt.Sprintf("%s reserves %d nano-dollars, the open requests hold %d", name, c.reserved, held)})
	}
	b.redis[name] = c
}
