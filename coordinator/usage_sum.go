package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/pipeline"
)

// UsageQuery says which usage records are added up. Empty fields take all.
type UsageQuery struct {
	Store   *pipeline.Store
	Tenants []string
	Logs    []UsageLog // instead of the streams; they have what was refused too
	Since   time.Time  // arrival, inclusive
	Until   time.Time  // exclusive

	Team, User, KeyID, EndUser, Tag, Model string
	By                                     []string // of UsageBy: one row for each combination
}

// UsageBy is what usage may be grouped by.
var UsageBy = []string{"tenant", "team", "user", "key", "end_user", "tag", "model", "backend", "outcome", "day", "hour"}

// UsageSum is what the records of one group add up to.
type UsageSum struct {
	Group      []string // a value for each of By
	Requests   int64
	Failed     int64 // of these, those that did not end with outcome ok
	CacheHits  int64
	Prompt     int64 // charged tokens, as the counters have them: none for cache hits
	Cached     int64
	Completion int64
	CostNUSD   int64
	Unpriced   int64 // requests with tokens of unknown price
}

// UnreadableError says that records could not be read: a line that was torn when its replica was killed, or written by hand.
// The sums it comes with are those of all others.
type UnreadableError struct {
	N     int64
	First error // with its place
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("records that cannot be read and are not in the sums: %d, the first: %v", e.N, e.First)
}

// SumUsage adds up records, the last of each request: the most expensive group first, or in order of time. short names tenants whose streams begin after Since: a
// stream holds about the last 100,000 records. With an UnreadableError the sums are there too.
func SumUsage(ctx context.Context, q UsageQuery) (sums []UsageSum, short map[string]time.Time, err error) {
	for _, by := range q.By {
		if !slices.Contains(UsageBy, by) {
			return nil, nil, invalidf("usage by %q: want one of %s", by, strings.Join(UsageBy, ", "))
		}
	}
	s := usageSums{q: q, groups: map[string]*UsageSum{}, lost: map[string]RecordLine{}}
	short = map[string]time.Time{}
	if len(q.Logs) > 0 {
		for _, log := range q.Logs {
			if err := log.lines(ctx, func(n int, line []byte) error { return s.read(log.Name+": line "+strconv.Itoa(n), line) }); err != nil {
				return nil, nil, err
			}
		}
		return s.sorted(), short, s.bad()
	}
	for _, tenant := range q.Tenants {
		began, err := s.stream(ctx, tenant)
		if err != nil {
			return nil, nil, fmt.Errorf("tenant %s: %w", tenant, err)
		}
		if began.After(q.Since) {
			short[tenant] = began
		}
	}
	return s.sorted(), short, s.bad()
}

// usageSums is one run of SumUsage.
type usageSums struct {
	q      UsageQuery
	groups map[string]*UsageSum
	lost   map[string]RecordLine // by rid: they may be replaced
	odd    UnreadableError
}

func (s *usageSums) bad() error {
	if s.odd.N == 0 {
		return nil
	}
	return &s.odd
}

// stream adds up one stream, and returns when a trimmed one begins; zero for one that is whole.
func (s *usageSums) stream(ctx context.Context, tenant string) (began time.Time, err error) {
	from := "-"
	if !s.q.Since.IsZero() {
		from = strconv.FormatInt(s.q.Since.UnixMilli()-1, 10) // a record is written after its request's arrival
	}
	if _, err := walkStream(ctx, s.q.Store, tenant, from, func(id string, record []byte) error {
		return s.read("tenant "+tenant+": record "+id, record)
	}); err != nil {
		return time.Time{}, err
	}
	r := reads{store: s.q.Store}
	length := r.count("XLEN", UsageStream(tenant))
	if err := r.wait(ctx); err != nil {
		return time.Time{}, err
	}
	if *length < trimmedAt {
		return time.Time{}, nil
	}
	page, err := streamEntries(ctx, s.q.Store, "XRANGE", UsageStream(tenant), "-", "+")
	if err != nil || len(page) == 0 {
		return time.Time{}, err
	}
	return time.UnixMilli(int64(parseStreamID(page[0].ID).MS)).UTC(), nil
}

