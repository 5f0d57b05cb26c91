package coordinator

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
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
	var r struct {
		RID, Tenant, Outcome, Cache, Replica string
		Time                                 time.Time
		Charged                              []string
		Source                               string `json:"usage_source"`
		Cost                                 int64  `json:"cost_nusd"`
		Prompt                               int64  `json:"prompt_tokens"`
		Cached                               int64  `json:"cached_tokens"`
		Completion                           int64  `json:"completion_tokens"`
		Replaces                             bool
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return audited{}, err
	}
	if r.RID == "" {
		return audited{}, errors.New("no rid")
	}
	e := audited{RID: r.RID, Tenant: r.Tenant, AtMS: r.Time.UnixMilli(), Charged: r.Charged, Lost: r.Outcome == OutcomeLost,
		Replaces: r.Replaces, Replica: r.Replica}
	if len(r.Charged) > 0 {
		e.Requests = 1
		if r.Cache != CacheHit {
			e.figures = figures{r.Cost, 1, r.Prompt, r.Cached, r.Completion}
			e.Estimated = r.Source == "estimated" && !e.Lost
		}
	}
	return e, nil
}

// maxAuditLine bounds the memory one line can take.
const maxAuditLine = 1 << 20

func (a *audit) readLogs(ctx context.Context) error {
	for _, log := range a.cfg.Logs {
		lines := bufio.NewReaderSize(log.From, maxAuditLine)
		for n := 1; ; n++ {
			line, err := lines.ReadSlice('\n')
			if ctx.Err() != nil {
				return ctx.Err()
			}
			long := errors.Is(err, bufio.ErrBufferFull)
			if err != nil && err != io.EOF && !long {
				return fmt.Errorf("%s: line %d: %w", log.Name, n, err)
			}
			if line = bytes.TrimSpace(line); len(line) > 0 {
				if fault := a.logged(log.Name, line); fault != nil {
					a.unreadable(fmt.Sprintf("%s: line %d: %v", log.Name, n, fault))
				}
			}
			for long {
				_, err = lines.ReadSlice('\n')
				long = errors.Is(err, bufio.ErrBufferFull)
			}
			if err == io.EOF {
				break
			}
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

func (a *audit) logged(name string, line []byte) error {
	e, err := readRecord(line)
	if err != nil {
		return fmt.Errorf("no usage line: %w", err)
	}
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

// streamPage is how many records of a stream are asked for at a time.
const streamPage = 1000

// readStream files the records of a tenant's stream behind the one named from ("-": all), and returns the id of the last.
func (a *audit) readStream(ctx context.Context, b *tenantBooks, from string, each func(audited) error) (last string, err error) {
	last = from
	for {
		start := last
		if start != "-" {
			start = "(" + start
		}
		m, err := a.cfg.Store.Do(ctx, "XRANGE", UsageStream(b.Tenant), start, "+", "COUNT", strconv.Itoa(streamPage))
		if err != nil {
			return last, fmt.Errorf("usage stream: %w", err)
		}
		entries, err := m.AsXRange()
		if err != nil && !rueidis.IsRedisNil(err) {
			return last, fmt.Errorf("usage stream: %w", err)
		}
		for _, x := range entries {
			last = x.ID
			e, err := readRecord([]byte(x.FieldValues["record"]))
			if err != nil {
				b.differs(Difference{Kind: DiffUnreadable, Text: fmt.Sprintf("record %s of the usage stream: %v", x.ID, err)})
				continue
			}
			e.Tenant, e.ID = b.Tenant, parseStreamID(x.ID)
			if err := each(e); err != nil {
				return last, err
			}
		}
		if len(entries) < streamPage {
			return last, nil
		}
	}
}
