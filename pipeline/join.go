package pipeline

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

// joinMost bounds how many calls one run of a script takes: a run keeps all others of its Redis waiting.
const joinMost = 32

// join groups calls of one joinable script on one key; nil when there are no two of them.
func join(calls []*call) [][]*call {
	if len(calls) < 2 {
		return nil
	}
	var groups [][]*call
	found := false
next:
	for _, c := range calls {
		if c.Script != nil && c.Script.joins {
			for i, g := range groups {
				if g[0].Script == c.Script && g[0].Key == c.Key && len(g) < joinMost {
					groups[i], found = append(g, c), true
					continue next
				}
			}
		}
		groups = append(groups, []*call{c})
	}
	if !found {
		return nil
	}
	return groups
}

// sendJoined sends each group as one command, together with the calls that stand alone, and returns those that have to be
// sent alone after all. // I8
func (s *Store) sendJoined(ctx context.Context, client rueidis.Client, groups [][]*call) (alone []*call) {
	commands := make([]rueidis.Completed, len(groups))
	for i, g := range groups {
		c := g[0]
		if len(g) > 1 {
			c = joined(g)
		}
		commands[i] = s.command(client, c, false)
	}
	for i, r := range client.DoMulti(ctx, commands...) {
		m, err := r.ToMessage()
		if g := groups[i]; len(g) > 1 {
			alone = append(alone, split(g, m, err)...)
		} else {
			if again, full := repeatable(err); again {
				m, err = s.repeat(ctx, client, g[0], full)
			}
			g[0].resolve(m, err)
		}
	}
	return alone
}

// joined is the calls of g as one.
func joined(g []*call) *call {
	c := &call{Command: g[0].Command}
	c.Args = append(make([]string, 0, 1+len(g)*(1+len(g[0].Args))), "*")
	for _, one := range g {
		c.Args = append(append(c.Args, strconv.Itoa(len(one.Args))), one.Args...)
	}
	return c
}

// split resolves the calls of g by their part of the reply, and returns those that are to be sent alone. What Redis
// refused as a whole may be the fault of one; without a reply nobody knows what was applied.
func split(g []*call, m rueidis.RedisMessage, err error) (alone []*call) {
	if _, ok := rueidis.IsRedisErr(err); ok {
		return g
	}
	replies, bad := m.ToArray()
	if err == nil {
		err = bad
	}
	for i, c := range g {
		switch {
		case err != nil:
			c.resolve(rueidis.RedisMessage{}, err)
		case i >= len(replies) || replies[i].IsNil():
			alone = append(alone, c)
		default:
			c.resolve(replies[i], nil)
		}
	}
	return alone
}
