package engine

import (
	"container/list"

	"github.com/zeebo/xxh3"
)

const (
	blockTokens = 16
	tokenBytes  = 4
	blockBytes  = blockTokens * tokenBytes
)

// chain turns text into hashes of its full blocks, each hash over the block and all before it.
type chain struct {
	hashes []uint64
	parent uint64
	tail   []byte // text behind the last full block
	bytes  int
}

func (c *chain) write(text []byte) {
	c.bytes += len(text)
	c.tail = append(c.tail, text...)
	rest := c.tail
	for len(rest) >= blockBytes {
		c.parent = xxh3.HashSeed(rest[:blockBytes], c.parent)
		c.hashes = append(c.hashes, c.parent)
		rest = rest[blockBytes:]
	}
	c.tail = c.tail[:copy(c.tail, rest)]
}

// tokens is the length of the text in tokens of 4 bytes, the last one perhaps shorter.
func (c *chain) tokens() int { return (c.bytes + tokenBytes - 1) / tokenBytes }

// kvCache holds blocks. A block is in use (somebody's context) or only cached: then it counts as free and is the next to go,
// the least recently used first.
type kvCache struct {
	capacity int
	used     int // blocks in use, shared ones counted once
	shared   map[uint64]*kvBlock
	idle     *list.List // of *kvBlock with users == 0, the next to be evicted in front
}

type kvBlock struct {
	hash  uint64
	users int
	idle  *list.Element
}

func newKVCache(capacity int) *kvCache {
	return &kvCache{capacity: capacity, shared: make(map[uint64]*kvBlock), idle: list.New()}
}

// match returns how many of the blocks are cached, from the first on without a gap.
func (c *kvCache) match(hashes []uint64) int {
	for i, h := range hashes {
		if c.shared[h] == nil {
			return i
		}
	}
	return len(hashes)
}

// lease is the part of the cache one sequence holds.
type lease struct {
	blocks  []*kvBlock // full ones, in order
	private int        // not full yet, or just computed
}

// attach takes cached blocks into use. They must be there (match).
func (c *kvCache) attach(l *lease, hashes []uint64) {
	for _, h := range hashes {
		l.blocks = append(l.blocks, c.use(c.shared[h]))
	}
}

// grow makes the lease at least n blocks long, and reports false, with nothing changed, if there is no room.
func (c *kvCache) grow(l *lease, n int) bool {
	need := n - len(l.blocks) - l.private
	if need <= 0 {
		return true
	}
	if c.used+need > c.capacity {
		return false
	}
	c.used += need
	l.private += need
	for c.used+c.idle.Len() > c.capacity {
		front := c.idle.Front()
		delete(c.shared, front.Value.(*kvBlock).hash)
		c.idle.Remove(front)
	}
	return true
}

// publish makes the lease's computed full blocks visible to others. hashes are those of the whole context.
func (c *kvCache) publish(l *lease, hashes []uint64) {
	for i := len(l.blocks); i < len(hashes) && l.private > 0; i++ {
		l.private--
		c.used-- // the private copy; use counts the shared one
		b := c.shared[hashes[i]]
		if b == nil {
			b = &kvBlock{hash: hashes[i]}
			c.shared[b.hash] = b
		}
		l.blocks = append(l.blocks, c.use(b))
	}
}

// release gives everything back; the deepest block will be evicted first.
func (c *kvCache) release(l *lease) {
	c.used -= l.private
	for i := len(l.blocks) - 1; i >= 0; i-- {
		b := l.blocks[i]
		if b.users--; b.users == 0 {
			c.used--
			b.idle = c.idle.PushBack(b)
		}
	}
	*l = lease{}
}

func (c *kvCache) use(b *kvBlock) *kvBlock {
	if b.users == 0 {
		c.used++
		if b.idle != nil {
			c.idle.Remove(b.idle)
			b.idle = nil
		}
	}
	b.users++
	return b
}
