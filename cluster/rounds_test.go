package cluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/catalogue"
)

// healthBoard is a HealthBoard in memory for three replicas; findings do not age.
type healthBoard struct {
	mu    sync.Mutex
	found map[string]map[string]Finding // by backend and replica
	away  atomic.Bool
}

// seat is one replica's view of it.
type seat struct {
	*healthBoard
	replica string
}

func (s seat) Living() []string { return []string{"r1", "r2", "r3"} }

func (s seat) Share(_ context.Context, all []Told) []Heard {
	s.mu.Lock()
	defer s.mu.Unlock()
	heard := make([]Heard, len(all))
	for i, t := range all {
		if s.away.Load() {
			heard[i].Err = errors.New("away")
			continue
		}
		for _, f := range t.Findings {
			if s.found[f.Backend] == nil {
				s.found[f.Backend] = map[string]Finding{}
			}
			if s.found[f.Backend][s.replica] = f; !f.Unwell {
				delete(s.found[f.Backend], s.replica)
			}
		}
		for backend, by := range s.found {
			var some Finding
			for _, some = range by {
			}
			if len(by) > 0 && len(by) >= some.Readers {
				heard[i].Out = append(heard[i].Out, OutOfUse{backend, some.Place})
			}
		}
	}
	return heard
}

// moody is an engine that counts who asks for its health, and may be unwell for all or for one of them.
type moody struct {
	asked  map[string]*atomic.Int64 // by replica
	unwell atomic.Bool
}

// watcher is a replica's cluster whose requests say whose they are, and may be cut off.
type watcher struct {
	*Cluster
	name string
	cut  atomic.Bool
	next http.RoundTripper
}

func (w *watcher) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.cut.Load() {
		return nil, errors.New("cut off")
	}
	r.Header.Set("X-Replica", w.name)
	return w.next.RoundTrip(r)
}

func startWatchers(t *testing.T, url string, board *healthBoard) map[string]*watcher {
	t.Helper()
	store, err := catalogue.Open("", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*watcher{}
	for _, name := range []string{"r1", "r2", "r3"} {
		w := &watcher{Cluster: New(Config{Static: []Static{{Pool: "p", URL: url, Slots: 1, ID: "b1"}}}, store, zerolog.Nop()), name: name}
		w.next, w.prober.client.Transport = w.prober.client.Transport, w
		all[name] = w
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = w.Run(ctx) })
		running.Go(func() { _ = w.ShareHealth(ctx, name, seat{board, name}) })
		t.Cleanup(func() { cancel(); running.Wait() })
	}
	return all
}

