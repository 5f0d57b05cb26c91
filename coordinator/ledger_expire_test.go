package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// L4. A replica dies: what it left open is charged at its hold, once, whoever looks after it.
func TestLedgerExpire(t *testing.T) { onEach(t, 3, ledgerExpire) }

func ledgerExpire(t *testing.T, f *ledgers) {
	f.do("HSET", ":key:k1", "budget_usd", "1")
	dead, alive := f.list[0], f.list[1]
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { dead.Run(ctx); close(stopped) }()
	var mine Settlement
	for range 30 {
		f.admit(dead, f.request())
	}
	r := f.request()
	a, _ := f.admit(alive, r)
	mine = f.settlement(r, a, 7)
	lab.Eventually(t, 5*time.Second, func() bool {
		m, err := f.store.Do(t.Context(), "SMEMBERS", ReplicaTenants(dead.cfg.Replica))
		names, _ := m.AsStrSlice()
		return err == nil && fmt.Sprint(names) == "["+f.tenant+"]"
	}, "the tenant is announced")
	cancel()
	<-stopped

	var wg sync.WaitGroup
	var settled atomic.Int64
	for _, l := range f.list[1:] {
		wg.Go(func() {
			n, err := l.Expire(t.Context(), dead.cfg.Replica)
			if err != nil {
				t.Error(err)
			}
			settled.Add(int64(n))
		})
	}
	wg.Wait()
	f.settle(alive, mine)
	f.settled(alive)
	h := f.hash(f.month())
	_, sum, n := f.records()
	if settled.Load() != 30 || h["spent_nusd"] != "12007" || h["reserved_nusd"] != "0" || sum != 12007 || n != 31 || len(f.hash(":parallel")) != 0 {
		t.Fatalf("%d settled, %v, %d in %d records", settled.Load(), h, sum, n)
	}
	if m, _ := f.store.Do(t.Context(), "EXISTS", ReplicaTenants(dead.cfg.Replica)); m.String() == "" {
		t.Fatal("no answer")
	} else if n, _ := m.AsInt64(); n != 0 {
		t.Fatal("the dead replica's set is still there")
	}
}

// L4. A replica killed between its first admission in a tenant and the announcement: its holds are found by the directory's
// list of tenants, however long that is.
func TestLedgerExpiresWhatWasNotAnnounced(t *testing.T) {
	t.Parallel()
	f := newLedgers(t, lab.Redis(t).URL(), 2)
	f.do("HSET", ":key:k1", "budget_usd", "1")
	names := []string{f.tenant}
	for i := range 3000 {
		names = append(names, fmt.Sprint("other-", i))
	}
	if _, err := f.store.Do(t.Context(), "SADD", TenantIndex(), names...); err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.Do(t.Context(), "SET", OpenReservations("other-7"), "broken"); err != nil {
		t.Fatal(err)
	}
	dead, alive := f.list[0], f.list[1]
	f.admit(dead, f.request()) // not running: nobody announces
	if n, err := alive.Expire(t.Context(), dead.cfg.Replica); err != nil || n != 1 {
		t.Fatalf("%d settled, %v", n, err)
	}
	if h := f.hash(f.month()); h["spent_nusd"] != "400" || h["reserved_nusd"] != "0" || len(f.hash(":parallel")) != 0 {
		t.Fatalf("%v", h)
	}
}

// L4. A hold that cannot be charged stays announced, and the caller is told to come again.
func TestLedgerExpireKeepsWhatIsStuck(t *testing.T) {
	t.Parallel()
	f := newLedgers(t, lab.Redis(t).URL(), 2)
	f.do("HSET", ":key:k1", "budget_usd", "1")
	dead, alive := f.list[0], f.list[1]
	if _, err := f.store.Do(t.Context(), "SADD", TenantIndex(), f.tenant); err != nil {
		t.Fatal(err)
	}
	f.admit(dead, f.request())
	f.do("RENAME", f.month(), TenantRoot(f.tenant)+":aside")
	f.do("SET", f.month(), "garbage")
	for range 2 { // found by the walk, then announced
		if n, err := alive.Expire(t.Context(), dead.cfg.Replica); n != 0 || !errors.Is(err, ErrStuck) {
			t.Fatalf("%d settled, %v", n, err)
		}
		m, err := f.store.Do(t.Context(), "SMEMBERS", ReplicaTenants(dead.cfg.Replica))
		if names, _ := m.AsStrSlice(); err != nil || fmt.Sprint(names) != "["+f.tenant+"]" {
			t.Fatalf("announced %v, %v", names, err)
		}
	}
	f.do("DEL", f.month())
	f.do("RENAME", ":aside", TenantRoot(f.tenant)+f.month())
	if n, err := alive.Expire(t.Context(), dead.cfg.Replica); err != nil || n != 1 {
		t.Fatalf("%d settled, %v", n, err)
	}
	if h := f.hash(f.month()); h["spent_nusd"] != "400" || h["reserved_nusd"] != "0" {
		t.Fatalf("%v", h)
	}
}
