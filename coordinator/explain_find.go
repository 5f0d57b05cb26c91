package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// FoundRequest is what is known of one request.
type FoundRequest struct {
	Where  string // open, stream, or the name of a log
	Record RecordLine
	Others int // later or earlier requests of the same label that were passed on the way

	Open *OpenRequest // of a request that runs or waits; its Record has only what was known at its admission
}

// OpenRequest is a request that was admitted and is not settled yet.
type OpenRequest struct {
	Replica  string
	Since    time.Time // admission, by Redis' clock
	Lapsed   bool      // its replica was thought dead and it is charged at its hold; a late settlement still counts
	Pool     string    // "": no slot and no place in a queue
	Backend  string    // whose slot it has; "": it waits
	Ahead    int64     // waiting requests whose turn is first
	Waiting  int64     // in its queue
	Attempt  int64
	asked    lua.PlaceArgs // what it asked for
	askKnown bool
}

// RequestQuery says which request is looked for, and where: by its id in what is open, then in the logs, if some are given,
// else in the tenants' streams, the newest first.
type RequestQuery struct {
	Store   *pipeline.Store
	Tenants []string
	Logs    []UsageLog
	ID      string // rid, or the label the client saw
}

var ridForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// FindRequest is ErrNotFound for what is in none of them.
func FindRequest(ctx context.Context, q RequestQuery) (FoundRequest, error) {
	if ridForm.MatchString(q.ID) {
		if err := q.likelyFirst(ctx); err != nil {
			return FoundRequest{}, err
		}
	}
	for _, tenant := range q.Tenants {
		f, err := q.open(ctx, tenant)
		if err != nil || f.Where != "" {
			return f, err
		}
	}
	if len(q.Logs) > 0 {
		return q.inLogs(ctx)
	}
	for _, tenant := range q.Tenants {
		f, err := q.inStream(ctx, tenant)
		if err != nil || f.Where != "" {
			return f, err
		}
	}
	return FoundRequest{}, fmt.Errorf("request %q: %w", q.ID, ErrNotFound)
}

