package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/rs/zerolog"
)

// board is a Board in memory; what is held is the number of the flush that looked.
type board struct {
	living []string
	busy   atomic.Bool

	mu        sync.Mutex
	looks     int
	published [][]Published[int]
	fails     error // of Publish
}

func (b *board) Living() []string { return b.living }
func (b *board) Busy(string) bool { return b.busy.Load() }

func (b *board) Before(_ context.Context, looks []Look) ([]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks++
	held := make([]int, len(looks))
	for i := range held {
		held[i] = b.looks
	}
	return held, nil
}

func (b *board) Publish(_ context.Context, all []Published[int]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.published = append(b.published, all)
	return b.fails
}

// of is all readings of a backend.
func (b *board) of(backend string) (all []Reading) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, round := range b.published {
		for _, p := range round {
			for _, r := range p.Readings {
				if r.Backend == backend {
					all = append(all, r)
				}
			}
		}
	}
	return all
}

// pageEngine is an engine with nothing but /metrics.
type pageEngine struct {
	*Backend
	asked, at, most atomic.Int32 // requests so far, now, at most at once
	page            atomic.Pointer[string]
	hold            chan struct{} // requests wait until it is closed; nil: they do not
}

func startPage(t *testing.T, pool, id, page string, hold chan struct{}) *pageEngine {
	t.Helper()
	e := &pageEngine{hold: hold}
	e.page.Store(&page)
	server := httptest.NewServer(http.HandlerFunc(e.serve))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	e.Backend = &Backend{ID: id, Pool: pool, Scheme: "http", Host: host, Addr: host, BasePath: "/base", Models: []string{"m"}, state: &state{}}
	e.state.up.Store(true)
	return e
}

func (e *pageEngine) serve(w http.ResponseWriter, r *http.Request) {
	now := e.at.Add(1)
	defer e.at.Add(-1)
	e.most.Store(max(e.most.Load(), now))
	e.asked.Add(1)
	if e.hold != nil {
		select {
		case <-e.hold:
		case <-r.Context().Done():
			return
		}
	}
	if r.URL.Path != "/base/metrics" || *e.page.Load() == "" {
		http.NotFound(w, r)
		return
	}
	fmt.Fprint(w, *e.page.Load())
}

func pagePool(name string, engines ...*pageEngine) *Pool {
	var all []*Backend
	for _, e := range engines {
		all = append(all, e.Backend)
	}
	return newPool(name, all, nil)
}

