package cluster_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// engine is the little of an engine that the cluster looks at.
type engine struct {
	*httptest.Server
	health atomic.Int32 // status of GET /health
	checks atomic.Int32
	models atomic.Pointer[string] // body of GET /v1/models; nil = 404
}

// startEngine listens on addr ("" = a free port of 127.0.0.1).
func startEngine(t *testing.T, addr string, models ...string) *engine {
	t.Helper()
	e := &engine{}
	e.health.Store(200)
	if len(models) > 0 {
		e.list(models...)
	}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(e.serve))
	if addr != "" {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		e.Listener.Close()
		e.Listener = l
	}
	e.Start()
	t.Cleanup(e.Close)
	return e
}

func (e *engine) list(models ...string) {
	var data []string
	for _, m := range models {
		data = append(data, fmt.Sprintf(`{"id":%q,"max_model_len":2048}`, m))
	}
	body := `{"object":"list","data":[` + strings.Join(data, ",") + `]}`
	e.models.Store(&body)
}

func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health":
		if status := int(e.health.Load()); status/100 == 3 {
			http.Redirect(w, r, "/elsewhere", status)
		} else {
			w.WriteHeader(status)
		}
		e.checks.Add(1)
	case "/v1/models":
		if body := e.models.Load(); body != nil {
			fmt.Fprint(w, *body)
			return
		}
		http.NotFound(w, r)
	case "/elsewhere":
		w.WriteHeader(200)
	default:
		http.NotFound(w, r)
	}
}

func (e *engine) host() string { return strings.TrimPrefix(e.URL, "http://") }

// start runs a cluster until the test ends.
func start(t *testing.T, cfg cluster.Config, store *catalogue.Store) *cluster.Cluster {
	t.Helper()
	if store == nil {
		store = catalogue.NewStore(nil)
	}
	c := cluster.New(cfg, store, zerolog.Nop())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return c
}

func static(pool string, e *engine, id string) cluster.Static {
	return cluster.Static{Pool: pool, URL: e.URL, Slots: 4, ID: id}
}

// usable are the ids a request for any key of the pool may go to.
func usable(c *cluster.Cluster, pool string) []string {
	p, ok := c.Pool(pool)
	if !ok {
		return nil
	}
	var all []string
	for _, b := range p.Candidates(1, 0) {
		all = append(all, b.ID)
	}
	slices.Sort(all)
	return all
}

func eventuallyUsable(t *testing.T, c *cluster.Cluster, pool string, want ...string) {
	t.Helper()
	lab.Eventually(t, patience, func() bool { return slices.Equal(usable(c, pool), want) }, "pool %s has %v", pool, want)
}

func TestABackendIsUsedAfterItsFirstGoodCheck(t *testing.T) { // L3
	t.Parallel()
	e := startEngine(t, "", "m")
	e.health.Store(503)
	c := start(t, cluster.Config{Static: []cluster.Static{static("p", e, "b1")}}, nil)
	lab.Eventually(t, patience, func() bool { return e.checks.Load() >= 2 }, "two checks")
	if got := usable(c, "p"); got != nil {
		t.Fatalf("usable although never well: %v", got)
	}
	lab.Eventually(t, patience, func() bool { return c.Undecided() == nil }, "a bad answer is an answer: nobody waits for another")
	e.health.Store(200)
	eventuallyUsable(t, c, "p", "b1")
	p, _ := c.Pool("p")
	b := p.Backends[0]
	if b.Host != e.host() || b.Addr != e.host() || b.Slots != 4 || !b.Serves("m") || b.MaxModelLen("m") != 2048 ||
		b.LastSeen().IsZero() || b.Scheme != "http" {
		t.Errorf("%+v", b)
	}
	if c.Ready() != nil {
		t.Error("without Consul there is nothing to wait for")
	}
}

func TestAnEngineThatIsDownLeavesAtOnceOneThatFailsAfterThree(t *testing.T) { // L7
	t.Parallel()
	down, sick := startEngine(t, "", "m"), startEngine(t, "", "m")
	c := start(t, cluster.Config{Static: []cluster.Static{static("p", down, "down"), static("p", sick, "sick")}}, nil)
	eventuallyUsable(t, c, "p", "down", "sick")
	down.Close()
	eventuallyUsable(t, c, "p", "sick")
	sick.checks.Store(0)
	sick.health.Store(302) // to a page that would answer 200
	eventuallyUsable(t, c, "p")
	if n := sick.checks.Load(); n < 3 {
		t.Errorf("out of use after %d checks", n)
	}
	sick.health.Store(200)
	eventuallyUsable(t, c, "p", "sick")
}

