package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/rs/zerolog"
)

// answer is what the scripted Consul says to one query.
type answer struct {
	after  time.Duration
	index  uint64
	ids    []string
	status int // 0 = 200
	hidden bool
	err    error
}

// script is a Consul that answers in order and then blocks. It lives in the test
// process, so that its time is synctest's.
type script struct {
	answers []answer
	asked   []url.Values
	at      []time.Time
	ups     []bool     // what it told, changes only
	lists   [][]string // what the watch believed
	listsAt []time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	n := len(s.asked)
	s.asked = append(s.asked, r.URL.Query())
	s.at = append(s.at, time.Now())
	if n >= len(s.answers) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	a := s.answers[n]
	select {
	case <-time.After(a.after):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	entries := []*api.ServiceEntry{}
	for _, id := range a.ids {
		entries = append(entries, entryOf(id, "10.0.0.1", 8000+int(id[len(id)-1]-'0'), map[string]string{"model": "m"}))
	}
	body, _ := json.Marshal(entries)
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(body))), Request: r}
	resp.Header.Set("X-Consul-Index", strconv.FormatUint(a.index, 10))
	resp.Header.Set("X-Consul-Lastcontact", "0") // without it no field behind it is read
	if a.hidden {
		resp.Header.Set("X-Consul-Results-Filtered-By-ACLs", "true")
	}
	if a.status != 0 {
		resp.StatusCode = a.status
	}
	return resp, nil
}

// play runs a watch against the script for that long, in synctest's time.
func (s *script) play(t *testing.T, d time.Duration) {
	t.Helper()
	client, err := api.NewClient(&api.Config{Address: "consul.test:8500", HttpClient: &http.Client{Transport: s}})
	if err != nil {
		t.Fatal(err)
	}
	w := &watch{client: client, idle: func() {}, service: "vllm", log: zerolog.Nop(), found: func(specs []spec) {
		var all []string
		for _, one := range specs {
			all = append(all, one.id)
		}
		s.lists = append(s.lists, all)
		s.listsAt = append(s.listsAt, time.Now())
	}}
	w.up = func(up bool) {
		if len(s.ups) == 0 || s.ups[len(s.ups)-1] != up {
			s.ups = append(s.ups, up)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	w.run(ctx)
}

// fiveASecond fails when any second holds more than five queries.
func (s *script) fiveASecond(t *testing.T) {
	t.Helper()
	for i := range s.at {
		if i+5 < len(s.at) && s.at[i+5].Sub(s.at[i]) < time.Second {
			t.Fatalf("queries %d to %d came within %v", i, i+5, s.at[i+5].Sub(s.at[i]))
		}
	}
}

func (s *script) last() string {
	if len(s.lists) == 0 {
		return "none"
	}
	return strings.Join(s.lists[len(s.lists)-1], " ")
}

func TestCON1(t *testing.T) { // L6
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []answer{
			{index: 500, ids: []string{"B1"}},
			{after: time.Second, index: 20, ids: []string{"B1", "B2"}},
			{index: 21, ids: []string{"B2"}},
		}}
		for range 100 {
			s.answers = append(s.answers, answer{index: 0, ids: []string{"B2"}})
		}
		for range 100 {
			s.answers = append(s.answers, answer{index: 21, ids: []string{"B2"}})
		}
		s.play(t, 2*time.Minute)
		if len(s.asked) <= 203 {
			t.Fatalf("only %d queries", len(s.asked))
		}
		s.fiveASecond(t)
		if first, second := s.asked[0].Get("index"), s.asked[1].Get("index"); first != "" || second != "500" {
			t.Errorf("the first two queries waited for %q and %q", first, second)
		}
		if third := s.asked[2].Get("index"); third != "" {
			t.Errorf("the query after the drop waited for %q", third)
		}
		for i, q := range s.asked {
			if q.Get("index") == "0" {
				t.Errorf("query %d waits for index 0", i)
			}
			if !q.Has("stale") {
				t.Errorf("query %d allows no stale answer", i)
			}
		}
		if s.last() != "B2" || len(s.lists[2]) != 1 {
			t.Errorf("lists %v", s.lists)
		}
		if late := s.listsAt[2].Sub(s.at[2]); late > time.Second {
			t.Errorf("the third answer was believed %v late", late)
		}
	})
}

func TestWatchDoubtsAnEmptyListOnce(t *testing.T) { // L5
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []answer{
			{index: 5, ids: []string{"B1"}},
			{after: 20 * time.Second, index: 6}, // an agent that has just started
			{index: 7, ids: []string{"B1"}},
			{index: 8},
			{index: 8},
		}}
		s.play(t, time.Minute)
		s.fiveASecond(t)
		if got := len(s.lists); got != 3 || s.last() != "" || strings.Join(s.lists[1], "") != "B1" {
			t.Fatalf("lists %v", s.lists)
		}
		for _, i := range []int{2, 4} {
			if s.asked[i].Has("stale") || s.asked[i].Has("index") {
				t.Errorf("the empty list was asked for again with %v", s.asked[i])
			}
			if pause := s.at[i].Sub(s.at[i-1]) - s.answers[i-1].after; pause < confirmAfter {
				t.Errorf("the empty list was asked for again after %v", pause)
			}
		}
	})
}

