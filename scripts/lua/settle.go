package lua

import (
	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var settleScript = read("settle")

// SettleArgs replaces a hold by the real figures.
type SettleArgs struct {
	RID, Claim                 string // Claim "": the admission's reply was lost
	Keep                       bool   // the request stays counted
	Prompt, Cached, Completion int64  // tokens; Cached is part of Prompt
	CostNUSD                   int64
	Record                     []byte // one JSON object; empty: none

	nowMS int64 // tests only
}

// Settled is what a settlement did.
type Settled int64

// Outcomes of a settlement.
const (
	Replaced     Settled = iota + 1 // the open hold
	Undone                          // and replaced the charge of one that had lapsed
	Repeated                        // settled before; nothing changed
	Recharged                       // its admission was lost with a primary: charged in full
	Doubtful                        // not charged, filed for the audit
	NeverApplied                    // its admission never took place, and will not any more
)

// Settle declares the settlement on b. It is safe to repeat.
func Settle(b *pipeline.Batch, s *pipeline.Store, root string, a SettleArgs) *pipeline.Handle[Settled] {
	args := make([]string, 0, 9)
	args = append(args, a.RID, a.Claim, flag(a.Keep), decimal(a.Prompt), decimal(a.Cached), decimal(a.Completion),
		decimal(a.CostNUSD), string(a.Record))
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: settleScript, Key: root, Args: withClock(args, a.nowMS)},
		func(m rueidis.RedisMessage) (Settled, error) {
			n, err := wholes(m, 1)
			if err != nil {
				return 0, err
			}
			return Settled(n[0]), nil
		})
}