// likelyFirst puts the tenants first that settled this rid in the last hour.
func (q *RequestQuery) likelyFirst(ctx context.Context) error {
	r := reads{store: q.Store}
	at := make([]*string, len(q.Tenants))
	for i, t := range q.Tenants {
		at[i] = r.text("ZSCORE", Settled(t), q.ID)
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	var first, rest []string
	for i, t := range q.Tenants {
		if *at[i] != "" {
			first = append(first, t)
		} else {
			rest = append(rest, t)
		}
	}
	q.Tenants = append(first, rest...)
	return nil
}

func (q RequestQuery) is(r RecordLine) bool { return r.RID == q.ID || r.RequestID == q.ID }

func (q RequestQuery) inStream(ctx context.Context, tenant string) (f FoundRequest, err error) {
	err = walkStreamBack(ctx, q.Store, tenant, func(text []byte) error {
		if !strings.Contains(string(text), q.ID) {
			return nil
		}
		r, err := ReadRecordLine(text)
		if err != nil || !q.is(r) {
			return nil
		}
		f.Where, f.Record = "stream", r
		return errStop
	})
	if err == errStop {
		err = nil
	}
	return f, err
}

// inLogs is the last one: a label may come again.
func (q RequestQuery) inLogs(ctx context.Context) (f FoundRequest, err error) {
	for _, log := range q.Logs {
		err := log.lines(ctx, func(_ int, line []byte) error {
			if !strings.Contains(string(line), q.ID) {
				return nil
			}
			r, err := ReadRecordLine(line)
			if err != nil || !q.is(r) || f.Where != "" && r.Time.Before(f.Record.Time) {
				return nil
			}
			if f.Where != "" && r.RID != f.Record.RID {
				f.Others++
			}
			f.Where, f.Record = log.Name, r
			return nil
		})
		if err != nil {
			return f, err
		}
	}
	if f.Where == "" {
		return f, fmt.Errorf("request %q: %w in the logs given, and not running", q.ID, ErrNotFound)
	}
	return f, nil
}

func (q RequestQuery) open(ctx context.Context, tenant string) (f FoundRequest, err error) {
	r := reads{store: q.Store}
	claims, pools := r.hash(OpenReservations(tenant)), r.list("SMEMBERS", PoolIndex())
	if err := r.wait(ctx); err != nil {
		return f, err
	}
	for rid, text := range *claims {
		c, err := lua.ParseClaim(text)
		if err != nil || text[0] == 'x' && q.ID != rid {
			continue
		}
		label, err := url.PathUnescape(c.Label)
		var record RecordLine
		if err != nil || json.Unmarshal([]byte("{"+label+"}"), &record) != nil {
			record = RecordLine{}
		}
		if rid != q.ID && record.RequestID != q.ID {
			continue
		}
		if text[0] == 'x' {
			continue // its record is in the stream
		}
		owner, err := url.PathUnescape(c.Owner)
		if err != nil {
			owner = c.Owner
		}
		record.RID, record.Tenant, record.KeyID, record.Team, record.User = rid, tenant, c.Key, c.Team, c.User
		record.Charged, record.HeldTokens, record.HeldNUSD, record.Time, record.Replica = c.Charged(), c.Tokens, c.HoldNUSD, time.UnixMilli(c.AtMS).UTC(), owner
		f = FoundRequest{Where: "open", Record: record, Open: &OpenRequest{Replica: owner, Since: record.Time}}
		err = f.Open.where(ctx, q.Store, rid, *pools)
		f.Record.Pool, f.Record.Backend = f.Open.Pool, f.Open.Backend
		return f, err
	}
	return f, nil
}

// where finds the slot or the place in a queue.
func (o *OpenRequest) where(ctx context.Context, store *pipeline.Store, rid string, pools []string) error {
	slices.Sort(pools)
	r := reads{store: store}
	leases, waiting, lengths := make([]*string, len(pools)), make([]*string, len(pools)), make([]*int64, len(pools))
	for i, pool := range pools {
		leases[i], waiting[i] = r.text("HGET", Held(pool, o.Replica), rid), r.text("HGET", Waiting(pool, o.Replica), rid)
		lengths[i] = r.count("ZCARD", Queue(pool))
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	for i, pool := range pools {
		if f := strings.Fields(*leases[i]); len(f) >= 7 {
			o.Pool, o.Backend, o.Waiting = pool, f[1], *lengths[i]
			o.Attempt, _ = strconv.ParseInt(f[0], 10, 64)
			return nil
		}
		member, rest, _ := strings.Cut(*waiting[i], " ")
		if f := strings.Split(member, "|"); len(f) >= 7 {
			o.Pool, o.Waiting = pool, *lengths[i]
			o.Attempt, _ = strconv.ParseInt(f[2], 10, 64)
			o.asked, o.askKnown = askOf(f, strings.Fields(rest))
			rank := r.text("ZRANK", Queue(pool), member)
			if err := r.wait(ctx); err != nil {
				return err
			}
			o.Ahead, _ = strconv.ParseInt(*rank, 10, 64)
			return nil
		}
	}
	return nil
}

// askOf is what a waiting request asked for: its member of the queue, and what a grant needs to know (queue.part.lua).
func askOf(member, rest []string) (lua.PlaceArgs, bool) {
	n := make([]int64, len(rest))
	for i, text := range rest {
		n[i], _ = strconv.ParseInt(text, 10, 64)
	}
	mu, err := strconv.ParseInt(member[6], 10, 64)
	if err != nil || len(rest) < 7 {
		return lua.PlaceArgs{}, false
	}
	a := lua.PlaceArgs{MU: mu, OutputMU: n[1], Prompt: lua.Prompt{Tokens: n[2], Save: n[3], Least: n[4], Bucket: int(n[5])}}
	for i := 7; i+1 < len(rest); i += 2 {
		a.Prompt.Prints = append(a.Prompt.Prints, lua.Print{Name: rest[i], Tokens: n[i+1]})
	}
	return a, true
}
