package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// streamID is the id of an entry of a stream; zero: none.
type streamID struct{ MS, Seq uint64 }

func parseStreamID(text string) streamID {
	ms, seq, _ := strings.Cut(text, "-")
	var id streamID
	id.MS, _ = strconv.ParseUint(ms, 10, 64)
	id.Seq, _ = strconv.ParseUint(seq, 10, 64)
	return id
}

func (id streamID) after(o streamID) bool {
	return cmp.Or(cmp.Compare(id.MS, o.MS), cmp.Compare(id.Seq, o.Seq)) > 0
}

// audited is what the audit keeps of one record.
type audited struct {
	RID, Tenant string
	Log         string   `json:",omitempty"` // "": of the stream
	ID          streamID // in the stream
	AtMS        int64
	Charged     []string `json:",omitempty"`
	figures
	Lost, Estimated, Replaces bool
	Replica                   string
}

// readRecord reads one usage record. Of a cache hit the tokens are information: they are charged to nobody.
func readRecord(text []byte) (audited, error) {
	r, err := ReadRecordLine(text)
	if err != nil {
		return audited{}, err
	}
	e := audited{RID: r.RID, Tenant: r.Tenant, AtMS: r.Time.UnixMilli(), Charged: r.Charged, Lost: r.Outcome == OutcomeLost,
		Replaces: r.Replaces, Replica: r.Replica}
	if len(r.Charged) > 0 {
		e.figures = r.charge()
		e.Estimated = r.Source == "estimated" && !e.Lost && r.Cache != CacheHit
	}
	return e, nil
}

// charge is what a record that is charged adds to its counters.
func (r RecordLine) charge() figures {
	if r.Cache == CacheHit {
		return figures{Requests: 1}
	}
	f := figures{0, 1, r.Prompt, r.Cached, r.Completion}
	if r.CostNUSD != nil {
		f.Cost = *r.CostNUSD
	}
	return f
}

func (a *audit) readLogs(ctx context.Context) error {
	for _, log := range a.cfg.Logs {
		err := log.lines(ctx, func(n int, line []byte) error {
			e, err := readRecord(line)
			if err != nil {
				a.unreadable(fmt.Sprintf("%s: line %d is no usage line: %v", log.Name, n, err))
				return nil
			}
			return a.logged(log.Name, e)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// unreadable files what belongs to no tenant with the first that is asked for.
func (a *audit) unreadable(text string) {
	tenant := ""
	if len(a.cfg.Tenants) > 0 {
		tenant = a.cfg.Tenants[0]
	}
	a.open(tenant).differs(Difference{Kind: DiffUnreadable, Text: text})
}

func (a *audit) logged(name string, e audited) error {
	if e.Tenant == "" || len(a.cfg.Tenants) > 0 && !slices.Contains(a.cfg.Tenants, e.Tenant) {
		return nil
	}
	e.Log = name
	a.open(e.Tenant)
	return a.file(e)
}

// file keeps a record for the comparison, if it is in the period asked for. What is charged nowhere is in all of them.
func (a *audit) file(e audited) error {
	charged := e.Charged
	e.Charged = slices.DeleteFunc(e.Charged, func(c string) bool { return !a.covers(c) })
	if len(charged) > 0 && len(e.Charged) == 0 {
		return nil
	}
	return a.piles.put(e)
}

// readStream files the records of a tenant's stream behind the one named from ("-": all), and returns the id of the last.
func (a *audit) readStream(ctx context.Context, b *tenantBooks, from string, each func(audited) error) (last string, err error) {
	return walkStream(ctx, a.cfg.Store, b.Tenant, from, func(id string, record []byte) error {
		e, err := readRecord(record)
		if err != nil {
			b.differs(Difference{Kind: DiffUnreadable, Text: fmt.Sprintf("record %s of the usage stream: %v", id, err)})
			return nil
		}
		e.Tenant, e.ID = b.Tenant, parseStreamID(id)
		return each(e)
	})
}