func TestWatchBelievesAnEmptyFirstList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []answer{{index: 5}}}
		s.play(t, time.Second)
		if len(s.lists) != 1 || s.last() != "" {
			t.Fatalf("lists %v", s.lists)
		}
	})
}

// A token that loses its rights is told of an empty list, again and again. That is Consul being away, at the start too.
func TestWatchDoesNotTakeWhatIsHiddenForNothing(t *testing.T) { // L5
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hidden := answer{index: 8, hidden: true}
		s := &script{answers: []answer{hidden, {index: 7, ids: []string{"b1"}}, hidden, hidden, hidden, hidden}}
		s.play(t, 2*time.Minute)
		if len(s.lists) != 1 || s.last() != "b1" || len(s.ups) != 3 {
			t.Fatalf("lists %v, answered %v", s.lists, s.ups)
		}
	})
}

func TestWatchKeepsTheListWhileConsulIsAway(t *testing.T) { // L5
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []answer{{index: 500, ids: []string{"B1", "B2"}}}}
		for range 30 {
			s.answers = append(s.answers, answer{err: errors.New("connection refused")})
		}
		for range 30 {
			s.answers = append(s.answers, answer{status: 500, index: 3})
		}
		s.answers = append(s.answers, answer{index: 4, ids: []string{"B2"}})
		s.play(t, 5*time.Minute)
		s.fiveASecond(t)
		if len(s.lists) != 2 || s.last() != "B2 B1" { // B1 for as long as it may take to register again
			t.Fatalf("lists %v", s.lists)
		}
		if len(s.ups) < 3 || !slices.Equal(s.ups[:3], []bool{true, false, true}) {
			t.Fatalf("told of Consul: %v", s.ups)
		}
		for i := 2; i <= 61; i++ {
			if s.asked[i].Has("index") {
				t.Fatalf("query %d, after a failure, waits for %s", i, s.asked[i].Get("index"))
			}
			if pause := s.at[i].Sub(s.at[i-1]); pause > 5*time.Second {
				t.Fatalf("Consul would be noticed %v after its return", pause)
			}
		}
	})
}

// An agent that comes back empty is told of its services one by one, and flaps meanwhile; one of them is really gone.
func TestWatchKeepsWhatAnAgentHasForgotten(t *testing.T) { // L5
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []answer{
			{index: 500, ids: []string{"B1", "B2", "B3"}},
			{err: errors.New("connection refused")},
			{index: 3},
			{after: 3 * time.Second, index: 4},
			{err: errors.New("connection refused")},
			{index: 3},
			{after: 5 * time.Second, index: 4, ids: []string{"B2"}},
			{after: 3 * time.Second, index: 5, ids: []string{"B1", "B2"}},
			{after: regainTime - 8*time.Second, index: 5, ids: []string{"B1", "B2"}}, // as Consul answers when a query has waited
		}}
		s.play(t, time.Minute)
		s.fiveASecond(t)
		for i, list := range s.lists {
			whole := len(list) == 3
			if whole != (i < len(s.lists)-1) {
				t.Fatalf("list %d of %v", i, s.lists)
			}
		}
		if s.last() != "B1 B2" {
			t.Fatalf("lists %v", s.lists)
		}
		if kept := s.listsAt[len(s.lists)-1].Sub(s.at[5]); kept < regainTime || kept > regainTime+5*time.Second {
			t.Errorf("what is gone was kept for %v after the outage", kept)
		}
		if wait := s.asked[6].Get("wait"); wait == "30000ms" {
			t.Errorf("the query after the outage may wait %s", wait)
		}
	})
}

func TestWatchOutlastsAConsulThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []answer{
			{index: 5, ids: []string{"B1"}}, {after: time.Hour}, {after: time.Hour}, {index: 6, ids: []string{"B2"}}}}
		s.play(t, 2*time.Minute)
		if s.last() != "B2 B1" {
			t.Fatalf("lists %v after %d queries", s.lists, len(s.asked))
		}
	})
}

func TestWatchLeavesOutBadEntriesAndWarnsOnce(t *testing.T) { // L4
	t.Parallel()
	var log strings.Builder
	w := &watch{log: zerolog.New(&log)}
	w.complaints.log = w.log
	bad := []*api.ServiceEntry{entryOf("good", "h", 1, nil), entryOf("bad", "h", 2, map[string]string{"slots": "many"}), nil,
		entryOf("ugly\nid", "h", 3, nil)}
	for range 3 {
		if specs := w.read(bad); len(specs) != 1 || specs[0].id != "good" {
			t.Fatalf("%+v", specs)
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines != 3 {
		t.Errorf("%d lines for three bad entries seen three times:\n%s", lines, &log)
	}
	w.read(bad[:1])
	w.read(bad[:2])
	if lines := strings.Count(log.String(), "\n"); lines != 4 {
		t.Errorf("an entry that is bad again is not reported again:\n%s", &log)
	}
}
