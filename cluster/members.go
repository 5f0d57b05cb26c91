package cluster

import (
	"cmp"
	"slices"

	"github.com/rs/zerolog"
)

// members gives every backend its id: the service's, with the node behind it
// where several nodes (or the configuration) have the same. What is registered
// twice at one address and in one pool is one backend: the registration that is
// not critical counts, then the newest, then the smallest id; the others are
// twins. poolOf is the pool of a model.
func members(static, consul []spec, poolOf func(model string) string) (all map[string]spec, twins []spec) {
	place := func(s spec) string {
		pool := s.pool
		if pool == "" && len(s.models) > 0 {
			pool = poolOf(s.models[0])
		}
		return pool + " " + s.scheme + " " + s.addr + s.basePath
	}
	all = make(map[string]spec, len(static)+len(consul))
	taken := map[string]int{}
	addresses := map[string]bool{}
	for _, s := range static {
		if _, ok := all[s.id]; ok {
			continue
		}
		all[s.id] = s
		taken[s.id]++
		addresses[place(s)] = true
	}
	for _, s := range consul {
		taken[s.id]++
	}
	for _, s := range sortedByWorth(consul) {
		if addresses[place(s)] {
			twins = append(twins, s)
			continue
		}
		addresses[place(s)] = true
		id := s.id
		if taken[id] > 1 && s.node != "" {
			id += "@" + s.node
		}
		if _, ok := all[id]; !ok {
			all[id] = s
		}
	}
	return all, twins
}

func sortedByWorth(consul []spec) []spec {
	sorted := slices.Clone(consul)
	slices.SortFunc(sorted, func(a, b spec) int {
		if a.critical != b.critical {
			if b.critical {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.created, a.created), cmp.Compare(a.id, b.id), cmp.Compare(a.node, b.node))
	})
	return sorted
}

// complaints log a warning once for as long as its reason stays.
type complaints struct {
	log       zerolog.Logger
	made, now map[string]bool // by id and text
}

func (c *complaints) complain(id, text string) {
	if c.now == nil {
		c.now = map[string]bool{}
	}
	key := id + "\n" + text
	c.now[key] = true
	if !c.made[key] {
		c.log.Warn().Str("backend", clip(id)).Msg(text)
	}
}

// forget ends a round: what was not said in it may be said again.
func (c *complaints) forget() { c.made, c.now = c.now, nil }
