package coordinator

import (
	"fmt"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 100_000_000, time.UTC)

// L5
func TestRefusalsAreRepeatedForASecondAtMost(t *testing.T) {
	t.Parallel()
	var f refusals
	r := Request{Tenant: "acme", KeyHash: "k", Model: "m", Known: true}
	a := Admission{Verdict: RequestsExceeded, Reset: 30 * time.Second, Requests: Window{Limit: 5, Reset: 30 * time.Second}}
	f.remember(r, "m", a, noon)
	got, ok := f.recall(r, noon.Add(999*time.Millisecond))
	if !ok || got.Verdict != RequestsExceeded || got.Reset != 30*time.Second-999*time.Millisecond || got.Requests.Reset != got.Reset {
		t.Fatalf("%+v %v", got, ok)
	}
	if _, ok := f.recall(r, noon.Add(time.Second)); ok {
		t.Fatal("repeated after a second")
	}
	other := r
	other.Model = "another" // it may not even be allowed
	if _, ok := f.recall(other, noon); ok {
		t.Fatal("repeated for another model")
	}
	other = r
	other.Known = false
	if _, ok := f.recall(other, noon); ok {
		t.Fatal("repeated for a model that is known no more")
	}
	a.Reset = 10 * time.Millisecond
	f.remember(r, "m", a, noon.Add(2*time.Second))
	if _, ok := f.recall(r, noon.Add(2*time.Second+10*time.Millisecond)); ok {
		t.Fatal("repeated past its reset")
	}
	f.remember(r, "", Admission{Verdict: KeyUnknown}, noon.Add(3*time.Second))
	if got, ok := f.recall(other, noon.Add(3500*time.Millisecond)); !ok || got.Verdict != KeyUnknown {
		t.Fatalf("%+v %v", got, ok)
	}
}

// L6
func TestWhatIsRememberedIsBounded(t *testing.T) {
	t.Parallel()
	var f refusals
	var s seenKeys
	var k lookups
	for i := range 3 * seenMax {
		key := fmt.Sprint(i)
		f.remember(Request{KeyHash: key}, "", Admission{}, noon.Add(time.Duration(i)*20*time.Microsecond))
		s.put(key, Hint{})
		k.failed(key, noon)
	}
	if len(f.young)+len(f.older) > 2*refusalsMax || len(s.young)+len(s.older) > seenMax || len(k.tenants) > failedPerSecond {
		t.Fatalf("%d %d, %d %d, %d", len(f.young), len(f.older), len(s.young), len(s.older), len(k.tenants))
	}
	if _, ok := s.get(fmt.Sprint(3*seenMax - seenMax/2)); !ok {
		t.Fatal("a key of the last half was forgotten")
	}
	s.put("a", Hint{Team: "x"})
	s.put("a", Hint{Team: "y"})
	if h, _ := s.get("a"); h.Team != "y" {
		t.Fatalf("%+v", h)
	}
}

func TestAFloodOfMadeUpKeysIsRefusedUntilTheSecondEnds(t *testing.T) {
	t.Parallel()
	var k lookups
	for range failedPerTenant - 1 {
		k.failed("acme", noon)
	}
	if k.flooded("acme", noon) != 0 {
		t.Fatal("too early")
	}
	k.failed("acme", noon)
	if d := k.flooded("acme", noon); d != 900*time.Millisecond {
		t.Fatalf("%s", d)
	}
	if k.flooded("other", noon) != 0 {
		t.Fatal("another tenant is refused")
	}
	for i := range failedPerSecond - failedPerTenant {
		k.failed(fmt.Sprint("t", i), noon)
	}
	if k.flooded("other", noon) == 0 {
		t.Fatal("500 in all")
	}
	if k.flooded("acme", noon.Add(900*time.Millisecond)) != 0 {
		t.Fatal("the second is over")
	}
}

// A replica that is flooded still serves the keys that passed, and asks Redis nothing for the others.
func TestLedgerUnderAFlood(t *testing.T) {
	t.Parallel()
	l := NewLedger(LedgerConfig{Clock: func() time.Time { return noon }}) // no store: a command would not get through
	for range failedPerTenant {
		l.lookups.failed("acme", noon)
	}
	b := l.cfg.Pipeline.Batch()
	a, err := l.Admit(b, Request{Tenant: "acme", KeyHash: "new"}).Wait(t.Context())
	if err != nil || a.Verdict != RequestsExceeded || a.Reset != 900*time.Millisecond || a.KeyID != "" || b.Len() != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	l.seen.put("old", Hint{Tenant: "acme"})
	if l.Admit(b, Request{Tenant: "acme", KeyHash: "old"}); b.Len() != 2 {
		t.Fatalf("%d declared", b.Len())
	}
}
