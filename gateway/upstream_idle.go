package gateway

import (
	"sync"
	"time"
)

// engineIdle keeps connections that wait for their next request, per key, last in first out: what is not needed under
// the present load ages at the bottom and is closed by the sweep.
type engineIdle struct {
	limit time.Duration // a connection's longest wait
	most  int           // per key

	mu     sync.Mutex
	conns  map[engineKey][]*engineConn // newest last
	sweep  *time.Timer                 // nil while nothing is idle
	closed bool
}

func newEngineIdle(limit time.Duration, most int) *engineIdle {
	return &engineIdle{limit: limit, most: most, conns: make(map[engineKey][]*engineConn)}
}

// take returns the connection used last that is still good, or nil.
func (p *engineIdle) take(key engineKey) *engineConn {
	for {
		c := p.pop(key)
		if c == nil {
			return nil
		}
		if time.Now().Before(c.idleUntil) && c.usable() {
			return c
		}
		c.close()
	}
}

func (p *engineIdle) pop(key engineKey) *engineConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.conns[key]
	if len(list) == 0 {
		return nil
	}
	last := len(list) - 1
	c := list[last]
	list[last] = nil
	p.conns[key] = list[:last]
	return c
}

// put keeps c for the next request. keepFor is what the engine said it waits (0 = nothing said); a fifth of it is
// left for the way.
func (p *engineIdle) put(c *engineConn, keepFor time.Duration) {
	c.setBy(time.Time{})
	wait := p.limit
	if keepFor > 0 {
		wait = min(wait, keepFor/5*4)
	}
	c.idleUntil = time.Now().Add(wait)
	if surplus := p.push(c); surplus != nil {
		surplus.close()
	}
}

// push returns the connection that has to give way: the oldest, or c itself after close.
func (p *engineIdle) push(c *engineConn) (surplus *engineConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return c
	}
	list := p.conns[c.key]
	if len(list) >= p.most {
		surplus = list[0]
		copy(list, list[1:])
		list = list[:len(list)-1]
	}
	p.conns[c.key] = append(list, c)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.limit/4, p.sweepNow)
	}
	return surplus
}

// sweepNow closes what waited too long, forgets keys without connections, and comes again while any is left.
func (p *engineIdle) sweepNow() {
	p.mu.Lock()
	now := time.Now()
	var old []*engineConn
	for key, list := range p.conns {
		kept := list[:0]
		for _, c := range list {
			if now.Before(c.idleUntil) {
				kept = append(kept, c)
			} else {
				old = append(old, c)
			}
		}
		clear(list[len(kept):])
		p.conns[key] = kept
		if len(kept) == 0 {
			delete(p.conns, key)
		}
	}
	if len(p.conns) == 0 || p.closed {
		p.sweep = nil
	} else {
		p.sweep.Reset(p.limit / 4)
	}
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

// close closes all and refuses what comes later.
func (p *engineIdle) close() {
	p.mu.Lock()
	p.closed = true
	conns := p.conns
	p.conns = nil
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
	p.mu.Unlock()
	for _, list := range conns {
		for _, c := range list {
			c.close()
		}
	}
}