// TestHealthIsSharedByTwoReaders: two replicas look, all know; one that is cut off speaks for itself alone; without the
// board each looks for itself.
func TestHealthIsSharedByTwoReaders(t *testing.T) { // L8, L9
	t.Parallel()
	e := moody{asked: map[string]*atomic.Int64{"r1": {}, "r2": {}, "r3": {}}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`))
			return
		}
		e.asked[r.Header.Get("X-Replica")].Add(1)
		if e.unwell.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	board := &healthBoard{found: map[string]map[string]Finding{}}
	replicas := startWatchers(t, server.URL, board)
	usable := func(names ...string) func() bool {
		return func() bool {
			want := map[string]bool{}
			for _, name := range names {
				want[name] = true
			}
			for name, w := range replicas {
				if p, ok := w.Pool("p"); !ok || p.Usable() != want[name] {
					return false
				}
			}
			return true
		}
	}
	lab.Eventually(t, 30*time.Second, usable("r1", "r2", "r3"), "in use everywhere")
	two := readersOf(&Backend{ID: "b1", Pool: "p"}, []string{"r1", "r2", "r3"})
	third := "r1"
	for two[0] == third || two[1] == third {
		third = string([]byte{'r', third[1] + 1})
	}
	asked := func(name string) int64 { return e.asked[name].Load() }

	// The third looks itself no more.
	lab.Eventually(t, 30*time.Second, func() bool {
		en, ok := replicas[third].engines.Load("b1")
		return ok && en.(*engine).others.Load()
	}, "the third relies on others")
	lab.Eventually(t, 30*time.Second, func() bool {
		before, then := asked(third), asked(two[0])
		lab.Eventually(t, 30*time.Second, func() bool { return asked(two[0]) >= then+3 }, "the readers look on")
		return asked(third) == before
	}, "the third does not look")

	// Both find it unwell: it is out of use for the third too, and back with them.
	e.unwell.Store(true)
	lab.Eventually(t, 30*time.Second, usable(), "out of use everywhere")
	en, _ := replicas[third].engines.Load("b1")
	if !en.(*engine).state.up.Load() {
		t.Log("the third found it out by itself")
	}
	e.unwell.Store(false)
	lab.Eventually(t, 30*time.Second, usable("r1", "r2", "r3"), "in use again")

	// One reader is cut off: it alone does not use it.
	replicas[two[0]].cut.Store(true)
	lab.Eventually(t, 40*time.Second, usable(two[1], third), "out of use for the one that is cut off")
	replicas[two[0]].cut.Store(false)
	lab.Eventually(t, 30*time.Second, usable("r1", "r2", "r3"), "in use again")

	// The board is away while it is out of use by it: each believes itself.
	board.mu.Lock()
	place := server.Listener.Addr().String()
	board.found["b1"] = map[string]Finding{"x": {Backend: "b1", Place: place, Readers: 2, Unwell: true}, "y": {Backend: "b1", Place: place, Readers: 2, Unwell: true}}
	board.mu.Unlock()
	lab.Eventually(t, 30*time.Second, usable(), "out of use by what others said")
	board.away.Store(true)
	lab.Eventually(t, 30*time.Second, usable("r1", "r2", "r3"), "each believes itself")
	then := asked(third)
	lab.Eventually(t, 30*time.Second, func() bool { return asked(third) >= then+3 }, "the third looks itself")
}

// TestWhatWasOutOfUseWaitsForACheckOfOnesOwn: a replica that relied on others knows nothing of its own when they fall
// silent, so what it heard last counts until an engine answered it; an answer that was on its way before is too old.
func TestWhatWasOutOfUseWaitsForACheckOfOnesOwn(t *testing.T) { // L11
	t.Parallel()
	for name, silent := range map[string]func(*healthBoard){
		"the board is away":    func(b *healthBoard) { b.away.Store(true) },
		"the readers are gone": func(b *healthBoard) { clear(b.found) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			board := &healthBoard{found: map[string]map[string]Finding{}}
			c := New(Config{}, catalogue.NewStore(nil), quiet)
			e := newEngine(spec{id: "b1", host: "h:1", addr: "h:1", models: []string{"m"}})
			c.engines.Store("b1", e)
			p := newPool("p", []*Backend{{ID: "b1", Pool: "p", Models: []string{"m"}, state: &e.state}}, nil)
			c.current.Store(&view{pools: map[string]*Pool{"p": p}, sorted: []*Pool{p}})
			r := rounds{cluster: c, board: seat{board, "other"}, share: share{replica: "other"}, told: map[meterKey]bool{}, heard: map[string]time.Time{}}
			now := time.Now()
			round := func() { now = now.Add(aloneAfter + 1); r.round(t.Context(), now) }
			answers := func(placement int, o outcome) { e.file(placement, o, false, nil); e.publish() }
			expect := func(usable bool, when string) {
				t.Helper()
				if p.Usable() != usable {
					t.Fatalf("%s: usable is %v", when, !usable)
				}
			}
			out := func() {
				for _, reader := range []string{"r1", "r2"} {
					finding := Finding{Backend: "b1", Place: "h:1", Readers: 2, Unwell: true}
					board.away.Store(false)
					_ = seat{board, reader}.Share(t.Context(), []Told{{"p", []Finding{finding}}})
				}
				round()
				expect(false, "the readers find it unwell")
			}
			answers(0, good)
			round()
			expect(true, "well, by the readers")
			out()

			onItsWay := e.placement
			silent(board)
			round()
			round()
			expect(false, "nobody says anything any more")
			if e.pace() != checkEvery {
				t.Errorf("asked again only after %v", e.pace())
			}
			answers(onItsWay, good)
			expect(false, "an answer from before")
			answers(e.placement, unasked)
			expect(false, "it could not be asked")
			answers(e.placement, failed)
			expect(false, "its first answer is a bad one")
			answers(e.placement, good)
			expect(true, "found well")

			out()
			silent(board)
			round()
			answers(e.placement, good)
			expect(true, "its first answer is a good one")
		})
	}
}