func runReadings(t *testing.T, b *board, log zerolog.Logger, pools ...*Pool) *Readings[int] {
	t.Helper()
	r := NewReadings("self", func() []*Pool { return pools }, b, nil, log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func TestReadingsReachTheBoard(t *testing.T) {
	t.Parallel()
	const page = "vllm:num_requests_running 4\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\nprocess_start_time_seconds 17\n" +
		`vllm:cache_config_info{kv_cache_size_tokens="900"} 1` + "\nvllm:prompt_tokens_total 70\nvllm:prefix_cache_queries_total 60\nvllm:prefix_cache_hits_total 30\n"
	one, two, other := startPage(t, "p", "b1", page, nil), startPage(t, "p", "b2", page, nil), startPage(t, "q", "b3", page, nil)
	unwell := startPage(t, "q", "b4", page, nil)
	unwell.state.up.Store(false)
	b := &board{living: []string{"self"}}
	runReadings(t, b, zerolog.Nop(), pagePool("p", one, two), pagePool("q", other, unwell))
	for _, id := range []string{"b1", "b2", "b3"} {
		lab.Eventually(t, 20*time.Second, func() bool { return len(b.of(id)) >= 3 }, "three readings of %s", id)
		want := Reading{Backend: id, Running: 4, Waiting: 2, KVUse: 0.5, KVTokens: 900, PromptTokens: 70, PrefixQueries: 60, PrefixHits: 30, Started: "17.000"}
		if got := b.of(id)[2]; got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.published) > b.looks { // R2
		t.Errorf("%d publications, %d looks", len(b.published), b.looks)
	}
	for i, round := range b.published {
		for _, p := range round {
			if p.Held > b.looks || p.Held < i {
				t.Errorf("publication %d goes with look %d", i, p.Held)
			}
		}
	}
	if n := unwell.asked.Load(); n != 0 {
		t.Errorf("an engine out of use was asked %d times", n)
	}
}

// A hanging engine is asked once at a time and takes no other's readings away; when it answers at last, its reading goes
// with what was held when it was asked. // R3 R4
func TestReadingsOfASlowEngine(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	const page = "vllm:num_requests_running 1\n"
	quick, slow := startPage(t, "p", "quick", page, nil), startPage(t, "p", "slow", page, hold)
	b := &board{living: []string{"self"}}
	runReadings(t, b, zerolog.Nop(), pagePool("p", quick, slow))
	lab.Eventually(t, 20*time.Second, func() bool { return len(b.of("quick")) >= 4 }, "readings beside a hanging engine")
	if n := slow.asked.Load(); n != 1 || len(b.of("slow")) != 0 {
		t.Errorf("the hanging engine was asked %d times and read %d times", n, len(b.of("slow")))
	}
	if !slow.Healthy() {
		t.Error("a slow /metrics ejected its engine")
	}
	close(hold)
	lab.Eventually(t, 20*time.Second, func() bool { return len(b.of("slow")) >= 2 }, "readings of the slow engine")
	if slow.most.Load() != 1 {
		t.Errorf("%d requests at once", slow.most.Load())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, round := range b.published {
		for _, p := range round {
			if p.Readings[0].Backend == "slow" {
				if p.Held != 1 {
					t.Errorf("the late reading goes with look %d", p.Held)
				}
				return
			}
		}
	}
}

// Of many hanging engines 32 are asked, and the others have their turn when those have had their time. // R3
func TestReadingsAreBounded(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	var engines []*pageEngine
	for i := range 3 * readWorkers {
		engines = append(engines, startPage(t, "p", fmt.Sprint("b", i), "vllm:num_requests_running 1\n", hold))
	}
	b := &board{living: []string{"self"}}
	runReadings(t, b, zerolog.Nop(), pagePool("p", engines...))
	asked := func() (n int) {
		for _, e := range engines {
			n += int(e.at.Load())
		}
		return n
	}
	lab.Eventually(t, 20*time.Second, func() bool { return asked() == readWorkers }, "all workers ask")
	looks := func() int { b.mu.Lock(); defer b.mu.Unlock(); return b.looks }
	before := looks()
	lab.Eventually(t, 20*time.Second, func() bool { return looks() >= before+4 }, "further rounds")
	if n := asked(); n > readWorkers {
		t.Errorf("%d at once", n)
	}
	close(hold)
	lab.Eventually(t, 20*time.Second, func() bool {
		return !slices.ContainsFunc(engines, func(e *pageEngine) bool { return len(b.of(e.ID)) == 0 })
	}, "a reading of each")
}

func TestReadersAreTwoOfTheLiving(t *testing.T) { // R1
	t.Parallel()
	living := []string{"r1", "r2", "r3", "r4"}
	load := map[string]int{}
	for i := range 1000 {
		b := &Backend{ID: fmt.Sprint("b", i), Pool: "p"}
		chosen := readersOf(b, living)
		if len(chosen) != 2 || chosen[0] == chosen[1] {
			t.Fatalf("%v", chosen)
		}
		load[chosen[0]]++
		load[chosen[1]]++
		if again := readersOf(b, []string{"r3", "r1", "r4", "r2"}); !slices.Equal(again, chosen) {
			t.Fatalf("%v and %v", chosen, again)
		}
		// Who goes is replaced, and nobody else.
		left := readersOf(b, []string{"r1", "r3", "r4"})
		for _, replica := range chosen {
			if replica != "r2" && !slices.Contains(left, replica) {
				t.Fatalf("%v, without r2 %v", chosen, left)
			}
		}
	}
	for _, replica := range living {
		if n := load[replica]; n < 400 || n > 600 {
			t.Errorf("%s reads %d of 1000", replica, n)
		}
	}
	if alone := readersOf(&Backend{ID: "b"}, []string{"r1"}); !slices.Equal(alone, []string{"r1"}) {
		t.Errorf("%v", alone)
	}
	if nobody := readersOf(&Backend{ID: "b"}, nil); len(nobody) != 0 {
		t.Errorf("%v", nobody)
	}
}

func TestReadingsFollowTheLiving(t *testing.T) { // R1
	t.Parallel()
	var engines []*pageEngine
	for i := range 30 {
		e := &pageEngine{Backend: &Backend{ID: fmt.Sprint("b", i), Pool: "p", state: &state{}, Models: []string{"m"}}}
		e.state.up.Store(true)
		engines = append(engines, e)
	}
	p := pagePool("p", engines...)
	b := &board{}
	r := NewReadings("self", func() []*Pool { return []*Pool{p} }, b, nil, zerolog.Nop())
	mine := func() (n int) {
		for _, look := range r.due(time.Now()) {
			n += len(look)
		}
		return n
	}
	for _, c := range []struct {
		living []string
		least  int
		most   int
	}{{nil, 0, 0}, {[]string{"self"}, 30, 30}, {[]string{"a", "self"}, 30, 30}, {[]string{"a", "b", "c", "self"}, 5, 25}, {[]string{"a", "b"}, 0, 0}, {[]string{"self"}, 30, 30}} {
		b.living = c.living
		if n := mine(); n < c.least || n > c.most {
			t.Errorf("of %v this one reads %d of 30", c.living, n)
		}
	}
	p = pagePool("p", engines[:7]...)
	if n := mine(); n != 7 || len(r.meters) != 7 {
		t.Errorf("%d are read, %d remembered, want 7", n, len(r.meters))
	}
}

func TestReadingsPace(t *testing.T) {
	t.Parallel()
	b := &board{}
	r := NewReadings("self", nil, b, nil, zerolog.Nop())
	at := time.Now()
	for _, c := range []struct {
		after time.Duration
		busy  bool
		want  time.Duration
	}{{0, false, idleEvery}, {0, true, readEvery}, {idleAfter, false, readEvery}, {time.Second, false, idleEvery}, {time.Second, true, readEvery},
		{idleAfter, false, readEvery}, {time.Second, false, idleEvery}} {
		at = at.Add(c.after)
		b.busy.Store(c.busy)
		if got := r.pace("p", at); got != c.want {
			t.Errorf("%v later, busy %v: every %v, want %v", c.after, c.busy, got, c.want)
		}
	}
}

func TestMeterPauses(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := &meter{asked: now}
	for failures, want := range map[int]time.Duration{0: readEvery, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 40: longestPause} {
		m.failures = failures
		if m.due(now.Add(want-readEvery), readEvery) || !m.due(now.Add(want), readEvery) {
			t.Errorf("behind %d failures the next is not after %v", failures, want)
		}
	}
	m.asking = true
	if m.due(now.Add(time.Hour), readEvery) {
		t.Error("asked again before the answer")
	}
}

func TestMeterNoticesRestartsAndRequests(t *testing.T) {
	t.Parallel()
	m, b := &meter{host: "h:1"}, &Backend{ID: "b"}
	take := func(said exposition) (string, bool) {
		busy := m.take(b, said, nil, zerolog.Nop())
		text := m.started()
		m.published()
		return text, busy
	}
	for i, c := range []struct {
		said  exposition
		fell  bool
		given string
		busy  bool
	}{
		{exposition{promptTokens: 100}, false, "", false}, // of old
		{exposition{promptTokens: 100}, false, "", false},
		{exposition{promptTokens: 100, waiting: 1}, false, "", true},
		{exposition{promptTokens: 180}, false, "", true},
		{exposition{promptTokens: 20}, true, "", true}, // a process of which nothing but its counters is known
		{exposition{promptTokens: 21}, true, "", true},
		{exposition{promptTokens: 21}, false, "", false},
		{exposition{promptTokens: 30, started: "17.000"}, false, "17.000", true},
		{exposition{promptTokens: 10, started: "18.000"}, false, "18.000", true},
	} {
		got, busy := take(c.said)
		if strings.HasPrefix(got, "fell") != c.fell || !c.fell && got != c.given || busy != c.busy {
			t.Errorf("reading %d: %q, busy %v", i, got, busy)
		}
	}
	m.at("h:2")
	if first, _ := take(exposition{}); first != "fell" {
		t.Errorf("at another address: %q", first)
	}
	if second, _ := take(exposition{}); !strings.HasPrefix(second, "fell-") {
		t.Errorf("at another address, then %q", second)
	}
}

// What the fleet was not told is told again.
func TestReadingsRepeatARestart(t *testing.T) {
	t.Parallel()
	e := startPage(t, "p", "b1", "vllm:num_requests_running 0\nvllm:prompt_tokens_total 9\n", nil)
	b := &board{living: []string{"self"}}
	runReadings(t, b, zerolog.Nop(), pagePool("p", e))
	lab.Eventually(t, 20*time.Second, func() bool { return len(b.of("b1")) > 0 }, "a reading")
	b.mu.Lock()
	b.fails = errors.New("away")
	b.mu.Unlock()
	after := "vllm:num_requests_running 0\nvllm:prompt_tokens_total 3\n"
	e.page.Store(&after)
	started := func() (texts []string) {
		for _, r := range b.of("b1") {
			if r.Started != "" {
				texts = append(texts, r.Started)
			}
		}
		return texts
	}
	lab.Eventually(t, 20*time.Second, func() bool { return len(started()) >= 3 }, "three attempts")
	b.mu.Lock()
	b.fails = nil
	b.mu.Unlock()
	lab.Eventually(t, 20*time.Second, func() bool { return strings.HasPrefix(started()[len(started())-1], "fell-") }, "the second text")
	lab.Eventually(t, 20*time.Second, func() bool { all := b.of("b1"); return all[len(all)-1].Started == "" }, "and then none")
	texts := slices.Compact(started())
	if len(texts) != 2 || texts[0] != "fell" {
		t.Errorf("%q", texts)
	}
}

func TestReadingsWithoutMetricsAreOneLine(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	e := startPage(t, "p", "b1", "", nil)
	b := &board{living: []string{"self"}}
	pools := []*Pool{pagePool("p", e)}
	r := NewReadings("self", func() []*Pool { return pools }, b, nil, zerolog.New(&log))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	lab.Eventually(t, 20*time.Second, func() bool { return e.asked.Load() >= 2 }, "asked again")
	page := "vllm:num_requests_running 0\n"
	e.page.Store(&page)
	lab.Eventually(t, 20*time.Second, func() bool { return len(b.of("b1")) > 0 }, "a reading")
	cancel()
	<-done
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "GET /metrics: status 404") {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}
