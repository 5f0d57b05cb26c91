package coordinator

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/scripts/lua"
)

// hello is what a replica announces to itself to learn whether announcements come through.
const hello = "hello"

// hearing is what a replica knows of its announcements. The zero value knows nothing.
type hearing struct {
	heard atomic.Bool
	fault atomic.Pointer[string] // nil: none was found
}

// patientHellos is how many hellos may be lost before that is a fault: the first ones overtake the subscription.
const patientHellos = 5

var (
	errMayNotPublish = errors.New("the redis user may not publish to hg:grant:* (ACL rule &hg:grant:*): requests that waited learn of their slot up to a second late")
	errNotHeard      = errors.New("announcements do not arrive; may the redis user subscribe to hg:grant:* (ACL rule &hg:grant:*)? requests that waited learn of their slot up to a second late")
)

// Hearing is nil unless announcements of grants were found not to come through. Waiting requests then learn of their slots
// from the beat: all goes on, up to a second later.
func (p *Placement) Hearing() error {
	if text := p.hearing.fault.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

// listen takes announcements until ctx ends, and finds out whether they come through.
func (p *Placement) listen(ctx context.Context) {
	channel := GrantChannel(p.cfg.Replica)
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.cfg.Store.Subscribe(ctx, channel, p.announced) })
	p.greet(ctx, channel)
	wg.Wait()
}

// greet says hello to itself until it is heard. What is wrong meanwhile is logged once.
func (p *Placement) greet(ctx context.Context, channel string) {
	if p.cfg.Store.WaitConnected(ctx) != nil {
		return
	}
	tick := time.NewTicker(p.cfg.times.every)
	defer tick.Stop()
	for lost := 0; !p.hearing.heard.Load(); {
		switch _, err := p.cfg.Store.Do(ctx, "PUBLISH", "", channel, hello); {
		case err != nil && strings.HasPrefix(err.Error(), "NOPERM"):
			p.deaf(errMayNotPublish)
		case err == nil: // without an answer nothing is known
			if lost++; lost > patientHellos {
				p.deaf(errNotHeard)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	if p.hearing.fault.Swap(nil) != nil {
		p.cfg.Log.Info().Msg("announcements of grants come through")
	}
}

func (p *Placement) deaf(why error) {
	text := why.Error()
	if before := p.hearing.fault.Swap(&text); before == nil || *before != text {
		p.cfg.Log.Warn().Err(why).Msg("announcements of grants do not come through")
	}
}

// announced takes "<pool> <rid> <attempt> <backend> <matched>", or hello.
func (p *Placement) announced(message string) {
	if message == hello {
		p.hearing.heard.Store(true)
		return
	}
	f := strings.Fields(message)
	if len(f) != 5 {
		p.cfg.Log.Warn().Str("message", message).Msg("unreadable grant")
		return
	}
	attempt, err := strconv.Atoi(f[2])
	matched, odd := strconv.ParseInt(f[4], 10, 64)
	if err != nil || odd != nil {
		p.cfg.Log.Warn().Str("message", message).Msg("unreadable grant")
		return
	}
	p.grant(f[0], lua.Grant{RID: f[1], Attempt: attempt, Backend: f[3], Matched: matched})
}
