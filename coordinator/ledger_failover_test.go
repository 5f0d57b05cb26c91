package coordinator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

// onEach runs test on a node, on a cluster with replicas and on a Sentinel set.
func onEach(t *testing.T, replicas int, test func(t *testing.T, f *ledgers)) {
	t.Helper()
	for name, url := range map[string]func(*testing.T) string{
		"redis":    func(t *testing.T) string { return lab.SharedRedis(t).URL() },
		"cluster":  func(t *testing.T) string { return lab.SharedCluster(t).URL() },
		"sentinel": func(t *testing.T) string { return lab.SharedSentinel(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newLedgers(t, url(t), replicas))
		})
	}
}

// onEachPair runs test on a cluster with replicas and on a Sentinel set of its own: pair has the tenants of both ledgers.
func onEachPair(t *testing.T, test func(t *testing.T, pair lab.Pair, busy, quiet *ledgers)) {
	t.Helper()
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := lab.ClusterReplicated(t, 3, 0)
		busy, quiet := newLedgers(t, c.URL(), 1), newLedgers(t, c.URL(), 1)
		for c.Owner(TenantRoot(quiet.tenant)) != c.Owner(TenantRoot(busy.tenant)) {
			quiet = newLedgers(t, c.URL(), 1)
		}
		test(t, c.Shard(TenantRoot(busy.tenant)), busy, quiet)
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := lab.Sentinel(t)
		test(t, s.Pair(), newLedgers(t, s.URL(), 1), newLedgers(t, s.URL(), 1))
	})
}

