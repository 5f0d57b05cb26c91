package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/headgate/headgate/pipeline"
)

// Spent is what one record has spent in one of its current periods.
type Spent struct {
	Period       string // as in key names
	RedisKey     string // of the counter; it is there once something was spent
	LimitNUSD    int64  // -1: no budget
	SpentNUSD    int64
	ReservedNUSD int64 // held by requests that run
	Requests     int64
	Prompt       int64 // tokens, with cached ones
	Completion   int64 // tokens
}

// LeftNUSD is what may still be reserved; negative where a budget was lowered below what is spent.
func (s Spent) LeftNUSD() int64 { return s.LimitNUSD - s.SpentNUSD - s.ReservedNUSD }

// Spent reads the counters of e's budgets in the periods of now; without a budget that of the month, which is counted
// anyway.
func (d *Directory) Spent(ctx context.Context, e Entry) ([]Spent, error) {
	now, err := d.now(ctx)
	if err != nil {
		return nil, err
	}
	all := e.budgets(now)
	var b pipeline.Batch
	handles := make([]*pipeline.Handle[map[string]string], len(all))
	for i, s := range all {
		handles[i] = pipeline.Declare(&b, pipeline.Command{Store: d.store, Name: "HGETALL", Key: s.RedisKey},
			func(m rueidis.RedisMessage) (map[string]string, error) { return m.AsStrMap() })
	}
	for i, h := range handles {
		fields, err := h.Wait(ctx)
		if err != nil {
			return nil, fmt.Errorf("what %s spent: %w", e.Ref, err)
		}
		for name, value := range map[string]*int64{"spent_nusd": &all[i].SpentNUSD, "reserved_nusd": &all[i].ReservedNUSD, "requests": &all[i].Requests,
			"prompt_tokens": &all[i].Prompt, "completion_tokens": &all[i].Completion} {
			*value, _ = strconv.ParseInt(fields[name], 10, 64)
		}
	}
	return all, nil
}

// budgets are the record's, in its order, without figures; what cannot be read is left out (Faults names it).
func (e Entry) budgets(now time.Time) []Spent {
	id := e.ID
	switch e.Kind {
	case KindTenant:
		id = e.Tenant
	case KindKey:
		id = e.Fields["id"]
	}
	var all []Spent
	add := func(usd, spec string) {
		if name := periodName(spec, now, e.CreatedAt()); name != "" && (usd == "" || usdForm.MatchString(usd)) {
			limit := int64(-1)
			if usd != "" {
				limit = nanoDollars(usd)
			}
			all = append(all, Spent{Period: name, RedisKey: SpendCounter(e.Tenant, string(e.Kind), id, name), LimitNUSD: limit})
		}
	}
	if usd := e.Fields["budget_usd"]; usd != "" {
		add(usd, cmp.Or(e.Fields["period"], "month"))
	}
	for _, item := range strings.FieldsFunc(e.Fields["budgets"], func(c rune) bool { return c == ' ' || c == ',' }) {
		if usd, spec, ok := strings.Cut(item, "/"); ok {
			add(usd, spec)
		}
	}
	if e.Fields["budget_usd"] == "" && e.Fields["budgets"] == "" {
		add("", "month")
	}
	return all
}

// nanoDollars of a text of usdForm.
func nanoDollars(usd string) int64 {
	whole, part, _ := strings.Cut(usd, ".")
	n, _ := strconv.ParseInt(whole+(part + "000000000")[:9], 10, 64)
	return n
}

// periodName is the period of spec that holds now, as scripts/lua/period.part.lua names it; "" for a spec it cannot read.
// A length is counted from the record's making.
func periodName(spec string, now, created time.Time) string {
	now = now.UTC()
	switch spec {
	case "day":
		return now.Format("2006-01-02")
	case "week":
		year, week := now.ISOWeek()
		return fmt.Sprintf("%04d-W%02d", year, week)
	case "month":
		return now.Format("2006-01")
	case "total":
		return spec
	}
	if !periodForm.MatchString(spec) {
		return ""
	}
	count, err := strconv.ParseInt(spec[:len(spec)-1], 10, 64)
	if err != nil {
		return ""
	}
	length := count * map[byte]int64{'s': 1, 'm': 60, 'h': 3600, 'd': 86400}[spec[len(spec)-1]]
	from := int64(0)
	if !created.IsZero() {
		from = created.Unix()
	}
	passed := now.Unix() - from
	start := from + (passed - ((passed%length)+length)%length)
	return fmt.Sprintf("%s@%d", spec, start)
}

// periodEnd is when the period of that name ends; zero for total and for what is no period's name.
func periodEnd(name string) time.Time {
	if spec, from, ok := strings.Cut(name, "@"); ok && periodForm.MatchString(spec) {
		count, err1 := strconv.ParseInt(spec[:len(spec)-1], 10, 64)
		start, err2 := strconv.ParseInt(from, 10, 64)
		if err1 != nil || err2 != nil {
			return time.Time{}
		}
		return time.Unix(start+count*map[byte]int64{'s': 1, 'm': 60, 'h': 3600, 'd': 86400}[spec[len(spec)-1]], 0).UTC()
	}
	if year, week, ok := strings.Cut(name, "-W"); ok {
		y, err1 := strconv.Atoi(year)
		w, err2 := strconv.Atoi(week)
		if err1 != nil || err2 != nil {
			return time.Time{}
		}
		fourth := time.Date(y, 1, 4, 0, 0, 0, 0, time.UTC) // it lies in week 1
		return fourth.AddDate(0, 0, 7*w-(int(fourth.Weekday())+6)%7)
	}
	if day, err := time.Parse("2006-01-02", name); err == nil {
		return day.AddDate(0, 0, 1)
	}
	if month, err := time.Parse("2006-01", name); err == nil {
		return month.AddDate(0, 1, 0)
	}
	return time.Time{}
}
