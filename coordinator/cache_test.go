package coordinator_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

func answer() coordinator.Answer {
	return coordinator.Answer{Status: 200, ContentType: "application/json", Body: []byte("{\"a\":\"\x00\r\n\xff\"}"), Model: "m",
		Prompt: 10, Cached: 4, Completion: 3}
}

func (s *site) look(c *coordinator.Cache, tenant, hash string) *coordinator.Answer {
	s.t.Helper()
	a, err := c.Lookup(s.pipes.Batch(), tenant, hash).Wait(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *site) write(c *coordinator.Cache, a coordinator.Answer, ttl time.Duration) {
	s.t.Helper()
	post := s.pipes.Post()
	c.Write(post, "acme", "h1", a, ttl)
	post.Send()
	if err := s.pipes.Drain(context.Background(), s.store); err != nil {
		s.t.Fatal(err)
	}
}

func TestCacheReturnsWhatWasWritten(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		c := coordinator.NewCache(coordinator.CacheConfig{Store: s.store})
		if s.look(c, "acme", "h1") != nil {
			t.Fatal("a hit before anything was written")
		}
		s.write(c, answer(), time.Minute)
		got, want := s.look(c, "acme", "h1"), answer()
		if got == nil || !bytes.Equal(got.Body, want.Body) || time.Since(got.StoredAt).Abs() > time.Hour {
			t.Fatalf("%+v", got)
		}
		got.Body, got.StoredAt, want.Body = nil, time.Time{}, nil
		if got.Status != want.Status || got.ContentType != want.ContentType || got.Model != want.Model ||
			got.Prompt != want.Prompt || got.Cached != want.Cached || got.Completion != want.Completion {
			t.Fatalf("%+v, want %+v", got, want)
		}
		if s.look(c, "other", "h1") != nil || s.look(c, "acme", "h2") != nil {
			t.Fatal("somebody else's answer")
		}
		m, err := s.store.Do(t.Context(), "PTTL", coordinator.CacheEntry("acme", "h1"))
		if ttl, _ := m.AsInt64(); err != nil || ttl < 1000 || ttl > 60_000 { // C2
			t.Fatalf("ttl %d ms, %v", ttl, err)
		}
	})
}

// C1: what is not whole is a miss.
func TestCacheBrokenEntryIsAMiss(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		c := coordinator.NewCache(coordinator.CacheConfig{Store: s.store})
		key := coordinator.CacheEntry("acme", "h1")
		for _, spoil := range [][]string{{"HDEL", "body"}, {"HDEL", "completion"}, {"HSET", "status", "fine"}, {"HSET", "prompt", ""}, {"HSET", "prompt", "-5"}} {
			s.write(c, answer(), time.Minute)
			if _, err := s.store.Do(t.Context(), spoil[0], key, spoil[1:]...); err != nil {
				t.Fatal(err)
			}
			if a := s.look(c, "acme", "h1"); a != nil {
				t.Fatalf("after %v: %+v", spoil, a)
			}
		}
		// A key of another type is an error of this handle alone, and is replaced by the next answer.
		for _, cmd := range [][]string{{"DEL"}, {"SET", "x"}} {
			if _, err := s.store.Do(t.Context(), cmd[0], key, cmd[1:]...); err != nil {
				t.Fatal(err)
			}
		}
		if a, err := c.Lookup(s.pipes.Batch(), "acme", "h1").Wait(t.Context()); err == nil || a != nil {
			t.Fatalf("%+v, %v", a, err)
		}
		s.write(c, answer(), time.Minute)
		if s.look(c, "acme", "h1") == nil {
			t.Fatal("not replaced")
		}
	})
}

func TestCacheKeepsNothingWithoutATime(t *testing.T) {
	t.Parallel()
	s := newSite(t, pipeline.StoreConfig{URL: lab.Redis(t).URL()})
	c := coordinator.NewCache(coordinator.CacheConfig{Store: s.store})
	s.write(c, answer(), 0)
	if found := s.exists(coordinator.CacheEntry("acme", "h1")); found != nil {
		t.Fatal("kept for ever")
	}
}

// C3: a frozen Redis costs a few look-ups their waiting; then requests go on without it, which the log says once, until it is back.
func TestCacheThatDoesNotAnswerIsNotAsked(t *testing.T) {
	t.Parallel()
	redis := lab.Redis(t)
	s, log := newSite(t, pipeline.StoreConfig{URL: redis.URL()}), &lab.Output{}
	s.write(coordinator.NewCache(coordinator.CacheConfig{Store: s.store}), answer(), time.Hour)
	s.cfg.Timeout = 150 * time.Millisecond
	c := coordinator.NewCache(coordinator.CacheConfig{Store: s.dial(), Log: zerolog.New(log)})
	look := func() (a *coordinator.Answer, asked bool) {
		b := s.pipes.Batch()
		a, _ = c.Lookup(b, "acme", "h1").Wait(t.Context())
		return a, b.RoundTrips() > 0
	}
	redis.Stop()
	asked := 0
	for range 1000 {
		if a, waited := look(); a != nil {
			t.Fatal("an answer of a Redis that stands still")
		} else if waited {
			asked++
		}
	}
	if asked < 3 || asked > 50 || log.Count("does not answer") != 1 {
		t.Errorf("%d of 1000 look-ups waited; the log: %d", asked, log.Count("does not answer"))
	}
	redis.Cont()
	lab.Eventually(t, 20*time.Second, func() bool { a, _ := look(); return a != nil }, "not found again")
	if log.Count("does not answer") != 1 || log.Count("answers again") != 1 {
		t.Errorf("the log says %d times that it is away, %d times that it is back", log.Count("does not answer"), log.Count("answers again"))
	}
}
