package lua

import (
	"strconv"

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
	Prompt        int64  // tokens, estimate
	Cap           int64  // tokens, declared bound of the output; 0: none
	Usual         int64  // tokens, usual output
	HoldNUSD      int64  // at most 9e15
	Label         string // JSON members for the record of a lost request, through ClaimText; not empty

	nowMS int64 // tests only; 0: Redis' clock
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
	Budgeted              bool
	Scope, ScopeID        string
	Limit, Remaining      int64
	ResetMS               int64 // 0: the refusal does not end by itself
	Lasting               bool  // until then only a change of policy can end it
	Requests, Tokens      Minute
}

// Minute is the tightest sliding minute of a kind.
type Minute struct {
	Limit     int64 // -1: no scope has one
	Remaining int64
	ResetMS   int64 // until it is empty if nothing more comes
}

// Admit declares the decision on b. as turns the reply into what the caller hands on; it is called on the goroutine that
// received the reply and must not block.
func Admit[T any](b *pipeline.Batch, s *pipeline.Store, root string, a AdmitArgs, as func(AdmitReply) T) *pipeline.Handle[T] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: admitScript, Key: root, Args: a.argv()},
		func(m rueidis.RedisMessage) (T, error) {
			reply, err := admitReply(m)
			if err != nil {
				var zero T
				return zero, err
			}
			return as(reply), nil
		})
}

func (a AdmitArgs) argv() []string {
	args := make([]string, 0, 12)
	args = append(args, a.RID, a.KeyHash, a.Owner, a.Model, flag(a.Known), flag(a.Priced), decimal(a.Prompt), decimal(a.Cap),
		decimal(a.Usual), decimal(a.HoldNUSD), a.Label)
	return withClock(args, a.nowMS)
}

func admitReply(m rueidis.RedisMessage) (AdmitReply, error) {
	f, err := array(m, 24)
	if err != nil {
		return AdmitReply{}, err
	}
	d := fields{}
	r := AdmitReply{
		Verdict: d.whole(f[0]),
		Key:     d.text(f[1]), Name: d.text(f[2]), Team: d.text(f[3]), User: d.text(f[4]),
		Priority: d.whole(f[5]), Isolate: d.whole(f[6]) == 1,
		Claim: d.text(f[7]), AtMS: d.whole(f[8]), HeldTokens: d.whole(f[9]), HeldNUSD: d.whole(f[10]),
		Budgeted: d.whole(f[11]) == 1,
		Scope:    d.text(f[12]), ScopeID: d.text(f[13]), Limit: d.whole(f[14]), Remaining: d.whole(f[15]),
		ResetMS: d.whole(f[16]), Lasting: d.whole(f[17]) == 1,
		Requests: Minute{d.whole(f[18]), d.whole(f[19]), d.whole(f[20])},
		Tokens:   Minute{d.whole(f[21]), d.whole(f[22]), d.whole(f[23])},
	}
	return r, d.err
}

// ClaimText makes text fit into a claim: no space, no control character, never empty. JSON is the usual content.
func ClaimText(text string) string {
	if text == "" {
		return "%"
	}
	var out []byte
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == '%' || c == 0x7f {
			out = append(out, '%', hexDigits[c>>4], hexDigits[c&15])
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

const hexDigits = "0123456789abcdef"

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
