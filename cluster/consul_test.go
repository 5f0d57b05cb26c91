package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/cluster"
	"github.com/rs/zerolog"
)

type consulEntry struct {
	id, address string // host:port
	meta        map[string]string
	tags        []string
	status      string // of its check; "" = passing
}

// scripted is a Consul that says what it is told, with honest blocking queries.
type scripted struct {
	addr string

	mu      sync.Mutex
	index   uint64
	entries []consulEntry
	moved   chan struct{}
}

func scriptConsul(t *testing.T) *scripted {
	t.Helper()
	s := &scripted{index: 10, moved: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(server.Close)
	s.addr = strings.TrimPrefix(server.URL, "http://")
	return s
}

func (s *scripted) set(entries ...consulEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index++
	s.entries = entries
	close(s.moved)
	s.moved = make(chan struct{})
}

func (s *scripted) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	moved := s.moved
	wait := r.URL.Query().Get("index") == strconv.FormatUint(s.index, 10)
	s.mu.Unlock()
	if wait {
		select {
		case <-moved:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := []*api.ServiceEntry{}
	for _, e := range s.entries {
		host, port, _ := net.SplitHostPort(e.address)
		number, _ := strconv.Atoi(port)
		entry := &api.ServiceEntry{Node: &api.Node{Node: "n1"},
			Service: &api.AgentService{ID: e.id, Address: host, Port: number, Meta: e.meta, Tags: e.tags}}
		if e.status != "" {
			entry.Checks = api.HealthChecks{{Status: e.status}}
		}
		answer = append(answer, entry)
	}
	w.Header().Set("X-Consul-Index", strconv.FormatUint(s.index, 10))
	_ = json.NewEncoder(w).Encode(answer)
}

func TestDrainingAndCriticalBackendsGetNothingNew(t *testing.T) {
	t.Parallel()
	consul := scriptConsul(t)
	meta := map[string]string{"model": "m"}
	var entries []consulEntry
	for i := range 3 {
		entries = append(entries, consulEntry{id: fmt.Sprintf("b%d", i), address: startEngine(t, "").host(), meta: meta})
	}
	consul.set(entries...)
	c := start(t, cluster.Config{ConsulAddr: consul.addr, ConsulService: "vllm"}, nil)
	eventuallyUsable(t, c, "m", "b0", "b1", "b2") // they answer 404 to /v1/models: what Consul says counts
	before, _ := c.Pool("m")
	changed := slices.Clone(entries)
	changed[0].tags, changed[1].status = []string{cluster.DrainingTag}, api.HealthCritical
	consul.set(changed...)
	eventuallyUsable(t, c, "m", "b2")
	p, _ := c.Pool("m")
	for key := range uint64(100) {
		if p.Home(key).ID != before.Home(key).ID {
			t.Fatalf("key %d has another home", key) // L2
		}
	}
	if !p.Backends[0].Draining || !p.Backends[1].Critical() || !p.Backends[0].Healthy() {
		t.Errorf("%+v, %+v", p.Backends[0], p.Backends[1])
	}
	consul.set(entries...)
	eventuallyUsable(t, c, "m", "b0", "b1", "b2")
	bad := slices.Clone(entries)
	bad[1].meta = map[string]string{"model": "m", "slots": "many"}
	consul.set(bad...)
	eventuallyUsable(t, c, "m", "b0", "b2") // L4
}

func TestAListingWithoutTheModelTakesItsBackendOut(t *testing.T) {
	t.Parallel()
	consul := scriptConsul(t)
	e := startEngine(t, "", "another")
	consul.set(consulEntry{id: "b1", address: e.host(), meta: map[string]string{"model": "m"}})
	c := start(t, cluster.Config{ConsulAddr: consul.addr, ConsulService: "vllm"}, nil)
	lab.Eventually(t, patience, func() bool { return e.checks.Load() >= 2 }, "two checks")
	if got := usable(c, "m"); got != nil {
		t.Fatalf("usable although the engine has another model: %v", got)
	}
	if pool, known := c.ModelPool("m"); pool != "m" || !known {
		t.Errorf("a model that is registered is in %q, %v", pool, known)
	}
	e.list("another", "m")
	eventuallyUsable(t, c, "m", "b1")
}

func agent(t *testing.T, addr string) *api.Client {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	client, err := api.NewClient(&api.Config{Address: addr, HttpClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func portOf(t *testing.T, e *engine) int {
	t.Helper()
	_, port, err := net.SplitHostPort(e.host())
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(port)
	return n
}

func TestCON3(t *testing.T) {
	t.Parallel()
	consul := lab.Consul(t)
	client := agent(t, consul.Addr)
	six, node, moving, moved := startEngine(t, "[::1]:0", "m-small"), startEngine(t, "", "m-small"),
		startEngine(t, "", "m-small"), startEngine(t, "", "m-small")
	register := func(id, address string, e *engine) {
		t.Helper()
		err := client.Agent().ServiceRegister(&api.AgentServiceRegistration{ID: id, Name: "vllm", Address: address,
			Port: portOf(t, e), Meta: map[string]string{"model": "m-small"}})
		if err != nil {
			t.Fatal(err)
		}
	}
	register("b1", "::1", six)
	register("b2", "", node) // the node's address counts
	register("b3", "127.0.0.1", moving)
	c := start(t, cluster.Config{ConsulAddr: consul.Addr, ConsulService: "vllm"}, nil)
	eventuallyUsable(t, c, "m-small", "b1", "b2", "b3")
	p, _ := c.Pool("m-small")
	first := map[string]int{}
	for key := range uint64(300) {
		first[p.Candidates(key*7919, 0)[0].ID]++
	}
	if len(first) != 3 {
		t.Errorf("of 300 prefixes %v", first)
	}
	if want := fmt.Sprintf("[::1]:%d", portOf(t, six)); p.Backends[0].Host != want || p.Backends[0].Addr != want {
		t.Errorf("b1 is %s at %s, want %s", p.Backends[0].Host, p.Backends[0].Addr, want)
	}
	if want := fmt.Sprintf("127.0.0.1:%d", portOf(t, node)); p.Backends[1].Addr != want {
		t.Errorf("b2 is at %s, want %s", p.Backends[1].Addr, want)
	}

	register("b3", "127.0.0.1", moved)
	lab.Eventually(t, patience, func() bool {
		now, _ := c.Pool("m-small")
		b := now.Backends[2]
		if b.Usable() && b.Addr == moving.host() {
			return false
		}
		return b.Usable() && b.Addr == moved.host()
	}, "b3 is used at its new address")
	now, _ := c.Pool("m-small")
	for key := range uint64(300) {
		if now.Home(key).ID != p.Home(key).ID {
			t.Fatalf("key %d has another home although the members are the same", key) // L2
		}
	}
}

func TestConsulAwayChangesNothing(t *testing.T) { // L5
	t.Parallel()
	consul := lab.Consul(t)
	client := agent(t, consul.Addr)
	one, two := startEngine(t, "", "m"), startEngine(t, "", "m")
	register := func(id string, e *engine) {
		t.Helper()
		if err := client.Agent().ServiceRegister(&api.AgentServiceRegistration{ID: id, Name: "vllm", Address: "127.0.0.1", Port: portOf(t, e)}); err != nil {
			t.Fatal(err)
		}
	}
	register("b1", one)
	register("b2", two)
	cfg := cluster.Config{ConsulAddr: consul.Addr, ConsulService: "vllm"}
	c := start(t, cfg, nil)
	eventuallyUsable(t, c, "m", "b1", "b2")
	if err := c.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	consul.Kill()
	one.Close()
	eventuallyUsable(t, c, "m", "b2") // by our own checks
	fresh := start(t, cfg, nil)
	if err := fresh.Ready(); err == nil {
		t.Error("ready without ever having heard of Consul")
	}
	consul.Restart() // it has forgotten everything: an empty list
	register("b2", two)
	lab.Succeeds(t, patience, fresh.Ready, "the fresh one is ready after Consul's return")
	eventuallyUsable(t, fresh, "m", "b2")
	if got := usable(c, "m"); !slices.Equal(got, []string{"b2"}) {
		t.Errorf("usable %v", got)
	}
	if err := client.Agent().ServiceDeregister("b2"); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, patience, func() bool { return len(c.Pools()) == 0 }, "an empty list that stays is believed")
	if pool, known := c.ModelPool("m"); pool != "m" || !known {
		t.Errorf("the model is forgotten at once: %q, %v", pool, known)
	}
}

func TestRegister(t *testing.T) {
	t.Parallel()
	consul := lab.Consul(t)
	client := agent(t, consul.Addr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- cluster.Register(ctx, consul.Addr, cluster.Registration{ID: "sim-1", Service: "vllm", Address: "127.0.0.1", Port: 8000,
			Tags: []string{"sim"}, Meta: map[string]string{"model": "m", "slots": "4"}, TTL: 3 * time.Second}, zerolog.Nop())
	}()
	registered := func() bool {
		entries, _, err := client.Health().Service("vllm", "", true, nil)
		return err == nil && len(entries) == 1 && entries[0].Service.ID == "sim-1" && entries[0].Service.Port == 8000 &&
			entries[0].Service.Meta["slots"] == "4"
	}
	lab.Eventually(t, patience, registered, "registered and passing")
	consul.Restart() // and so it has lost the registration
	lab.Eventually(t, patience, registered, "registered again")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if entries, _, err := client.Health().Service("vllm", "", false, nil); err != nil || len(entries) != 0 {
		t.Errorf("after the end: %d entries, %v", len(entries), err)
	}
	if err := cluster.Register(t.Context(), consul.Addr, cluster.Registration{}, zerolog.Nop()); err == nil {
		t.Error("an empty registration is taken")
	}
}
