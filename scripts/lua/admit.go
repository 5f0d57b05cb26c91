package lua

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var admitScript = read("admit")

// AdmitArgs is one request that wants to run.
type AdmitArgs struct {
	RID, KeyHash  string
	Owner         string // the replica; no space in it, see ClaimText
	Model         string
	Known, Priced bool

	PromptBytes int64 // what can become prompt; 0: Prompt and Usual say all, and nothing learned is read
	Choices     int64 // answers; with PromptBytes. 0 is 1
	Prompt      int64 // tokens, estimate
	Usual       int64 // tokens, usual output
	Cap         int64 // tokens, declared bound of the output; 0: none

	HoldNUSD int64   // at most 9e15; in tranches, of the prompt alone
	Tranche  Tranche // zero: HoldNUSD is all
	EndUser  string  // as in key names; "" none
	Tags     string  // as in key names, comma-separated
	Detail   bool    // AdmitReply.Detail is wanted
	Label    string  // JSON members for the record of a lost request, through ClaimText; not empty

	nowMS int64 // tests only; 0: Redis' clock
}

// Tranche says how the output of a stream is held piece by piece.
type Tranche struct {
	Bound     int64 // tokens, the most the output can have; 0: not in tranches
	PricePico int64 // of one output token
	Least     int64 // tokens of the first tranche
}

// AdmitReply is the decision. Verdict counts as coordinator.Verdict does.
type AdmitReply struct {
	Verdict               int64
	Key, Name, Team, User string
	Priority              int64 // -1: none
	Isolate               bool
	Claim                 string // goes back with the settlement
	AtMS                  int64
	HeldTokens, HeldNUSD  int64
	HeldOutput            int64 // tokens granted, in tranches
	Budgeted              bool
	Scope, ScopeID        string
	Limit, Remaining      int64
	ResetMS               int64 // 0: the refusal does not end by itself
	Lasting               bool  // until then only a change of policy can end it
	Requests, Tokens      Minute
	BytesPerToken         int64    // thousandths; 0: not read
	UsualOutput           int64    // tokens of one choice; 0: not read
	Tags                  []string // of the key's policy, beyond those of the request
	Detail                string
}

// Minute is the tightest sliding minute of a kind.
type Minute struct {
	Limit     int64 // -1: no scope has one
	Remaining int64
	ResetMS   int64 // until it is empty if nothing more comes
}

// Admit declares the decision on b. as writes down what the caller hands on; it is called on the goroutine that received the
// reply and must not block.
func Admit[T any](b *pipeline.Batch, s *pipeline.Store, root string, a *AdmitArgs, as func(*AdmitReply, *T)) *pipeline.Handle[T] {
	return pipeline.DeclareInto(b, pipeline.Command{Store: s, Script: admitScript, Key: root, Args: a.argv()},
		func(m rueidis.RedisMessage, to *T) error {
			r, err := admitReply(m)
			if err == nil {
				as(r, to)
			}
			return err
		})
}

func (a *AdmitArgs) argv() []string {
	mode := "p"
	switch {
	case !a.Known:
		mode = "n"
	case !a.Priced:
		mode = "u"
	}
	usual := a.Usual
	if a.PromptBytes > 0 {
		usual = max(a.Choices, 1)
	}
	args, d := make([]string, 0, 18), newDecimals()
	args = append(args, a.RID, a.KeyHash, a.Owner, a.Model, mode, d.of(a.PromptBytes), d.of(a.Prompt), d.of(a.Cap), d.of(usual),
		d.of(a.HoldNUSD), a.Label)
	if a.Tranche.Bound == 0 && a.EndUser == "" && a.Tags == "" && !a.Detail {
		return withClock(args, a.nowMS)
	}
	now := ""
	if a.nowMS != 0 {
		now = decimal(a.nowMS)
	}
	return append(args, now, d.of(a.Tranche.Bound), d.of(a.Tranche.PricePico), d.of(a.Tranche.Least), a.EndUser, a.Tags,
		flag(a.Detail))
}

func admitReply(m rueidis.RedisMessage) (*AdmitReply, error) {
	f, err := m.ToArray()
	if err != nil {
		return nil, err
	}
	switch len(f) {
	case 14:
		return admittedReply(f)
	case 18:
		return refusedReply(f)
	}
	return nil, fmt.Errorf("reply of %d fields, want 14 or 18", len(f))
}

func admittedReply(f []rueidis.RedisMessage) (*AdmitReply, error) {
	d := fields{}
	r := &AdmitReply{
		Verdict: d.whole(f[0]), Claim: d.text(f[1]), Name: d.text(f[2]),
		Requests:      Minute{d.whole(f[4]), d.whole(f[5]), d.whole(f[6])},
		Tokens:        Minute{d.whole(f[7]), d.whole(f[8]), d.whole(f[9])},
		BytesPerToken: d.whole(f[10]), UsualOutput: d.whole(f[11]),
		Detail: d.text(f[13]),
	}
	if tags := d.text(f[12]); tags != "" {
		r.Tags = strings.Split(tags, ",")
	}
	r.flags(d.whole(f[3]))
	if d.err != nil {
		return nil, d.err
	}
	c := Claim{}
	err := c.parse(r.Claim)
	r.Key, r.Team, r.User, r.AtMS = c.Key, c.Team, c.User, c.AtMS
	r.HeldTokens, r.HeldNUSD, r.HeldOutput = c.Tokens, c.HoldNUSD, c.Output
	return r, err
}

func refusedReply(f []rueidis.RedisMessage) (*AdmitReply, error) {
	d := fields{}
	r := &AdmitReply{
		Verdict: d.whole(f[0]),
		Key:     d.text(f[1]), Name: d.text(f[2]), Team: d.text(f[3]), User: d.text(f[4]),
		Scope: d.text(f[6]), ScopeID: d.text(f[7]), Limit: d.whole(f[8]), Remaining: d.whole(f[9]),
		ResetMS: d.whole(f[10]), Lasting: d.whole(f[11]) == 1,
		Requests: Minute{d.whole(f[12]), d.whole(f[13]), d.whole(f[14])},
		Tokens:   Minute{d.whole(f[15]), d.whole(f[16]), d.whole(f[17])},
	}
	r.flags(d.whole(f[5]))
	return r, d.err
}

// flags are priority, prefix isolation and budget in one number.
func (r *AdmitReply) flags(n int64) {
	r.Budgeted, r.Isolate, r.Priority = n&1 == 1, n&2 == 2, n>>2-1
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// withClock appends a test's clock.
func withClock(args []string, nowMS int64) []string {
	if nowMS == 0 {
		return args
	}
	return append(args, decimal(nowMS))
}

func (d *fields) text(m rueidis.RedisMessage) string {
	t, err := m.ToString()
	d.keep(err)
	return t
}