// trimmedAt is from which length on a stream may have lost its beginning: settle keeps about so many.
const trimmedAt = 100_000

// read adds one record. Those that cannot be read are counted: whoever reads the sums is to know that they lack something.
func (s *usageSums) read(where string, text []byte) error {
	r, err := ReadRecordLine(text)
	if err != nil {
		if s.odd.N++; s.odd.N == 1 {
			s.odd.First = fmt.Errorf("%s: %w", where, err)
		}
		return nil
	}
	if len(s.q.Tenants) > 0 && !slices.Contains(s.q.Tenants, r.Tenant) {
		return nil
	}
	if before, ok := s.lost[r.RID]; ok && r.Replaces {
		s.add(before, -1)
		delete(s.lost, r.RID)
	}
	if r.Outcome == OutcomeLost {
		s.lost[r.RID] = r
	}
	s.add(r, 1)
	return nil
}

func (s *usageSums) add(r RecordLine, sign int64) {
	q := s.q
	if r.Time.Before(q.Since) || !q.Until.IsZero() && !r.Time.Before(q.Until) || q.Team != "" && r.Team != q.Team || q.User != "" && r.User != q.User ||
		q.KeyID != "" && r.KeyID != q.KeyID || q.EndUser != "" && r.EndUser != q.EndUser || q.Model != "" && r.Model != q.Model ||
		q.Tag != "" && !slices.Contains(r.Tags, q.Tag) {
		return
	}
	for _, group := range r.groups(q.By, q.Tag) {
		name := strings.Join(group, "\x00")
		sum := s.groups[name]
		if sum == nil {
			sum = &UsageSum{Group: group}
			s.groups[name] = sum
		}
		sum.Requests += sign
		if r.Outcome != OutcomeOK {
			sum.Failed += sign
		}
		if r.Cache == CacheHit {
			sum.CacheHits += sign
		}
		if r.CostNUSD == nil {
			sum.Unpriced += sign
		}
		if len(r.Charged) > 0 {
			f := r.charge()
			sum.Prompt, sum.Cached, sum.Completion = sum.Prompt+sign*f.Prompt, sum.Cached+sign*f.Cached, sum.Completion+sign*f.Completion
			sum.CostNUSD += sign * f.Cost
		}
	}
}

// groups is the rows a record counts in: one, or one for each of its tags. tag: only this one's.
func (r RecordLine) groups(by []string, tag string) [][]string {
	rows := [][]string{{}}
	for _, name := range by {
		values := []string{r.group(name)}
		if name == "tag" {
			if values = r.Tags; tag != "" {
				values = []string{tag}
			} else if len(values) == 0 {
				values = []string{""}
			}
		}
		var next [][]string
		for _, row := range rows {
			for _, v := range values {
				next = append(next, append(slices.Clone(row), v))
			}
		}
		rows = next
	}
	return rows
}

func (r RecordLine) group(by string) string {
	switch by {
	case "tenant":
		return r.Tenant
	case "team":
		return r.Team
	case "user":
		return r.User
	case "key":
		return r.KeyID
	case "end_user":
		return r.EndUser
	case "model":
		return r.Model
	case "backend":
		return r.Backend
	case "outcome":
		return r.Outcome
	case "day":
		return r.Time.UTC().Format("2006-01-02")
	case "hour":
		return r.Time.UTC().Format("2006-01-02T15")
	}
	return ""
}

func (s *usageSums) sorted() []UsageSum {
	all := []UsageSum{}
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		if s.groups[name].Requests > 0 {
			all = append(all, *s.groups[name])
		}
	}
	if !slices.Contains(s.q.By, "day") && !slices.Contains(s.q.By, "hour") {
		slices.SortStableFunc(all, func(a, b UsageSum) int {
			return cmp.Or(cmp.Compare(b.CostNUSD, a.CostNUSD), cmp.Compare(b.Requests, a.Requests))
		})
	}
	return all
}
