package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

func TestMain(m *testing.M) {
	// rueidis closes the connections of nodes that left the cluster five seconds later, and asks for a cluster's slots at most
	// once a second, both from goroutines that sleep.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// newStore is a running store on the Redis at url; it is closed with the test.
func newStore(t *testing.T, url string, timeout time.Duration) *pipeline.Store {
	t.Helper()
	s, err := pipeline.NewStore(pipeline.StoreConfig{Name: t.Name(), URL: url, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	wait, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if err := s.WaitConnected(wait); err != nil {
		t.Fatal(err)
	}
	return s
}

// fresh is a key no other run of the test uses.
func fresh(t *testing.T) string { return fmt.Sprintf("%s:%d", t.Name(), runs.Add(1)) }

var runs atomic.Int64

func text(m rueidis.RedisMessage) (string, error) {
	if m.IsNil() {
		return "<nil>", nil
	}
	return m.ToString()
}

func number(m rueidis.RedisMessage) (int64, error) { return m.AsInt64() }

var echo = pipeline.NewScript("echo", "#!lua flags=allow-oom\nreturn KEYS[1]..'='..ARGV[1]")

// TestOneFlush (I1): owners that do not know each other, on two stores, wait once: a relay that delays each direction
// shows one round trip, not four.
func TestOneFlush(t *testing.T) {
	t.Parallel()
	const delay = 150 * time.Millisecond
	first, second := lab.Redis(t), lab.Redis(t)
	r1, r2 := lab.Relay(t, first.Addr), lab.Relay(t, second.Addr)
	s1 := newStore(t, "redis://"+r1.Addr, 5*time.Second)
	s2 := newStore(t, "redis://"+r2.Addr, 5*time.Second)
	warm := pipeline.New().Batch()
	_, _ = pipeline.Declare(warm, pipeline.Command{Store: s1, Script: echo, Key: "a", Args: []string{"0"}}, text).Wait(t.Context())
	r1.SetDelay(delay)
	r2.SetDelay(delay)

	b := pipeline.New().Batch()
	h1 := pipeline.Declare(b, pipeline.Command{Store: s1, Script: echo, Key: "a", Args: []string{"1"}}, text)
	h2 := pipeline.Declare(b, pipeline.Command{Store: s2, Name: "GET", Key: "b"}, text)
	h3 := pipeline.Declare(b, pipeline.Command{Store: s1, Name: "SET", Key: "c", Args: []string{"3"}}, text)
	h4 := pipeline.Declare(b, pipeline.Command{Store: s2, Name: "SET", Key: "d", Args: []string{"4"}}, text)
	started := time.Now()
	for h, want := range map[*pipeline.Handle[string]]string{h1: "a=1", h2: "<nil>", h3: "OK", h4: "OK"} {
		if got, err := h.Wait(t.Context()); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	trips := float64(time.Since(started)) / float64(2*delay)
	if trips < 0.99 || trips > 1.9 {
		t.Errorf("four commands took %.2f round trips from outside, want 1", trips)
	}
	if b.RoundTrips() != 1 {
		t.Errorf("RoundTrips = %d, want 1", b.RoundTrips())
	}
	h5 := pipeline.Declare(b, pipeline.Command{Store: s1, Name: "GET", Key: "c"}, text)
	if got, _ := h5.Wait(t.Context()); got != "3" || b.RoundTrips() != 2 {
		t.Errorf("a later declaration: %q in %d round trips, want 3 in 2", got, b.RoundTrips())
	}
}

// TestFailureIsAlone (I2).
func TestFailureIsAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t, lab.SharedRedis(t).URL(), 0)
	b := pipeline.New().Batch()
	key := fresh(t)
	good := pipeline.Declare(b, pipeline.Command{Store: s, Name: "SET", Key: key, Args: []string{"text"}}, text)
	bad := pipeline.Declare(b, pipeline.Command{Store: s, Name: "HGET", Key: key, Args: []string{"f"}}, text)
	decode := pipeline.Declare(b, pipeline.Command{Store: s, Name: "GET", Key: key}, func(rueidis.RedisMessage) (int, error) {
		return 0, errors.New("unreadable")
	})
	last := pipeline.Declare(b, pipeline.Command{Store: s, Name: "GET", Key: key}, text)
	if _, err := bad.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") || errors.Is(err, pipeline.ErrUnavailable) {
		t.Errorf("HGET on a string: %v, want WRONGTYPE", err)
	}
	if _, err := decode.Wait(t.Context()); err == nil || err.Error() != "unreadable" {
		t.Errorf("decode's error: %v", err)
	}
	if got, err := good.Wait(t.Context()); got != "OK" || err != nil {
		t.Errorf("before the failure: %q, %v", got, err)
	}
	if got, err := last.Wait(t.Context()); got != "text" || err != nil {
		t.Errorf("after the failure: %q, %v", got, err)
	}
}

// TestLostScript (I3, I4): after SCRIPT FLUSH the script alone is sent again; a counter beside it counts once.
func TestLostScript(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t)
	s := newStore(t, server.URL(), 0)
	server.CLI("SCRIPT", "FLUSH")
	for i, trips := range []int{2, 1} {
		b := pipeline.New().Batch()
		count := pipeline.Declare(b, pipeline.Command{Store: s, Name: "INCR", Key: "n"}, number)
		h := pipeline.Declare(b, pipeline.Command{Store: s, Script: echo, Key: "k", Args: []string{"v"}}, text)
		if n, err := count.Wait(t.Context()); n != int64(i+1) || err != nil {
			t.Errorf("run %d: the command beside it ran %d times (%v)", i, n, err)
		}
		if got, err := h.Wait(t.Context()); got != "k=v" || err != nil {
			t.Errorf("run %d: %q, %v", i, got, err)
		}
		if b.RoundTrips() != trips {
			t.Errorf("run %d: %d round trips, want %d", i, b.RoundTrips(), trips)
		}
	}
}