func TestAFailedConnectTakesABackendOutUntilTheNextGoodCheck(t *testing.T) {
	t.Parallel()
	e := startEngine(t, "", "m")
	c := start(t, cluster.Config{Static: []cluster.Static{static("p", e, "b1")}}, nil)
	eventuallyUsable(t, c, "p", "b1")
	e.health.Store(503)
	p, _ := c.Pool("p")
	b := p.Backends[0]
	elsewhere := *b
	elsewhere.Addr = "127.0.0.1:1"
	c.ReportFailure(&elsewhere, cluster.ConnectFailed)
	if !b.Usable() {
		t.Error("a failure at an address it no longer has counts")
	}
	c.ReportFailure(b, cluster.ConnectFailed)
	if b.Usable() || usable(c, "p") != nil {
		t.Error("still in use")
	}
	e.checks.Store(0)
	lab.Eventually(t, patience, func() bool { return e.checks.Load() >= 2 }, "two checks")
	if b.Usable() {
		t.Error("in use again without a good check")
	}
	e.health.Store(200)
	eventuallyUsable(t, c, "p", "b1")
}

func TestModelsAreAskedForAndMayDeny(t *testing.T) {
	t.Parallel()
	unlisted, empty := startEngine(t, ""), startEngine(t, "")
	empty.list()
	asked := startEngine(t, "", "m2", "m1")
	c := start(t, cluster.Config{Static: []cluster.Static{static("p", asked, "asked"), static("p", unlisted, "unlisted"),
		static("p", empty, "empty")}}, nil)
	eventuallyUsable(t, c, "p", "asked") // the others name no model at all
	lab.Eventually(t, patience, func() bool { return slices.Equal(c.Models(), []string{"m1", "m2"}) }, "the models of the listing")
	if pool, known := c.ModelPool("m2"); pool != "p" || !known {
		t.Errorf("m2 is in %q, %v", pool, known)
	}
	if _, known := c.ModelPool("ghost"); known {
		t.Error("a model nobody has is known")
	}
	asked.Close()
	lab.Eventually(t, patience, func() bool { return len(c.Models()) == 0 }, "no model is served")
	if pool, known := c.ModelPool("m2"); pool != "p" || !known {
		t.Errorf("m2 is forgotten while its backend is down: %q, %v", pool, known)
	}
}

func TestTheCatalogueDecidesAModelsPool(t *testing.T) {
	t.Parallel()
	first, err := catalogue.Parse([]byte("models: {m: {pool: shared, aliases: [alias]}}"))
	if err != nil {
		t.Fatal(err)
	}
	store := catalogue.NewStore(first)
	consul := scriptConsul(t)
	e := startEngine(t, "", "m")
	consul.set(consulEntry{id: "b1", address: e.host(), meta: map[string]string{"model": "m"}})
	c := start(t, cluster.Config{ConsulAddr: consul.addr, ConsulService: "vllm"}, store)
	eventuallyUsable(t, c, "shared", "b1")
	for _, name := range []string{"m", "alias"} {
		if pool, known := c.ModelPool(name); pool != "shared" || !known {
			t.Errorf("%s is in %q, %v", name, pool, known)
		}
	}
	next, err := catalogue.Parse([]byte("models: {other: {}}"))
	if err != nil {
		t.Fatal(err)
	}
	store.Replace(next)
	eventuallyUsable(t, c, "m", "b1")
	if pool, known := c.ModelPool("m"); pool != "m" || !known {
		t.Errorf("m is in %q, %v", pool, known)
	}
}

func TestPoolsAreSortedSnapshots(t *testing.T) {
	t.Parallel()
	e := startEngine(t, "", "m")
	c := start(t, cluster.Config{Static: []cluster.Static{static("z", e, "b1"), static("a", e, "b2"), {Pool: "p q", URL: "http://x"}}}, nil)
	lab.Eventually(t, patience, func() bool { return len(c.Pools()) == 2 }, "two pools")
	if c.Pools()[0].Name != "a" || c.Pools()[1].Name != "z" {
		t.Errorf("pools %s, %s", c.Pools()[0].Name, c.Pools()[1].Name)
	}
	if _, ok := c.Pool("p q"); ok {
		t.Error("a bad static entry made a pool")
	}
}
