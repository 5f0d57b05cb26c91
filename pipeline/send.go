package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// send puts calls into one pipeline of s, repeats alone those that Redis could not run yet, and resolves each handle
// as soon as its own reply is final. It never returns before all are resolved, and no caller's own end cuts a pipeline that
// others share: the deadline is the store's. // I2
func (s *Store) send(calls []*call) {
	client := s.client.Load()
	if client == nil {
		failAll(calls, ErrUnavailable)
		return
	}
	ctx := s.deadlines.next()
	commands, joints := join(calls)
	s.sendEach(ctx, *client, commands)
	var alone []*call
	for _, j := range joints {
		alone = append(alone, j.alone...)
	}
	s.sendEach(ctx, *client, alone)
}

func (s *Store) sendEach(ctx context.Context, client rueidis.Client, calls []*call) {
	if len(calls) == 0 {
		return
	}
	commands := make([]rueidis.Completed, len(calls))
	for i, c := range calls {
		commands[i] = s.command(client, c, false)
	}
	for i, r := range client.DoMulti(ctx, commands...) {
		m, err := r.ToMessage()
		if again, full := repeatable(err); again {
			m, err = s.repeat(ctx, client, calls[i], full)
		}
		calls[i].resolve(m, err)
	}
}

// repeat sends one call alone until Redis runs it or the deadline is over: in full when the script was lost, after a
// pause when its slot is on the move or a node is loading. // I3
func (s *Store) repeat(ctx context.Context, client rueidis.Client, c *call, full bool) (rueidis.RedisMessage, error) {
	for {
		if !full {
			pause(ctx, repeatPause)
		}
		c.trips++
		m, err := client.Do(ctx, s.command(client, c, full)).ToMessage()
		again, lost := repeatable(err)
		if !again || ctx.Err() != nil {
			return m, err
		}
		full = full || lost
	}
}

// repeatable tells errors after which a command surely changed nothing and may work at once: a lost script, a slot on
// the move (also as seen by a script whose first half read a key that has moved), a node that is loading.
func repeatable(err error) (again, lost bool) {
	re, ok := rueidis.IsRedisErr(err)
	if !ok || re.IsNil() {
		return false, false
	}
	if re.IsNoScript() {
		return true, true
	}
	return re.IsTryAgain() || re.IsClusterDown() || re.IsLoading() || strings.Contains(re.Error(), "non local key"), false
}

// neverThere is put behind a script's key and makes a second one, in the same slot, that never exists. While a slot is on
// the move its keys lie on two nodes, and a script that names one key would run on a half of them (the client follows ASK
// by itself). With two names, one of them surely missing, both nodes answer TRYAGAIN until the move is over.
const neverThere = ":moving"

// command builds c for the wire. full sends a script's text (EVAL), which also puts it back into Redis' cache.
func (s *Store) command(client rueidis.Client, c *call, full bool) rueidis.Completed {
	if c.Script == nil {
		return plain(client, c.Name, c.Key, c.Args)
	}
	src := s.source(c.Script)
	name, text := "EVALSHA", src.sha
	if full {
		name, text = "EVAL", src.text
	}
	b := client.B().Arbitrary(name, text, "2").Keys(c.Key, c.Key+neverThere)
	if c.joined == nil {
		return b.Args(c.Args...).Build()
	}
	b = b.Args("*")
	for _, one := range c.joined {
		b = b.Args(strconv.Itoa(len(one.Args))).Args(one.Args...)
	}
	return b.Build()
}

func plain(client rueidis.Client, name, key string, args []string) rueidis.Completed {
	b := client.B().Arbitrary(name)
	if key != "" {
		b = b.Keys(key)
	}
	return b.Args(args...).Build()
}

// resolve hands the final reply on, once.
func (c *call) resolve(m rueidis.RedisMessage, err error) {
	if err != nil {
		if rueidis.IsRedisNil(err) {
			err = nil
		} else {
			err = c.wrap(err)
		}
	}
	c.tell(m, err)
}

func (c *call) tell(m rueidis.RedisMessage, err error) {
	c.owner.final(m, err)
	c.Args = nil // whoever keeps the handle has no use for them
	if c.beside != nil {
		close(c.beside)
	}
}

// wrap names the command and makes "not reached in time" one error for all callers.
func (c *call) wrap(err error) error {
	name := c.Name
	if c.Script != nil {
		name = c.Script.Name
	}
	if _, ok := rueidis.IsRedisErr(err); !ok {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: %w: no answer in time", name, ErrUnavailable)
		}
		return fmt.Errorf("%s: %w: %w", name, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// Away tells errors that say nothing of the command: the store was not reached in time, is full, read-only, loading, or
// its slot is on the move. A record of the wrong type is not among them.
func Away(err error) bool {
	if errors.Is(err, ErrUnavailable) {
		return true
	}
	var re *rueidis.RedisError
	if !errors.As(err, &re) {
		return false
	}
	text := re.Error()
	return slices.ContainsFunc(away, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

var away = []string{"OOM", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS", "BUSY"}

func failAll(calls []*call, err error) {
	for _, c := range calls {
		c.resolve(rueidis.RedisMessage{}, err)
	}
}

// postDelay is the latest a post-call batch waits for an owner that has not signed off.
const postDelay = time.Second