// TestLostScriptWithoutPermission: a user who may not call SCRIPT gets his scripts back all the same.
func TestLostScriptWithoutPermission(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t)
	server.CLI("ACL", "SETUSER", "gate", "on", ">secret", "~*", "&*", "+@all", "-script")
	s := newStore(t, strings.Replace(server.URL(), "redis://", "redis://gate:secret@", 1), 0)
	if err := s.Load(t.Context(), echo); err == nil {
		t.Fatal("SCRIPT LOAD was allowed: the test proves nothing")
	}
	b := pipeline.New().Batch()
	h := pipeline.Declare(b, pipeline.Command{Store: s, Script: echo, Key: "k", Args: []string{"v"}}, text)
	if got, err := h.Wait(t.Context()); got != "k=v" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
}

// TestDeadline: a Redis that accepts and never answers costs the store's timeout, not more, and says so.
func TestDeadline(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t)
	relay := lab.Relay(t, server.Addr)
	s := newStore(t, "redis://"+relay.Addr, 200*time.Millisecond)
	relay.Freeze()
	b := pipeline.New().Batch()
	h := pipeline.Declare(b, pipeline.Command{Store: s, Name: "GET", Key: "k"}, text)
	if _, err := h.Wait(t.Context()); !errors.Is(err, pipeline.ErrUnavailable) {
		t.Fatalf("frozen: %v, want ErrUnavailable", err)
	}
	relay.Thaw()
	lab.Eventually(t, 10*time.Second, func() bool { return s.Ready(t.Context()) == nil }, "the store answers again")
}

// What stands still for less than the timeout is waited for, however long that is: no connection is given up before.
func TestALongTimeoutIsKept(t *testing.T) {
	t.Parallel()
	r := lab.Redis(t)
	s := newStore(t, r.URL(), 20*time.Second)
	r.Stop()
	defer time.AfterFunc(3*time.Second, r.Cont).Stop()
	if _, err := s.Do(t.Context(), "PING", ""); err != nil {
		t.Fatal(err)
	}
}

