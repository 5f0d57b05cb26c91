package coordinator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// Redis is away and replicas may serve: keys that passed here go on within their share, and all of it is charged later.
func TestLedgerServesWithoutRedis(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	f := newLedgers(t, server.URL(), 1)
	cfg := f.list[0].cfg
	cfg.Serve, cfg.Replicas = true, func() int { return 3 }
	l := NewLedger(cfg)
	f.do("HSET", ":key:k1", "budget_usd", "0.000013000", "budgets", "1/30d", "rpm", "100", "parallel", "9")
	r := f.request()
	if _, ok := l.AdmitLocally(r); ok {
		t.Fatal("a key that never passed here")
	}
	a, _ := f.admit(l, r) // holds 400 of 13,000
	if _, ok := NewLedger(f.list[0].cfg).AdmitLocally(r); ok {
		t.Fatal("not asked to serve")
	}
	server.Kill()
	f.settle(l, f.settlement(r, a, 400))
	var late []Settlement
	for i := range 4 {
		r := f.request()
		a, ok := l.AdmitLocally(r)
		want := Admitted
		if i == 3 {
			want = ParallelExceeded // 9 by 3
		}
		if !ok || !a.Local || a.Verdict != want || a.KeyID != "key_1" {
			t.Fatalf("%d: %+v %v", i, a, ok)
		}
		if want == Admitted {
			s := f.settlement(r, a, 300)
			s.NeverAdmitted = true
			late = append(late, s)
		}
	}
	unknown := f.request()
	unknown.Model = "another"
	if _, ok := l.AdmitLocally(unknown); ok {
		t.Fatal("a model that never passed with this key")
	}
	for _, s := range late {
		f.settle(l, s)
	}
	lab.Eventually(t, 20*time.Second, func() bool { return l.unsettled.count() == 4 }, "all wait")
	n := 3
	for range 20 { // 12,600 were left: 4,200 for this replica, 900 spent, 400 a request
		r := f.request()
		a, _ := l.AdmitLocally(r)
		if a.Verdict == BudgetExceeded {
			break
		}
		s := f.settlement(r, a, 400)
		s.NeverAdmitted = true
		f.settle(l, s)
		late = append(late, s)
		n++
	}
	if n != 3+8 {
		t.Fatalf("%d passed", n)
	}
	server.Restart()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := f.pipes.Drain(ctx, f.store); err != nil {
		t.Fatal(err)
	}
	if err := l.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	for _, s := range late {
		if done, err := l.declareSettlement(f.pipes.Batch(), s).Wait(ctx); err != nil || done != 3 {
			t.Fatalf("again: %d %v", done, err)
		}
	}
	want := fmt.Sprint(400 + 3*300 + 8*400)
	if h := f.hash(f.month()); h["spent_nusd"] != want || h["reserved_nusd"] != "0" || h["requests"] != "12" {
		t.Fatalf("%v, want %s", h, want)
	}
	if len(f.hash(":parallel")) != 0 {
		t.Fatalf("%v", f.hash(":parallel"))
	}
}

// The lost admission was applied after all: its hold is replaced, it is not charged beside it.
func TestLedgerLocalSettlementOfAnAppliedAdmission(t *testing.T) {
	onEach(t, 1, ledgerLocalSettlementOfAnAppliedAdmission)
}

func ledgerLocalSettlementOfAnAppliedAdmission(t *testing.T, f *ledgers) {
	cfg := f.list[0].cfg
	cfg.Serve = true
	l := NewLedger(cfg)
	f.do("HSET", ":key:k1", "budget_usd", "1", "rpm", "1")
	r := f.request()
	f.admit(l, r)
	a, ok := l.AdmitLocally(r)
	if !ok || a.Verdict != Admitted {
		t.Fatalf("%+v", a)
	}
	if again, _ := l.AdmitLocally(f.request()); again.Verdict != RequestsExceeded || again.Reset <= 0 || again.Reset > 61*time.Second {
		t.Fatalf("%+v", again)
	}
	s := f.settlement(r, a, 7)
	s.NeverAdmitted = true
	f.settle(l, s)
	f.settled(l)
	if h := f.hash(f.month()); h["spent_nusd"] != "7" || h["reserved_nusd"] != "0" || h["requests"] != "1" {
		t.Fatalf("%v", h)
	}
}

// Periods without Redis are those of the script.
func TestPeriodsWithoutRedis(t *testing.T) {
	t.Parallel()
	f := newLedgers(t, lab.SharedRedis(t).URL(), 1)
	f.do("HSET", ":key:k1", "budgets", "1/day 1/week 1/month 1/total 1/7h 1/3d", "created_at", "86400500")
	a, _ := f.admit(f.list[0], f.request())
	scopes := strings.Split(a.Claim, " ")[6]
	_, periods := scopeOf(scopes)
	if got := periodsAt("2001-01-01,2001-W01,2001-01,total,7h@86400,3d@86400", a.AdmittedAt); got != periods {
		t.Fatalf("%s, want %s", got, periods)
	}
}
