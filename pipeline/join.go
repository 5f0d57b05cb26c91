package pipeline

import (
	"errors"
	"slices"

	"github.com/redis/rueidis"
)

// joinMost bounds how many calls one run of a script takes: a run keeps all others of its Redis waiting.
const joinMost = 32

// joint is several calls of one script on one key as one command, and the owner of its reply.
type joint struct {
	call  call    // joined are the calls
	alone []*call // those that have to be sent alone after all, once the reply is there
}

// join is calls with joints in place of those of one joinable script on one key. // I8
func join(calls []*call) (commands []*call, joints []*joint) {
	joins := func(c *call) bool { return c.Script != nil && c.Script.joins }
	if len(calls) < 2 || !slices.ContainsFunc(calls, joins) {
		return calls, nil
	}
	commands = make([]*call, 0, len(calls))
	for _, c := range calls {
		at := -1
		if joins(c) {
			at = slices.IndexFunc(commands, func(to *call) bool {
				return to.Script == c.Script && to.Key == c.Key && len(to.joined) < joinMost
			})
		}
		switch {
		case at < 0:
			commands = append(commands, c)
		case commands[at].joined == nil:
			j := &joint{call: call{Command: c.Command, joined: []*call{commands[at], c}}}
			j.call.owner = j
			commands[at], joints = &j.call, append(joints, j)
		default:
			commands[at].joined = append(commands[at].joined, c)
		}
	}
	return commands, joints
}

// final gives each call its part of the reply. What Redis refused as a whole may be the fault of one; without a reply nobody
// knows what was applied.
func (j *joint) final(m rueidis.RedisMessage, err error) {
	if refused := (*rueidis.RedisError)(nil); errors.As(err, &refused) {
		j.alone = j.call.joined
		return
	}
	var replies []rueidis.RedisMessage
	if err == nil {
		replies, err = m.ToArray()
	}
	for i, c := range j.call.joined {
		switch {
		case err != nil:
			c.tell(rueidis.RedisMessage{}, err)
		case i >= len(replies) || replies[i].IsNil():
			j.alone = append(j.alone, c)
		default:
			c.tell(replies[i], nil)
		}
	}
}