// TestNeverReached: a store whose Redis is down refuses at once and connects when it comes.
func TestNeverReached(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t)
	server.Kill()
	s, err := pipeline.NewStore(pipeline.StoreConfig{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	b := pipeline.New().Batch()
	h := pipeline.Declare(b, pipeline.Command{Store: s, Name: "GET", Key: "k"}, text)
	if _, err := h.Wait(ctx); !errors.Is(err, pipeline.ErrUnavailable) {
		t.Fatalf("%v, want ErrUnavailable", err)
	}
	server.Restart()
	lab.Eventually(t, 10*time.Second, func() bool { return s.Ready(ctx) == nil }, "the store connects")
}

// TestPostWaitsForItsOwners (I5): nothing leaves before the last signature, then everything leaves together.
func TestPostWaitsForItsOwners(t *testing.T) {
	t.Parallel()
	s := newStore(t, lab.SharedRedis(t).URL(), 0)
	key := fresh(t)
	post := pipeline.New().Post()
	ledger, cache := post.Owner(), post.Owner()
	var replies atomic.Int32
	declare := func() {
		post.With(func(b *pipeline.Batch) {
			pipeline.Declare(b, pipeline.Command{Store: s, Name: "INCR", Key: key}, number).Then(func(int64, error) { replies.Add(1) })
		})
	}
	declare()
	ledger()
	ledger() // a second signature of the same owner does nothing
	if m, err := s.Do(t.Context(), "EXISTS", key); err != nil {
		t.Fatal(err)
	} else if n, _ := m.AsInt64(); n != 0 || replies.Load() != 0 {
		t.Fatal("sent before the last owner signed off")
	}
	declare()
	cache()
	lab.Eventually(t, 5*time.Second, func() bool { return replies.Load() == 2 }, "both commands are answered")
}

// TestPostDoesNotWaitForever (I5): an owner that never signs off delays the others by a second, not longer.
func TestPostDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	s := newStore(t, lab.SharedRedis(t).URL(), 0)
	post := pipeline.New().Post()
	signOff := post.Owner()
	done := make(chan struct{})
	post.With(func(b *pipeline.Batch) {
		pipeline.Declare(b, pipeline.Command{Store: s, Name: "SET", Key: t.Name(), Args: []string{"1"}}, text).Then(func(string, error) { close(done) })
	})
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("not sent without the last signature")
	}
	signOff()
}

// TestPostSend: what must not wait for another owner leaves with Send.
func TestPostSend(t *testing.T) {
	t.Parallel()
	s := newStore(t, lab.SharedRedis(t).URL(), 0)
	post := pipeline.New().Post()
	signOff := post.Owner()
	defer signOff()
	sent := make(chan struct{})
	started := time.Now()
	post.With(func(b *pipeline.Batch) {
		pipeline.Declare(b, pipeline.Command{Store: s, Name: "SET", Key: t.Name(), Args: []string{"1"}}, text).Then(func(string, error) { close(sent) })
	})
	post.Send()
	<-sent
	if time.Since(started) > 900*time.Millisecond {
		t.Error("left by the timer, not by Send")
	}
}

// TestDrain (I7): everything handed over, by whatever number of requests, is in Redis when Drain returns; open batches
// are not waited for.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := newStore(t, lab.SharedRedis(t).URL(), 5*time.Second)
	p := pipeline.New()
	key := fresh(t)
	const requests = 500
	var open []func()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			post := p.Post()
			signOff := post.Owner()
			post.With(func(b *pipeline.Batch) {
				pipeline.Declare(b, pipeline.Command{Store: s, Name: "INCR", Key: key}, number)
			})
			if i%5 == 0 { // an owner that never comes back
				mu.Lock()
				open = append(open, signOff)
				mu.Unlock()
				return
			}
			signOff()
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Drain(ctx, s); err != nil {
		t.Fatal(err)
	}
	m, err := s.Do(ctx, "GET", key)
	if n, _ := m.ToString(); err != nil || n != fmt.Sprint(requests) {
		t.Errorf("%s of %d commands applied (%v)", n, requests, err)
	}
	for _, signOff := range open {
		signOff()
	}
}