// L2, L3. A primary dies with what it acknowledged last: every request is charged once, whatever of it was lost, the
// admission, the settlement, both, or neither; also where nothing was sent while Redis was away.
func TestLedgerFailover(t *testing.T) {
	onEachPair(t, func(t *testing.T, pair lab.Pair, busy, quiet *ledgers) {
		for _, f := range []*ledgers{busy, quiet} {
			f.do("HSET", ":key:k1", "budget_usd", "1", "parallel", "100")
		}
		run(t, busy.list[0])
		quiet.list[0].watchPrimaries(t.Context())

		stages := map[*ledgers]*stages{busy: before(busy), quiet: before(quiet)}
		pair.Detach()
		for f, s := range stages {
			s.detached(f)
		}
		pair.Kill()
		stages[busy].away(busy)
		pair.Wait()
		for f, s := range stages {
			s.after(f)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		lab.Succeeds(t, 30*time.Second, func() error { // as Run does each second
			quiet.list[0].watchPrimaries(ctx)
			quiet.list[0].repeatAcked()
			quiet.list[0].retry(ctx)
			return charged(quiet, 1+2+4+8+32)
		}, "the quiet one")
		lab.Succeeds(t, 30*time.Second, func() error { return charged(busy, 1+2+4+8+16+32) }, "the busy one")
		if n := busy.logs.Count("charged in full"); n < 2 {
			t.Errorf("%d admissions were charged in full, two were lost at least: the failover lost nothing", n)
		}
		lab.Eventually(t, 10*time.Second, func() bool { return busy.list[0].Open()+busy.list[0].Unsettled() == 0 }, "nothing is left to do")
		if a, _ := busy.admit(busy.list[0], busy.request()); a.Verdict != Admitted {
			t.Errorf("%+v", a)
		}
	})
}

// stages are requests that are interrupted at different moments; each costs another power of two.
type stages struct {
	lostSettlement, lostAdmission, duringOutage, across Settlement
}

func before(f *ledgers) *stages {
	open := func(cost int64) Settlement {
		r := f.request()
		a, _ := f.admit(f.list[0], r)
		return f.settlement(r, a, cost)
	}
	f.settle(f.list[0], open(1))
	f.settled(f.list[0])
	return &stages{lostSettlement: open(2), duringOutage: open(16), across: open(32)}
}

// detached is what only the primary that dies will know.
func (s *stages) detached(f *ledgers) {
	r := f.request()
	a, _ := f.admit(f.list[0], r)
	s.lostAdmission = f.settlement(r, a, 8)
	r = f.request()
	a, _ = f.admit(f.list[0], r)
	f.settle(f.list[0], f.settlement(r, a, 4))
	f.settle(f.list[0], s.lostSettlement)
	lab.Eventually(f, 10*time.Second, func() bool { return f.list[0].Open() == 3 }, "two are settled")
}

func (s *stages) away(f *ledgers) {
	f.settle(f.list[0], s.duringOutage)
	lab.Eventually(f, 20*time.Second, func() bool { return f.list[0].Unsettled() > 0 }, "it is kept")
	s.duringOutage = Settlement{}
}

func (s *stages) after(f *ledgers) {
	f.settle(f.list[0], s.lostAdmission)
	f.settle(f.list[0], s.across)
	if s.duringOutage.RID != "" { // it never ends: given back
		f.settle(f.list[0], Settlement{Tenant: f.tenant, RID: s.duringOutage.RID})
	}
}

// charged is nil when counters and records say sum and nothing is open.
func charged(f *ledgers, sum int64) error {
	b := f.pipes.Batch()
	read := func(name, suffix string, args ...string) *pipeline.Handle[map[string]string] {
		return pipeline.Declare(b, pipeline.Command{Store: f.store, Name: name, Key: TenantRoot(f.tenant) + suffix, Args: args},
			func(m rueidis.RedisMessage) (map[string]string, error) { return m.AsStrMap() })
	}
	counters, open, running := read("HGETALL", f.month()), read("HGETALL", ":open"), read("HGETALL", ":parallel")
	h, err := counters.Wait(f.Context())
	if err != nil {
		return err
	}
	o, err := open.Wait(f.Context())
	if err != nil {
		return err
	}
	p, err := running.Wait(f.Context())
	if err != nil {
		return err
	}
	if h["spent_nusd"] != fmt.Sprint(sum) || h["reserved_nusd"] != "0" || len(o)+len(p) > 0 {
		return fmt.Errorf("%v, want %d spent; open %v, running %v", h, sum, o, p)
	}
	if _, said, _ := f.records(); said != sum {
		return fmt.Errorf("the records say %d, want %d", said, sum)
	}
	return nil
}

// run runs the ledger until the test ends.
func run(t *testing.T, l *Ledger) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// A primary that is hidden may be about to be replaced; one that is gone was.
func TestPrimaries(t *testing.T) {
	t.Parallel()
	var p primaries
	for i, c := range []struct {
		ids          string
		err          error
		gone, hidden bool
	}{
		{"ab", nil, false, false},
		{"ab", nil, false, false},
		{"b", pipeline.ErrUnavailable, false, true},
		{"abc", nil, false, false}, // another shard
		{"abd", nil, true, false},
		{"d", pipeline.ErrUnavailable, false, true},
		{"de", nil, true, false},
	} {
		var ids []string
		for _, id := range c.ids {
			ids = append(ids, string(id))
		}
		if gone := p.saw(ids, c.err); gone != c.gone || p.isHidden() != c.hidden {
			t.Errorf("look %d: gone %v, hidden %v", i, gone, p.isHidden())
		}
	}
}

// Of a cluster one primary is dead and has no replica: what is kept for it holds up nobody else's, it is logged once, and the
// store answers what any node can.
func TestLedgerWithADeadNode(t *testing.T) {
	t.Parallel()
	c := lab.Cluster(t, 3)
	c.Nodes[0].CLI("CONFIG", "SET", "cluster-require-full-coverage", "no")
	c.Nodes[1].CLI("CONFIG", "SET", "cluster-require-full-coverage", "no")
	c.Nodes[2].CLI("CONFIG", "SET", "cluster-require-full-coverage", "no")
	dead, alive := newLedgers(t, c.URL(), 1), newLedgers(t, c.URL(), 1)
	for c.Owner(TenantRoot(dead.tenant)) == c.Owner(TenantRoot(alive.tenant)) {
		alive = newLedgers(t, c.URL(), 1)
	}
	l := dead.list[0]
	spent := func(f *ledgers) string {
		return c.CLI(TenantRoot(f.tenant), "HGET", TenantRoot(f.tenant)+f.month(), "spent_nusd")
	}
	both := []*ledgers{dead, alive}
	for _, f := range both {
		f.do("HSET", ":key:k1", "budget_usd", "1")
	}
	var late []Settlement
	for i := range retryBatch + 20 {
		f := dead
		if i == retryBatch+19 { // behind more than one flush
			f = alive
		}
		r := f.request()
		a, _ := f.admit(l, r)
		late = append(late, f.settlement(r, a, 4))
	}
	c.Owner(TenantRoot(dead.tenant)).Kill()
	for _, s := range late {
		l.keep(s, pipeline.ErrUnavailable)
	}
	lab.Eventually(t, 20*time.Second, func() bool { l.retry(t.Context()); return l.unsettled.count() == len(late)-1 }, "the other tenant is settled")
	if got := spent(alive); got != "4" || l.unsettled.list[0].RID != late[0].RID {
		t.Fatalf("%s spent, first %s", got, l.unsettled.list[0].RID)
	}
	for range 20 {
		if err := l.cfg.Store.Ready(t.Context()); err != nil {
			t.Fatalf("not ready with two nodes of three: %v", err)
		}
	}
	r := alive.request()
	a, _ := alive.admit(l, r)
	alive.settle(l, alive.settlement(r, a, 1))
	lab.Eventually(t, 10*time.Second, func() bool { return spent(alive) == "5" }, "a settlement of the other tenant")
	l.retry(t.Context())
	if down, up := dead.logs.Count("does not take"), dead.logs.Count("takes settlements again"); down != 1 || up != 0 || !l.health.isBad() {
		t.Fatalf("logged %d and %d times while one node is dead", down, up)
	}
}
