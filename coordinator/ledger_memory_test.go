package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 100_000_000, time.UTC)

// L5
func TestRefusalsAreRepeatedForASecondAtMost(t *testing.T) {
	t.Parallel()
	var f refusals
	r := Request{Tenant: "acme", KeyHash: "k", Model: "m", Known: true}
	a := Admission{Verdict: RequestsExceeded, Reset: 30 * time.Second, Requests: Window{Limit: 5, Reset: 30 * time.Second}}
	f.remember(&r, "m", &a, noon)
	got, ok := f.recall(&r, noon.Add(999*time.Millisecond))
	if !ok || got.Verdict != RequestsExceeded || got.Reset != 30*time.Second-999*time.Millisecond || got.Requests.Reset != got.Reset {
		t.Fatalf("%+v %v", got, ok)
	}
	if _, ok := f.recall(&r, noon.Add(time.Second)); ok {
		t.Fatal("repeated after a second")
	}
	other := r
	other.Model = "another" // it may not even be allowed
	if _, ok := f.recall(&other, noon); ok {
		t.Fatal("repeated for another model")
	}
	other = r
	other.Known = false
	if _, ok := f.recall(&other, noon); ok {
		t.Fatal("repeated for a model that is known no more")
	}
	a.Reset = 10 * time.Millisecond
	f.remember(&r, "m", &a, noon.Add(2*time.Second))
	if _, ok := f.recall(&r, noon.Add(2*time.Second+10*time.Millisecond)); ok {
		t.Fatal("repeated past its reset")
	}
	f.remember(&r, "", &Admission{Verdict: KeyUnknown}, noon.Add(3*time.Second))
	if got, ok := f.recall(&other, noon.Add(3500*time.Millisecond)); !ok || got.Verdict != KeyUnknown {
		t.Fatalf("%+v %v", got, ok)
	}
}

// An end user or a tag that may not is no reason to refuse what else the same key sends, and spent money none to refuse what is
// free.
func TestARefusalIsRepeatedToThoseItConcerns(t *testing.T) {
	t.Parallel()
	var f refusals
	r := Request{Tenant: "acme", KeyHash: "k", Model: "m", Known: true, HoldNUSD: 5}
	eve, mallory := r, r
	eve.EndUser, mallory.EndUser = "eve", "eve & mallory"
	tagged := r
	tagged.Tags = []string{"blue", "red"}
	f.remember(&eve, "m", &Admission{Verdict: RequestsExceeded, Scope: "enduser", ScopeID: "eve"}, noon)
	f.remember(&mallory, "", &Admission{Verdict: KeyDisabled, Scope: "enduser", ScopeID: SafeID(mallory.EndUser)}, noon)
	f.remember(&tagged, "m", &Admission{Verdict: BudgetExceeded, Scope: "tag", ScopeID: "red"}, noon)
	for what, want := range map[string]struct {
		r       Request
		verdict Verdict
	}{"eve": {eve, RequestsExceeded}, "mallory": {mallory, KeyDisabled}, "tag": {tagged, BudgetExceeded}, "others": {r, 0}} {
		if a, ok := f.recall(&want.r, noon); ok != (want.verdict != 0) || ok && a.Verdict != want.verdict {
			t.Errorf("%s: %+v %v", what, a, ok)
		}
	}
	tagged.HoldNUSD = 0
	if a, ok := f.recall(&tagged, noon); ok {
		t.Errorf("a free request: %+v", a)
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
		f.remember(&Request{KeyHash: key}, "", &Admission{}, noon.Add(time.Duration(i)*20*time.Microsecond))
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

func TestAFloodOfMadeUpKeysIsLookedUpFewAtATime(t *testing.T) {
	t.Parallel()
	var k lookups
	type answer struct {
		wait    time.Duration
		flooded bool
	}
	begin := func(tenant string, at time.Time, want answer) {
		t.Helper()
		if wait, flooded := k.begin(tenant, at); (answer{wait, flooded}) != want {
			t.Fatalf("%s %v, want %v", wait, flooded, want)
		}
	}
	free, few, refused := answer{}, answer{flooded: true}, answer{wait: 900 * time.Millisecond}
	for range failedPerTenant - 1 {
		k.failed("acme", noon)
	}
	begin("acme", noon, free)
	k.failed("acme", noon)
	for range floodedPerTenant - failedPerTenant {
		for range floodedAtOnce {
			begin("acme", noon, few)
		}
		begin("acme", noon, refused)
		begin("other", noon, free)
		k.failed("acme", noon)
		for range floodedAtOnce {
			k.done("acme")
		}
	}
	begin("acme", noon, refused) // its bound for the second
	for i := range failedPerSecond - failedPerTenant {
		begin("other", noon, free)
		k.failed(fmt.Sprint("t", i), noon)
	}

	for i := range floodedTenants { // 500 in all: every other tenant, 8 at once
		begin(fmt.Sprint("t", i), noon, few)
	}
	begin("other", noon, refused)
	k.done("t0")
	begin("other", noon, few)
	k.done("other")
	for i := range floodedPerSecond - (floodedPerTenant - failedPerTenant) {
		k.failed(fmt.Sprint("u", i), noon)
	}
	begin("other", noon, refused)
	begin("acme", noon.Add(900*time.Millisecond), free)
	if len(k.asking) != 0 {
		t.Fatal("who never said done blocks for longer than a second")
	}
}

// A valid key that is new to a flooded replica gets in, between made-up ones.
func TestLedgerLetsANewKeyInUnderAFlood(t *testing.T) {
	t.Parallel()
	f := newLedgers(t, lab.SharedRedis(t).URL(), 1)
	l := f.list[0]
	l.cfg.Clock = func() time.Time { return noon }
	for i := range failedPerTenant + 10 {
		r := f.request()
		r.KeyHash = fmt.Sprint("made-up-", i)
		if a, _ := f.admit(l, r); a.Verdict != KeyUnknown {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	if a, _ := f.admit(l, f.request()); a.Verdict != Admitted {
		t.Fatalf("%+v", a)
	}
}

// A replica that is flooded still serves the keys that passed, and asks Redis for few of the others at a time.
func TestLedgerUnderAFlood(t *testing.T) {
	t.Parallel()
	l := NewLedger(LedgerConfig{Clock: func() time.Time { return noon }}) // no store: a command would not get through
	for range failedPerTenant {
		l.lookups.failed("acme", noon)
	}
	few := l.cfg.Pipeline.Batch()
	for i := range floodedAtOnce {
		l.Admit(few, Request{Tenant: "acme", KeyHash: fmt.Sprint("new", i)})
	}
	if few.Len() != floodedAtOnce {
		t.Fatalf("%d declared", few.Len())
	}
	b := l.cfg.Pipeline.Batch()
	a, err := l.Admit(b, Request{Tenant: "acme", KeyHash: "newer"}).Wait(t.Context())
	if err != nil || a.Verdict != RequestsExceeded || a.Reset != 900*time.Millisecond || a.KeyID != "" || b.Len() != 0 {
		t.Fatalf("%+v %v", a, err)
	}
	l.seen.put("old", Hint{Tenant: "acme"})
	if l.Admit(b, Request{Tenant: "acme", KeyHash: "old"}); b.Len() != 2 {
		t.Fatalf("%d declared", b.Len())
	}
}