// TestClusterOneFlush (I1): keys of two slots on two nodes are still one wait.
func TestClusterOneFlush(t *testing.T) {
	t.Parallel()
	const delay = 150 * time.Millisecond
	cluster := lab.ClusterRelayed(t, 3, 0)
	s := newStore(t, cluster.URL(), 5*time.Second)
	if err := s.Load(t.Context(), echo); err != nil {
		t.Fatal(err)
	}
	keys := []string{"{a}k", "{b}k", "{c}k", "{d}k"}
	nodes := map[*lab.RedisServer]bool{}
	for _, k := range keys {
		nodes[cluster.Owner(k)] = true
	}
	if len(nodes) < 2 {
		t.Fatal("the keys lie on one node: the test proves nothing")
	}
	cluster.SetDelay(delay)
	b := pipeline.New().Batch()
	var handles []*pipeline.Handle[string]
	for _, k := range keys {
		handles = append(handles, pipeline.Declare(b, pipeline.Command{Store: s, Script: echo, Key: k, Args: []string{"1"}}, text))
	}
	started := time.Now()
	for i, h := range handles {
		if got, err := h.Wait(t.Context()); got != keys[i]+"=1" || err != nil {
			t.Errorf("%s: %q, %v", keys[i], got, err)
		}
	}
	trips := float64(time.Since(started)) / float64(2*delay)
	if trips < 0.99 || trips > 1.9 || b.RoundTrips() != 1 {
		t.Errorf("%.2f round trips from outside, %d counted, want 1", trips, b.RoundTrips())
	}
}

