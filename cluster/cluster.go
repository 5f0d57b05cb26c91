// Package cluster knows the backends: where they are (Consul, configuration),
// which of them are well (GET /health, GET /v1/models), and in which order they
// are asked for a prefix (the ring).
//
// Invariants:
//
//	L1  The same set of members in any order gives the same ring, on every replica.
//	L2  Health, addresses and figures of a member move no prefix; only a change of the set does.
//	L3  A backend is not used before its first good health check at its address.
//	L4  One bad entry takes out itself alone.
//	L5  Consul away or empty-handed for a moment changes nothing.
//	L6  There are never more than 5 queries to Consul in a second, and an index that fell or is 0 is not waited for.
//	L7  A refused connection takes a backend out at once, anything else only three times in a row.
//	L8  With the board of health there, a backend is checked every second by two living replicas, and out of use for all when both find it unwell.
//	L9  With the board away every replica checks every backend itself, and believes itself alone.
//	L10 A backend on which no request was answered for a while is probed by one replica, and out of use for all while its probes fail.
//	L11 What was out of use for all is used again, by each replica, after a good check of its own that began since.
package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/catalogue"
	"github.com/rs/zerolog"
)

// Config says where backends are found.
type Config struct {
	ConsulAddr    string // host:port or URL; "" = no Consul
	ConsulService string // the name engines are registered under
	Static        []Static
	Roots         *x509.CertPool // authorities of https engines; nil: the system's
}

// knownFor is how long a model stays known after its last backend vanished.
const knownFor = time.Hour

// Cluster is the fleet of backends as this replica sees it. It is safe for
// concurrent use.
type Cluster struct {
	cfg    Config
	store  *catalogue.Store
	log    zerolog.Logger
	prober prober

	current  atomic.Pointer[view]
	answered atomic.Bool   // Consul has given a list
	consulUp atomic.Bool   // its last query was answered
	changed  chan struct{} // a new snapshot is due
	turned   chan struct{} // a backend has become well or unwell

	mu     sync.Mutex
	static []spec
	consul []spec

	engines sync.Map // *engine by member id

	// Of Run's goroutine alone.
	listed *catalogue.Catalogue // the one of the current view
	complaints
}

// view is one snapshot of everything.
type view struct {
	pools  map[string]*Pool
	sorted []*Pool
	models map[string]modelInfo

	undecided chan struct{} // see Undecided
}

// modelInfo is what is known of a model by name; gone is zero while a backend
// has it.
type modelInfo struct {
	pool string
	gone time.Time
}

// New prepares a cluster; it asks nobody before Run.
func New(cfg Config, store *catalogue.Store, log zerolog.Logger) *Cluster {
	c := &Cluster{cfg: cfg, store: store, log: log, prober: newProber(cfg.Roots), changed: make(chan struct{}, 1), turned: make(chan struct{}, 1)}
	c.complaints.log = log
	c.current.Store(&view{})
	for _, one := range cfg.Static {
		s, err := parseStatic(one)
		if err != nil {
			log.Warn().Str("backend", clip(one.ID)).Err(err).Msg("static backend left out")
			continue
		}
		c.static = append(c.static, s)
	}
	return c
}

// Run watches and checks until ctx ends; it returns nil then, and an error only
// when Consul's address cannot be used at all.
func (c *Cluster) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer c.prober.close()
	defer running.Wait()
	defer cancel()
	if c.cfg.ConsulAddr != "" {
		w, err := newWatch(c.cfg, c.log, c.setConsul)
		if err != nil {
			return err
		}
		w.up = c.consulUp.Store
		running.Go(func() { w.run(ctx) })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	c.notify()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
			c.reconcile(ctx, &running)
			c.publish()
		case <-tick.C:
			if c.listed != c.store.Current() {
				c.notify()
			}
		}
	}
}

// Pool is a snapshot of one pool.
func (c *Cluster) Pool(name string) (*Pool, bool) {
	p, ok := c.current.Load().pools[name]
	return p, ok
}

// Pools are snapshots of all pools, sorted by name.
func (c *Cluster) Pools() []*Pool { return c.current.Load().sorted }

// ModelPool is the pool that serves a model: the catalogue's where it has an
// entry (an alias counts), else the pool of the backends that are registered for
// it or list it, well or not. known is false for a name that no backend has had
// within the last hour.
func (c *Cluster) ModelPool(model string) (pool string, known bool) {
	if m, ok := c.store.Current().Resolve(model); ok {
		return m.Pool, true
	}
	info, ok := c.current.Load().models[model]
	if !ok || !info.gone.IsZero() && time.Since(info.gone) > knownFor {
		return "", false
	}
	return info.pool, true
}

