package main

// kvCache holds blocks of a KV cache as vLLM does: a block in use is shared by all whose beginning it is; one that nobody
// uses stays until its place is needed, the least recently used first, and of one prompt the deepest first.
type kvCache struct {
	capacity int // blocks
	used     int // in use, shared ones counted once
	idle     int // cached and in nobody's use
	shared   map[uint64]*kvBlock
	eldest   kvBlock // ring of the idle: eldest.next goes first
}

type kvBlock struct {
	name       uint64
	users      int
	prev, next *kvBlock
}

func newKVCache(capacity int) *kvCache {
	c := &kvCache{capacity: capacity, shared: map[uint64]*kvBlock{}}
	c.eldest.prev, c.eldest.next = &c.eldest, &c.eldest
	return c
}

// match is how many blocks of the chain are cached, from the first on without a gap.
func (c *kvCache) match(chain []uint64) int {
	for i, name := range chain {
		if c.shared[name] == nil {
			return i
		}
	}
	return len(chain)
}

// use takes a block into use; it is made if it is not there.
func (c *kvCache) use(name uint64) {
	b := c.shared[name]
	if b == nil {
		b = &kvBlock{name: name}
		c.shared[name] = b
	}
	if b.users == 0 {
		if b.next != nil {
			b.prev.next, b.next.prev = b.next, b.prev
			c.idle--
		}
		c.used++
	}
	b.users++
}

// leave ends one use of each block of the chain.
func (c *kvCache) leave(chain []uint64) {
	for i := len(chain) - 1; i >= 0; i-- {
		b := c.shared[chain[i]]
		if b.users--; b.users > 0 {
			continue
		}
		c.used--
		c.idle++
		b.prev, b.next = c.eldest.prev, &c.eldest
		b.prev.next, b.next.prev = b, b
	}
}

// take reserves n blocks that nobody shares; false, and nothing changed, if there is no room.
func (c *kvCache) take(n int) bool {
	if c.used+n > c.capacity {
		return false
	}
	c.used += n
	for c.used+c.idle > c.capacity {
		b := c.eldest.next
		b.prev.next, b.next.prev = b.next, b.prev
		delete(c.shared, b.name)
		c.idle--
	}
	return true
}

func (c *kvCache) give(n int) { c.used -= n }