// TestSlotOnTheMove (I6): while a slot moves, with its keys on either side, a script waits and then fails without having
// seen or written anything; when the move is over it runs where the keys are.
func TestSlotOnTheMove(t *testing.T) {
	t.Parallel()
	cluster := lab.Cluster(t, 3)
	s := newStore(t, cluster.URL(), 300*time.Millisecond)
	count := pipeline.NewScript("count", "redis.call('INCR', KEYS[1]..':n') return tostring(redis.call('EXISTS', KEYS[1]))")
	const root = "{t:acme}"
	run := func() (string, error) {
		b := pipeline.New().Batch()
		return pipeline.Declare(b, pipeline.Command{Store: s, Script: count, Key: root}, text).Wait(t.Context())
	}
	cluster.CLI(root, "SET", root, "policy")
	if got, err := run(); got != "1" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	from := cluster.Owner(root)
	to := cluster.Nodes[0]
	if to == from {
		to = cluster.Nodes[1]
	}
	slot, fromID, toID := from.CLI("CLUSTER", "KEYSLOT", root), from.CLI("CLUSTER", "MYID"), to.CLI("CLUSTER", "MYID")
	to.CLI("CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	from.CLI("CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	for _, moved := range []string{"", root, root + ":n"} { // nothing, then the root, then everything has moved
		if moved != "" {
			from.CLI("MIGRATE", "127.0.0.1", fmt.Sprint(to.Port), moved, "0", "5000")
		}
		if got, err := run(); err == nil {
			t.Errorf("with %q moved the script ran: %q", moved, got)
		}
	}
	for _, node := range cluster.Nodes {
		node.CLI("CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
	lab.Eventually(t, 10*time.Second, func() bool { got, err := run(); return got == "1" && err == nil }, "the script runs after the move")
	if got := to.CLI("GET", root+":n"); got != "2" {
		t.Errorf("counted %s times, want 2: once before the move, once after it", got)
	}
}

// TestSubscribe: messages arrive, also after the connection was cut.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t)
	relay := lab.Relay(t, server.Addr)
	s := newStore(t, "redis://"+relay.Addr, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var got atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Subscribe(ctx, "news", func(m string) {
			if m == "hello" {
				got.Add(1)
			}
		})
	}()
	defer func() { cancel(); <-done }()
	heard := func() bool { server.CLI("PUBLISH", "news", "hello"); return got.Load() > 0 }
	lab.Eventually(t, 10*time.Second, heard, "a message arrives")
	relay.Cut()
	got.Store(0)
	lab.Eventually(t, 10*time.Second, heard, "a message arrives after the cut")
}

// TestURL: the forms of HG_REDIS_URL, and faults that name no secret.
func TestURL(t *testing.T) {
	for _, url := range []string{"redis://a:1,b:2/0", "redis://a", "redis://user:pw@a:1,b:2", "rediss://a:1/2", "redis://s1:26379,s2:26379/0?sentinel=main", "redis://[::1]:6379/0"} {
		if _, err := pipeline.NewStore(pipeline.StoreConfig{URL: url}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"", "a:1", "http://u:geheim@a", "redis://u:geheim@a,,b", "redis://u:geheim@a:1/x", "redis://u:geheim@a:1/0/1"} {
		_, err := pipeline.NewStore(pipeline.StoreConfig{URL: url})
		if err == nil {
			t.Errorf("%q was taken", url)
		} else if strings.Contains(err.Error(), "geheim") {
			t.Errorf("%q: the error shows the password: %v", url, err)
		}
	}
}

// doubles replies to each joined call with its argument doubled, to one alone with its argument; odd ones it leaves.
var doubles = pipeline.NewScript("doubles", `#!lua
redis.call('INCR', KEYS[1])
if ARGV[1] ~= '*' then return ARGV[1] end
local reply = {}
for i = 3, #ARGV, 2 do
  if ARGV[i] == 'bad' then return redis.error_reply('ERR bad') end
  reply[#reply + 1] = tonumber(ARGV[i]) % 2 == 0 and tostring(2 * ARGV[i])
end
return reply`).Joinable()

// TestJoined (I8): calls on one key are one command, each gets its own reply, and what the script leaves, or fails over, is
// sent alone.
func TestJoined(t *testing.T) {
	t.Parallel()
	s := newStore(t, lab.Redis(t).URL(), 5*time.Second)
	if err := s.Load(t.Context(), doubles); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
		runs string
	}{
		"all":  {[]string{"2", "4", "6"}, "4 8 12", "1"},
		"some": {[]string{"2", "3", "4"}, "4 3 8", "2"},
		"none": {[]string{"2", "bad", "4"}, "2 bad 4", "4"},
		"one":  {[]string{"2"}, "2", "1"},
	} {
		b := pipeline.New().Batch()
		var handles []*pipeline.Handle[string]
		for _, arg := range c.args {
			handles = append(handles, pipeline.Declare(b, pipeline.Command{Store: s, Script: doubles, Key: name, Args: []string{arg}}, text))
		}
		other := pipeline.Declare(b, pipeline.Command{Store: s, Script: doubles, Key: "other-" + name, Args: []string{"5"}}, text)
		var got []string
		for _, h := range append(handles, other) {
			v, err := h.Wait(t.Context())
			if err != nil {
				t.Fatal(name, err)
			}
			got = append(got, v)
		}
		runs, _ := pipeline.Declare(b, pipeline.Command{Store: s, Name: "GET", Key: name}, text).Wait(t.Context())
		if strings.Join(got, " ") != c.want+" 5" || runs != c.runs {
			t.Errorf("%s: replies %v in %s runs, want %q in %s", name, got, runs, c.want, c.runs)
		}
	}
}
