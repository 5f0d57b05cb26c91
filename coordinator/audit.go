package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// Auditing compares what Redis counted with the usage records.
//
//	A1. A settlement writes counters and stream at once, and the audit reads both at one instant: they agree exactly, also
//	    while requests run. What differs was changed by somebody else, or lost.
//	A2. Of several records of one rid the last counts; a second one that does not say it replaces the first is a difference.
//	A3. A log has no lines of replicas that died: their charges stand in the stream alone, as `lost`.
//	A4. Memory does not grow with the logs: they are sorted into piles on disk.

// AuditConfig says what is compared. Tenants empty: all of the directory, and those the logs name. Period is the beginning
// of the names of the periods compared, as in key names (2026-11 is also each of its days); "": all.
type AuditConfig struct {
	Store   *pipeline.Store
	Tenants []string
	Period  string
	Logs    []UsageLog // none: the streams alone
	Dir     string     // for piles of long logs; "": the system's directory for what is temporary
}

// Kinds of differences.
const (
	DiffCounter    = "counter"    // a counter says something else than its records
	DiffReserved   = "reserved"   // a counter reserves something else than the open requests hold
	DiffRunning    = "running"    // requests counted as running are not those that are open
	DiffStuck      = "stuck"      // reservations a minute past their deadline: their replica is gone and nobody settles them
	DiffMissing    = "missing"    // in a log, and charged nowhere
	DiffUnlogged   = "unlogged"   // charged, and in none of the logs
	DiffDouble     = "double"     // recorded twice
	DiffFigures    = "figures"    // log and stream name different figures for one request
	DiffDoubtful   = "doubtful"   // its settlement came when nobody knew the request any more: not charged
	DiffUnreadable = "unreadable" // a line, record, counter or reservation that cannot be read
	DiffIncomplete = "incomplete" // the stream no longer reaches back to where counters began
)

// Difference is one thing that does not agree.
type Difference struct {
	Kind    string `json:"kind"`
	Tenant  string `json:"tenant"`
	RID     string `json:"rid,omitempty"`
	Counter string `json:"counter,omitempty"` // <scope>:<id>:<period>
	Field   string `json:"field,omitempty"`   // of the counter
	Redis   int64  `json:"redis"`             // what it says
	Records int64  `json:"records"`           // what the records add up to
	Text    string `json:"text"`              // the same for people, one line
}

// TenantAudit is the books of one tenant.
type TenantAudit struct {
	Tenant   string `json:"tenant"`
	Records  int64  `json:"records"`  // that are charged, the last of each rid
	Counters int64  `json:"counters"` // compared
	CostNUSD int64  `json:"cost_nusd"`
	Prompt   int64  `json:"prompt_tokens"`
	Output   int64  `json:"completion_tokens"`

	// Not differences: what is charged, but not by an engine's own figures, and what is not charged yet.
	Open          int64 `json:"open"`
	OpenNUSD      int64 `json:"open_nusd"` // held
	Lost          int64 `json:"lost"`      // charged at the hold
	LostNUSD      int64 `json:"lost_nusd"`
	Estimated     int64 `json:"estimated"` // by bytes; lost ones are not in it
	EstimatedNUSD int64 `json:"estimated_nusd"`

	Differences []Difference `json:"differences"` // the first 1,000
	More        int64        `json:"more"`        // that are not named
}

// maxDifferences are named for a tenant; the rest is counted.
const maxDifferences = 1000

func (t *TenantAudit) differs(d Difference) {
	d.Tenant = t.Tenant
	if len(t.Differences) >= maxDifferences {
		t.More++
		return
	}
	t.Differences = append(t.Differences, d)
}

// Agrees is true when nothing differs in any of the books.
func Agrees(all []TenantAudit) bool {
	return !slices.ContainsFunc(all, func(t TenantAudit) bool { return len(t.Differences) > 0 })
}

// Audit compares counters with records, tenant by tenant in order of their names. An error is something that could not be
// read at all; differences are not errors.
func Audit(ctx context.Context, cfg AuditConfig) ([]TenantAudit, error) {
	a := &audit{cfg: cfg, books: map[string]*tenantBooks{}, piles: newPiles(cfg.Dir)}
	defer a.piles.remove()
	for _, t := range cfg.Tenants {
		a.open(t)
	}
	if err := a.readLogs(ctx); err != nil {
		return nil, err
	}
	if len(cfg.Tenants) == 0 {
		if err := a.allTenants(ctx); err != nil {
			return nil, err
		}
	}
	for _, t := range a.order() {
		if err := a.readTenant(ctx, a.books[t]); err != nil {
			return nil, fmt.Errorf("tenant %s: %w", t, err)
		}
	}
	if err := a.piles.each(a.weigh); err != nil {
		return nil, fmt.Errorf("piles of records: %w", err)
	}
	all := []TenantAudit{}
	for _, t := range a.order() {
		a.books[t].close(len(a.cfg.Logs) > 0)
		all = append(all, a.books[t].TenantAudit)
	}
	return all, nil
}

// audit is one run of Audit.
type audit struct {
	cfg   AuditConfig
	books map[string]*tenantBooks // by tenant
	piles *piles
}

// tenantBooks is what is known of one tenant.
type tenantBooks struct {
	TenantAudit
	redis  map[string]counted   // what the counters say
	sums   map[string]*figures  // what the records of each counter add up to
	known  lua.BooksReply       // of the first page
	oldest streamID             // of the stream; zero: it is whole
	doubts map[string]bool      // rids that are filed as doubtful
	claims map[string]lua.Claim // of open reservations
}

// counted is one counter, as it was when the stream ended with the record at.
type counted struct {
	at streamID
	figures
	reserved int64
}

// figures are those that counters and records have in common. They are comparable.
type figures struct{ Cost, Requests, Prompt, Cached, Completion int64 }

func (f *figures) add(o figures) {
	f.Cost, f.Requests, f.Prompt = f.Cost+o.Cost, f.Requests+o.Requests, f.Prompt+o.Prompt
	f.Cached, f.Completion = f.Cached+o.Cached, f.Completion+o.Completion
}

func (a *audit) open(tenant string) *tenantBooks {
	b := a.books[tenant]
	if b == nil {
		b = &tenantBooks{TenantAudit: TenantAudit{Tenant: tenant, Differences: []Difference{}}, redis: map[string]counted{},
			sums: map[string]*figures{}, doubts: map[string]bool{}, claims: map[string]lua.Claim{}}
		a.books[tenant] = b
	}
	return b
}

func (a *audit) order() []string {
	names := make([]string, 0, len(a.books))
	for t := range a.books {
		names = append(names, t)
	}
	slices.Sort(names)
	return names
}

func (a *audit) allTenants(ctx context.Context) error {
	m, err := a.cfg.Store.Do(ctx, "SMEMBERS", TenantIndex())
	if err != nil {
		return fmt.Errorf("tenants: %w", err)
	}
	names, err := m.AsStrSlice()
	if err != nil {
		return fmt.Errorf("tenants: %w", err)
	}
	for _, t := range names {
		a.open(t)
	}
	return nil
}

// covers is true for a counter of a period that is compared.
func (a *audit) covers(counter string) bool {
	return strings.HasPrefix(counter[strings.LastIndexByte(counter, ':')+1:], a.cfg.Period)
}
