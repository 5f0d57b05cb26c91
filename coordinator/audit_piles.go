package coordinator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Records of one rid lie on one pile, in the order in which they came. Piles that are short stay in memory.
const (
	pileCount = 64
	pileBytes = 64 << 10 // of each, before it goes to disk: 4 MiB in all
)

// piles sorts records by rid.
type piles struct {
	parent, dir string // dir "": nothing is on disk
	memory      [pileCount]bytes.Buffer
}

func newPiles(parent string) *piles { return &piles{parent: parent} }

func (p *piles) put(e audited) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	sum := uint32(2166136261)
	for i := range len(e.RID) {
		sum = (sum ^ uint32(e.RID[i])) * 16777619
	}
	n := sum % pileCount
	pile := &p.memory[n]
	pile.Write(text)
	pile.WriteByte('\n')
	if pile.Len() < pileBytes {
		return nil
	}
	if p.dir == "" {
		if p.dir, err = os.MkdirTemp(p.parent, "headgate-audit-"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(p.name(n), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = pile.WriteTo(f)
	return errors.Join(err, f.Close())
}

func (p *piles) name(n uint32) string { return filepath.Join(p.dir, fmt.Sprint(n)) }

// each calls fn with the records of each rid, in the order in which they were put.
func (p *piles) each(fn func(records []audited)) error {
	for n := range uint32(pileCount) {
		byRID := map[string][]audited{}
		if p.dir != "" {
			f, err := os.Open(p.name(n))
			if err == nil {
				err = errors.Join(deal(f, byRID), f.Close())
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if err := deal(&p.memory[n], byRID); err != nil {
			return err
		}
		for _, records := range byRID {
			fn(records)
		}
	}
	return nil
}

func deal(from io.Reader, byRID map[string][]audited) error {
	lines := json.NewDecoder(from)
	for {
		var e audited
		if err := lines.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		byRID[e.RID] = append(byRID[e.RID], e)
	}
}

func (p *piles) remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}