// Models are the names of all models that a usable backend lists, sorted.
func (c *Cluster) Models() []string {
	var all []string
	for _, p := range c.Pools() {
		for _, b := range p.Backends {
			if b.Usable() {
				all = append(all, b.Models...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Undecided is nil when every backend was checked since it got its address. Else
// it is closed with the next snapshot: somebody was checked, came or left.
func (c *Cluster) Undecided() <-chan struct{} { return c.current.Load().undecided }

// Ready is nil once there is a list of backends to work with.
func (c *Cluster) Ready() error {
	if c.cfg.ConsulAddr != "" && !c.answered.Load() {
		return errors.New("consul has not answered yet")
	}
	return nil
}

// ConsulUp reports whether Consul answered the last query; false without Consul.
func (c *Cluster) ConsulUp() bool { return c.consulUp.Load() }

// Failure is how a request to a backend failed.
type Failure int

// ConnectFailed takes the backend out of use until its next good health check.
const ConnectFailed Failure = 1

// ReportFailure tells the cluster what a request met at b. It does not block.
func (c *Cluster) ReportFailure(b *Backend, kind Failure) {
	if e, ok := c.engines.Load(b.ID); ok && kind == ConnectFailed {
		e.(*engine).fail(b.Addr)
		c.turn()
	}
}

func (c *Cluster) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Cluster) setConsul(entries []spec) {
	c.mu.Lock()
	c.consul = entries
	c.mu.Unlock()
	c.answered.Store(true)
	c.notify()
}

// reconcile makes the checked engines those that are registered.
func (c *Cluster) reconcile(ctx context.Context, running *sync.WaitGroup) {
	c.mu.Lock()
	wanted, twins := members(c.static, c.consul, poolIn(c.store.Current()))
	c.mu.Unlock()
	for _, s := range twins {
		c.complain(s.id, "left out: its address "+s.addr+" is registered twice in one pool")
	}
	for id, s := range wanted {
		if known, ok := c.engines.Load(id); ok {
			known.(*engine).update(s)
			continue
		}
		e := newEngine(s)
		e.story.log = c.log
		own, cancel := context.WithCancel(ctx)
		e.cancel = cancel
		c.engines.Store(id, e)
		running.Go(func() { e.run(own, c.prober, func() { c.notify(); c.turn() }) })
		c.log.Info().Str("backend", id).Str("address", s.addr).Msg("backend registered")
	}
	c.engines.Range(func(id, e any) bool {
		if _, ok := wanted[id.(string)]; !ok {
			c.engines.Delete(id)
			e.(*engine).leave()
			c.log.Info().Str("backend", id.(string)).Msg("backend gone")
		}
		return true
	})
}

// publish swaps the snapshot and puts those in use whose checks are good.
func (c *Cluster) publish() {
	cat := c.store.Current()
	byPool := map[string][]*Backend{}
	var engines []*engine
	var undecided bool
	c.engines.Range(func(id, value any) bool {
		e := value.(*engine)
		engines = append(engines, e)
		v := e.view()
		undecided = undecided || !v.checked
		if b := newBackend(id.(string), v, cat); b.Pool != "" {
			byPool[b.Pool] = append(byPool[b.Pool], b)
			c.checkPools(b, cat)
		}
		return true
	})
	before := c.current.Load()
	next := &view{pools: make(map[string]*Pool, len(byPool))}
	if undecided {
		next.undecided = make(chan struct{})
	}
	for name, backends := range byPool {
		p := newPool(name, backends, before.pools[name])
		next.pools[name] = p
		next.sorted = append(next.sorted, p)
	}
	slices.SortFunc(next.sorted, func(a, b *Pool) int { return strings.Compare(a.Name, b.Name) })
	next.models = models(next.sorted, before.models, time.Now())
	c.current.Store(next)
	c.listed = cat
	c.complaints.forget()
	for _, e := range engines {
		e.publish()
	}
	if before.undecided != nil {
		close(before.undecided)
	}
}

// newBackend is an engine's snapshot; its Pool is empty while nobody knows what
// it serves.
func newBackend(id string, v engineView, cat *catalogue.Catalogue) *Backend {
	s := v.spec
	names := effective(s.models, v.listed)
	pool := s.pool
	if pool == "" {
		if first := slices.Concat(s.models, names); len(first) > 0 {
			pool = poolIn(cat)(first[0])
		}
	}
	return &Backend{
		ID: id, Pool: pool, Scheme: s.scheme, Host: s.host, Addr: s.addr, BasePath: s.basePath,
		Models: names, Slots: s.slots, CapacityMU: s.capacityMU, Hardware: s.hardware,
		Priority: s.priority, Draining: s.draining,
		critical: s.critical, probeCheck: s.probeCheck, declared: s.models, maxLen: v.listed, state: v.state,
	}
}

// poolIn says which pool a model belongs to: the catalogue's where it has an entry.
func poolIn(cat *catalogue.Catalogue) func(model string) string {
	return func(model string) string {
		if m, ok := cat.Resolve(model); ok {
			return m.Pool
		}
		return catalogue.PoolOf(model)
	}
}

// models is the pool of every model some backend has, and of those that
// vanished less than knownFor ago. Of several pools the first by name counts.
func models(pools []*Pool, before map[string]modelInfo, now time.Time) map[string]modelInfo {
	next := map[string]modelInfo{}
	for _, p := range pools {
		for _, b := range p.Backends {
			for _, name := range slices.Concat(b.Models, b.declared) {
				if _, ok := next[name]; !ok {
					next[name] = modelInfo{pool: p.Name}
				}
			}
		}
	}
	for name, info := range before {
		if _, ok := next[name]; ok {
			continue
		}
		if info.gone.IsZero() {
			info.gone = now
		}
		if now.Sub(info.gone) <= knownFor {
			next[name] = info
		}
	}
	return next
}

// checkPools warns where the catalogue sends a model's requests to another pool.
func (c *Cluster) checkPools(b *Backend, cat *catalogue.Catalogue) {
	for _, name := range b.Models {
		if m, ok := cat.Resolve(name); ok && m.Name == name && m.Pool != b.Pool {
			c.complain(b.ID, "it is in pool "+b.Pool+", but the catalogue has its model "+name+" in pool "+m.Pool+": it gets no request for it")
		}
	}
}
