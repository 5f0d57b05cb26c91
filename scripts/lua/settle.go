package lua

import (
	"strings"
	"unsafe"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var settleScript = read("settle").Joinable()

// SettleArgs replaces a hold by the real figures.
type SettleArgs struct {
	RID, Claim                 string // Claim "": the admission's reply was lost
	Keep                       bool   // the request stays counted
	Prompt, Cached, Completion int64  // tokens; Cached is part of Prompt
	CostNUSD                   int64
	Record                     []byte // one JSON object; empty: none. Never written to again: it is sent as it lies
	Never                      bool   // never admitted: Claim was written by the replica, Redis could not be asked
	Learn                      Sample // zero: nothing is learned

	nowMS int64 // tests only
	apart bool  // tests only: the script is to take the claim apart itself
}

// Sample is what the real usage of a request teaches: bytes per token of the model, output length of key and model.
type Sample struct {
	PromptBytes int64 // 0: nothing
	Model       string
	Choices     int64 // 0 is 1
}

// Settled is what a settlement did.
type Settled int64

// Outcomes of a settlement.
const (
	Replaced     Settled = iota + 1 // the open hold
	Undone                          // and replaced the charge of one that had lapsed
	Repeated                        // settled before; nothing changed
	Recharged                       // its admission was lost with a primary, or never took place: charged in full
	Doubtful                        // not charged, filed for the audit
	NeverApplied                    // its admission never took place, and will not any more
)

// Settle declares the settlement on b. It is safe to repeat.
func Settle(b *pipeline.Batch, s *pipeline.Store, root string, a SettleArgs) *pipeline.Handle[Settled] {
	args := a.argv()
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: settleScript, Key: root, Args: args},
		func(m rueidis.RedisMessage) (Settled, error) {
			f, err := array(m, 1)
			if err != nil {
				return 0, err
			}
			n, err := f[0].AsInt64()
			return Settled(n), err
		})
}

// textOf is bytes that nobody writes to any more as a text, without a copy.
func textOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (a SettleArgs) argv() []string {
	learn := a.Learn.PromptBytes
	if a.Prompt <= 0 {
		learn = 0
	}
	now := ""
	if a.nowMS != 0 {
		now = decimal(a.nowMS)
	}
	d := newDecimals()
	args := append(make([]string, 0, 32), a.RID, a.Claim, flag(a.Keep), d.of(a.Prompt), d.of(a.Cached), d.of(a.Completion),
		d.of(a.CostNUSD), textOf(a.Record), flag(a.Never), d.of(learn), a.Learn.Model, d.of(max(a.Learn.Choices, 1)))
	var f [claimFields]string
	if cutClaim(a.Claim, &f) != nil || f[claimTops] != "-" || !isWhole(f[claimTokens]) || !isWhole(f[claimHold]) ||
		strings.IndexByte(f[claimScopes], ':') <= 0 || a.apart {
		return append(args, "", "", now)
	}
	return appendScopes(append(args, f[claimTokens], f[claimHold], now), f[claimScopes])
}
