package coordinator

import (
	"sync"
	"time"
)

// announceFor is how long the entry of a tenant in hg:replica:<id>:tenants is taken to be there: it may have gone with a
// primary, or with another replica that thought this one dead. Tenants with open reservations are written anew with
// every renewal anyway.
const announceFor = time.Minute

// openBook is what this replica has reserved and not settled yet. The zero value lacks its map.
type openBook struct {
	mu      sync.Mutex
	tenants map[string]*tenantBook
	n       int
}

type tenantBook struct {
	rids  map[string]reserved
	until time.Time // announced until then
}

// reserved is what is remembered of a reservation: what a top-up and the lesson of its usage need.
type reserved struct {
	keyHash, model       string
	promptBytes, choices int64
}

// unannounced is true when the tenant's set may lack it.
func (o *openBook) unannounced(tenant string, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tenants[tenant]
	return t == nil || now.After(t.until)
}

func (o *openBook) announced(tenants []string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, tenant := range tenants {
		o.tenantLocked(tenant).until = now.Add(announceFor)
	}
}

// add notes a reservation; true: its tenant is not announced.
func (o *openBook) add(tenant, rid string, r reserved, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tenantLocked(tenant)
	if _, there := t.rids[rid]; !there {
		t.rids[rid] = r
		o.n++
	}
	return now.After(t.until)
}

// get is what is known of a reservation of this replica.
func (o *openBook) get(tenant, rid string) (reserved, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tenants[tenant]
	if t == nil {
		return reserved{}, false
	}
	r, ok := t.rids[rid]
	return r, ok
}

func (o *openBook) tenantLocked(tenant string) *tenantBook {
	t := o.tenants[tenant]
	if t == nil {
		t = &tenantBook{rids: map[string]reserved{}}
		o.tenants[tenant] = t
	}
	return t
}

func (o *openBook) remove(tenant string, rids ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tenants[tenant]
	if t == nil {
		return
	}
	for _, rid := range rids {
		if _, there := t.rids[rid]; there {
			delete(t.rids, rid)
			o.n--
		}
	}
}

func (o *openBook) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}

// toAnnounce is the tenants with open reservations; all of them, or those not announced.
func (o *openBook) toAnnounce(all bool, now time.Time) (tenants []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, t := range o.tenants {
		if len(t.rids) > 0 && (all || now.After(t.until)) {
			tenants = append(tenants, name)
		}
	}
	return tenants
}

// page is up to max reservations of one tenant.
type page struct {
	tenant string
	rids   []string
}

// pages is everything open, in pages, and forgets tenants that have been without reservations for long.
func (o *openBook) pages(max int, now time.Time) (pages []page) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, t := range o.tenants {
		if len(t.rids) == 0 {
			if now.After(t.until) {
				delete(o.tenants, name)
			}
			continue
		}
		p := page{tenant: name}
		for rid := range t.rids {
			if p.rids = append(p.rids, rid); len(p.rids) == max {
				pages = append(pages, p)
				p.rids = nil
			}
		}
		if len(p.rids) > 0 {
			pages = append(pages, p)
		}
	}
	return pages
}
