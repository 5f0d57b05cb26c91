package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// weigh takes the records of one rid: it names what does not agree among them, and adds the one that counts to its
// counters. // A2
func (a *audit) weigh(records []audited) {
	var stream, logs []audited
	for _, e := range records {
		if e.Log == "" {
			stream = append(stream, e)
		} else {
			logs = append(logs, e)
		}
	}
	b := a.books[records[0].Tenant]
	b.doubles(stream, logs)
	switch {
	case len(stream) == 0:
		b.onlyLogged(logs[len(logs)-1])
	case len(logs) == 0:
		e := stream[len(stream)-1]
		if len(a.cfg.Logs) > 0 && !e.Lost && len(e.Charged) > 0 {
			b.differs(Difference{Kind: DiffUnlogged, RID: e.RID, Redis: e.Cost,
				Text: fmt.Sprintf("request %s (%s, replica %s) is charged with %d nano-dollars and in none of the logs", e.RID, clock(e.AtMS), e.Replica, e.Cost)})
		}
		b.add(e)
	default:
		e, line := stream[len(stream)-1], logs[len(logs)-1]
		if e.figures != line.figures {
			b.differs(Difference{Kind: DiffFigures, RID: e.RID, Redis: e.Cost, Records: line.Cost,
				Text: fmt.Sprintf("request %s: charged %s%s, its line in %s says %s", e.RID, e.figures, atHold(e), line.Log, line.figures)})
		}
		b.add(e)
	}
}

// doubles names records of one request that do not replace each other.
func (b *tenantBooks) doubles(stream, logs []audited) {
	for i, e := range stream {
		if i > 0 && !e.Replaces {
			b.differs(Difference{Kind: DiffDouble, RID: e.RID, Redis: e.Cost, Records: stream[i-1].Cost,
				Text: fmt.Sprintf("request %s is in the usage stream twice, and the later record does not replace the earlier: charged %s and %s",
					e.RID, stream[i-1].figures, e.figures)})
		}
	}
	for i, e := range logs {
		if i > 0 && !e.Replaces {
			b.differs(Difference{Kind: DiffDouble, RID: e.RID, Redis: e.Cost, Records: logs[i-1].Cost,
				Text: fmt.Sprintf("request %s is in %s and again in %s", e.RID, logs[i-1].Log, e.Log)})
		}
	}
}

// onlyLogged is a line without a record in the stream: it is older than the stream, not settled yet, or lost.
func (b *tenantBooks) onlyLogged(e audited) {
	_, open := b.claims[e.RID]
	switch {
	case len(e.Charged) == 0 || open || b.doubts[e.RID]:
	case b.oldest.MS > uint64(max(e.AtMS, 0)):
		b.add(e)
	default:
		b.differs(Difference{Kind: DiffMissing, RID: e.RID, Records: e.Cost,
			Text: fmt.Sprintf("request %s (%s, in %s) is charged nowhere: %s are missing, unless replica %s still has them in its spool", e.RID,
				clock(e.AtMS), e.Log, e.figures, e.Replica)})
	}
}

// add counts a record in its counters, as far as they were read behind it.
func (b *tenantBooks) add(e audited) {
	if len(e.Charged) == 0 {
		return
	}
	for _, c := range e.Charged {
		if r, there := b.redis[c]; e.ID.after(r.at) && (there || e.ID.after(parseStreamID(b.known.Last))) {
			continue // written while the audit was reading
		}
		if b.sums[c] == nil {
			b.sums[c] = &figures{}
		}
		b.sums[c].add(e.figures)
	}
	b.Records++
	b.CostNUSD, b.Prompt, b.Output = b.CostNUSD+e.Cost, b.Prompt+e.Prompt, b.Output+e.Completion
	if e.Lost {
		b.Lost, b.LostNUSD = b.Lost+1, b.LostNUSD+e.Cost
	}
	if e.Estimated {
		b.Estimated, b.EstimatedNUSD = b.Estimated+1, b.EstimatedNUSD+e.Cost
	}
}

func atHold(e audited) string {
	if e.Lost {
		return " (its hold: the settlement never came)"
	}
	return ""
}

// close compares the sums with the counters. logged: usage logs were given, which reach farther back than the stream.
func (b *tenantBooks) close(logged bool) {
	names := map[string]bool{}
	for c := range b.redis {
		names[c] = true
	}
	for c := range b.sums {
		names[c] = true
	}
	now, short := time.UnixMilli(b.known.NowMS), int64(0)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		redis, there := b.redis[name]
		var records figures
		if s := b.sums[name]; s != nil {
			records = *s
		}
		if !there && forgotten(name, now) {
			continue
		}
		b.Counters++
		if redis.figures == records {
			continue
		}
		if !logged && b.oldest.MS > 0 && redis.Requests > records.Requests {
			short++
			continue
		}
		b.counterDiffers(name, redis.figures, records, there)
	}
	if short > 0 {
		b.differs(Difference{Kind: DiffIncomplete, Redis: b.known.Gone, Text: fmt.Sprintf(
			"counters that cannot be checked: %d; the usage stream begins at %s, records before that are gone: %d (give the usage logs)",
			short, clock(int64(b.oldest.MS)), b.known.Gone)})
	}
	slices.SortStableFunc(b.Differences, func(x, y Difference) int {
		return strings.Compare(x.Kind+x.RID+x.Counter, y.Kind+y.RID+y.Counter)
	})
}

func (b *tenantBooks) counterDiffers(name string, redis, records figures, there bool) {
	if !there {
		b.differs(Difference{Kind: DiffCounter, Counter: name, Field: "requests", Records: records.Requests,
			Text: fmt.Sprintf("%s is not there; its records say %s", name, records)})
		return
	}
	for _, f := range []struct {
		field          string
		redis, records int64
	}{{"spent_nusd", redis.Cost, records.Cost}, {"requests", redis.Requests, records.Requests}, {"prompt_tokens", redis.Prompt, records.Prompt},
		{"cached_tokens", redis.Cached, records.Cached}, {"completion_tokens", redis.Completion, records.Completion}} {
		if f.redis != f.records {
			b.differs(Difference{Kind: DiffCounter, Counter: name, Field: f.field, Redis: f.redis, Records: f.records,
				Text: fmt.Sprintf("%s: %s is %d, the records say %d (%+d)", name, f.field, f.redis, f.records, f.redis-f.records)})
		}
	}
}

// forgotten is true for a counter whose time is over: Redis keeps it 35 days after its period's end.
func forgotten(counter string, now time.Time) bool {
	end := periodEnd(counter[strings.LastIndexByte(counter, ':')+1:])
	return !end.IsZero() && now.After(end.AddDate(0, 0, 35))
}

func (f figures) String() string {
	return fmt.Sprintf("%d nano-dollars, %d+%d tokens", f.Cost, f.Prompt, f.Completion)
}

func clock(ms int64) string { return FormatTime(time.UnixMilli(ms)) }
