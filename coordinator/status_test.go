package coordinator_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// TestStatusKnowsTheFleetSoonAfterRedisForgotIt: the second beat after it wrote everything people look for again.
func TestStatusKnowsTheFleetSoonAfterRedisForgotIt(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		ctx := context.Background()
		p, other := s.replica("r1", 1), s.replica("r2", 1)
		for range 3 {
			p.BeatOnce(ctx)
			other.BeatOnce(ctx)
		}
		if _, err := s.store.Do(ctx, "FLUSHALL", ""); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			other.BeatOnce(ctx)
			p.BeatOnce(ctx)
		}
		lab.Eventually(t, 20*time.Second, func() bool { // the names go behind the beat
			status, err := coordinator.ReadStatus(ctx, s.store)
			return err == nil && len(status.Pools) == 1 && len(status.Pools[0].Backends) == 2 && len(status.Replicas) == 2
		}, "still unknown")
	})
}

// TestStatusSaysWhatThereIs: replicas by their beats, pools and backends found by the names the beats leave, and each state
// of a backend, on Redis and on the store of dev.
func TestStatusSaysWhatThereIs(t *testing.T) {
	t.Parallel()
	onBothSites(t, func(t *testing.T, s *site) {
		ctx := context.Background()
		do := func(name, key string, args ...string) {
			t.Helper()
			if _, err := s.store.Do(ctx, name, key, args...); err != nil {
				t.Fatal(err)
			}
		}
		p := s.replica("r1", 1)
		s.place(p, coordinator.Ask{RID: "01", Attempt: 1, Pool: "p", Tenant: "acme", MU: 1000, Candidates: []coordinator.Candidate{{ID: "b1", Slots: 2}}})
		far := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
		now := strconv.FormatInt(time.Now().UnixMilli(), 10)
		for id, fields := range map[string][]string{
			"cool":   {"slots", "2", "cooldown_until", far, "failures", "3"},
			"drains": {"slots", "2", "draining", "1"},
			"bad":    {"slots", "many"},
			"kv":     {"slots", "2", "kv", "9600", "read_at", far},
			"others": {"slots", "2", "external", "2", "read_at", far, "models", "qwen a%20b"},
			"old":    {"slots", "2", "external", "2", "read_at", "1000"},
			"busy":   {"slots", "2", "rate_mu", "1000", "backlog", "5000", "backlog_at", far},
		} {
			do("HSET", coordinator.BackendRecord("p", id), fields...)
			do("SADD", coordinator.BackendIndex("p"), id)
		}
		do("SADD", coordinator.BackendIndex("p"), "gone")
		do("ZADD", coordinator.Replicas(""), "1000", "dead-1")
		do("SADD", coordinator.TenantIndex(), "acme", "idle")
		do("HSET", coordinator.OpenReservations("acme"), "aa", "o r1 1", "bb", "x r1 1")
		do("ZADD", coordinator.Reservations("acme"), "1000", "aa", now, "bb")
		var status coordinator.Status
		lab.Eventually(t, 20*time.Second, func() bool {
			var err error
			p.BeatOnce(ctx)
			if status, err = coordinator.ReadStatus(ctx, s.store); err != nil {
				t.Fatal(err)
			}
			return len(status.Pools) == 1 && len(status.Pools[0].Backends) == 9 && len(status.Replicas) == 2
		}, "the beat leaves the names")
		// A key somebody wrote something else to is named, and takes nothing else with it.
		do("SADD", coordinator.TenantIndex(), "odd")
		do("SET", coordinator.OpenReservations("odd"), "x")
		do("SET", coordinator.Queue("p"), "x")
		again, err := coordinator.ReadStatus(ctx, s.store)
		if err != nil || len(again.Odd) != 2 || len(again.Pools) != 1 || len(again.Pools[0].Backends) != 9 || len(again.Tenants) == 0 {
			t.Errorf("%v: %d pools, %d tenants, unreadable %q", err, len(again.Pools), len(again.Tenants), again.Odd)
		}
		states := ""
		for _, b := range status.Pools[0].Backends {
			states += b.ID + "=" + b.State + " "
			switch {
			case b.ID == "busy" && b.Backlog != 5*time.Second, b.ID == "cool" && (b.Cooldown < 59*time.Minute || b.Failures != 3),
				b.ID == "old" && (b.External != 0 || b.Fresh()), b.ID == "others" && fmt.Sprint(b.Models) != "[qwen a b]", b.ID == "b1" && (b.Held != 1 || b.Read >= 0):
				t.Errorf("%+v", b)
			}
		}
		if states != "b1=ok b2=ok bad=unreadable busy=ok cool=cooling_down drains=draining kv=kv_cache_full old=ok others=full " {
			t.Errorf("%s", states)
		}
		if r := status.Replicas; r[0].ID != "dead-1" || r[0].Alive || !r[1].Alive || r[1].Leases != 1 || r[1].Waiting != 0 {
			t.Errorf("%+v", r)
		}
		if len(status.Tenants) != 1 || status.Tenants[0] != (coordinator.TenantStatus{Tenant: "acme", Open: 1, Overdue: 1}) {
			t.Errorf("%+v", status.Tenants)
		}
		books, err := coordinator.Audit(ctx, coordinator.AuditConfig{Store: s.store, Tenants: []string{"idle"}})
		if err != nil || !coordinator.Agrees(books) || len(books) != 1 {
			t.Errorf("%+v %v", books, err)
		}
	})
}
