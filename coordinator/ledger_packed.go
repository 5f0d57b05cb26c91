package coordinator

import (
	"encoding/binary"
	"time"
)

// packed is settlements as bytes, oldest first, in pieces that are used again. Ten seconds of a busy replica's settlements are
// tens of megabytes: here the collector finds no pointers to follow in them, and steady traffic takes no new memory. The zero
// value is empty. It is not safe for concurrent use.
//
//	<bytes of all, 4> <since, ns after base, 8> <admitted, Unix ms, 8> <flags, 1> <prompt, cached, completion, cost, 8 each>
//	<bytes of tenant, rid, claim and record, 4 each> <tenant> <rid> <claim> <record>
type packed struct {
	n      int
	base   time.Time // when the first one ever was put: it keeps the clock that nobody sets
	pieces [][]byte
	at     int // the oldest one's offset in the first piece
	spare  []byte
}

const (
	packedPiece = 128 << 10 // bytes; a longer settlement has a piece of its own
	packedHead  = 4 + 8 + 8 + 1 + 4*8 + 4*4
	packedSince = 4 // offset
)

// put appends one.
func (p *packed) put(k keptSettlement) {
	if p.base.IsZero() {
		p.base = k.since
	}
	size := packedHead + len(k.Tenant) + len(k.RID) + len(k.Claim) + len(k.Record)
	last := len(p.pieces) - 1
	if last < 0 || cap(p.pieces[last])-len(p.pieces[last]) < size {
		p.pieces = append(p.pieces, p.piece(size))
		last++
	}
	p.n++
	order, b := binary.LittleEndian, p.pieces[last]
	b = order.AppendUint32(b, uint32(size))
	for _, v := range [2]int64{int64(k.since.Sub(p.base)), k.AdmittedAt.UnixMilli()} {
		b = order.AppendUint64(b, uint64(v))
	}
	b = append(b, flagged(k.KeepRequest, k.Real, k.NeverAdmitted))
	for _, v := range [4]int64{k.Prompt, k.Cached, k.Completion, k.CostNUSD} {
		b = order.AppendUint64(b, uint64(v))
	}
	for _, n := range [4]int{len(k.Tenant), len(k.RID), len(k.Claim), len(k.Record)} {
		b = order.AppendUint32(b, uint32(n))
	}
	b = append(append(append(append(b, k.Tenant...), k.RID...), k.Claim...), k.Record...)
	p.pieces[last] = b
}

// oldest is since when the oldest one is kept; there must be one.
func (p *packed) oldest() time.Time {
	return p.base.Add(time.Duration(binary.LittleEndian.Uint64(p.pieces[0][p.at+packedSince:])))
}

// drop forgets the oldest one; there must be one.
func (p *packed) drop() {
	first := p.pieces[0]
	p.at += int(binary.LittleEndian.Uint32(first[p.at:]))
	p.n--
	if p.at < len(first) {
		return
	}
	if cap(first) == packedPiece {
		p.spare = first[:0]
	}
	p.pieces[0] = nil
	p.pieces, p.at = p.pieces[1:], 0
}

// all is a copy of them.
func (p *packed) all() []keptSettlement {
	list := make([]keptSettlement, 0, p.n)
	at := p.at
	for _, piece := range p.pieces {
		for rest := piece[at:]; len(rest) > 0; {
			size := binary.LittleEndian.Uint32(rest)
			list = append(list, p.unpack(rest[:size]))
			rest = rest[size:]
		}
		at = 0
	}
	return list
}

func (p *packed) piece(least int) []byte {
	if spare := p.spare; spare != nil && least <= packedPiece {
		p.spare = nil
		return spare
	}
	return make([]byte, 0, max(least, packedPiece))
}

func (p *packed) unpack(b []byte) keptSettlement {
	order, text := binary.LittleEndian, b[packedHead:]
	b = b[packedSince:]
	number := func() int64 {
		v := int64(order.Uint64(b))
		b = b[8:]
		return v
	}
	k := keptSettlement{since: p.base.Add(time.Duration(number()))}
	k.AdmittedAt = time.UnixMilli(number())
	k.KeepRequest, k.Real, k.NeverAdmitted = b[0]&1 != 0, b[0]&2 != 0, b[0]&4 != 0
	b = b[1:]
	k.Prompt, k.Cached, k.Completion, k.CostNUSD = number(), number(), number(), number()
	next := func() []byte {
		n := order.Uint32(b)
		part := text[:n]
		b, text = b[4:], text[n:]
		return part
	}
	k.Tenant, k.RID, k.Claim = string(next()), string(next()), string(next())
	k.Record = append([]byte(nil), next()...)
	return k
}

// flagged is flags as one byte, the first one lowest.
func flagged(flags ...bool) (b byte) {
	for i, set := range flags {
		if set {
			b |= 1 << i
		}
	}
	return b
}
