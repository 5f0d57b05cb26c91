package coordinator

import (
	"fmt"
	"sync"
	"testing"
)

func (f *ledgers) extend(l *Ledger, rid string, total int64) int64 {
	f.Helper()
	g, err := l.Extend(f.pipes.Batch(), f.tenant, rid, total).Wait(f.Context())
	if err != nil {
		f.Fatalf("extend: %v", err)
	}
	return g.Tokens
}

// streamed is a request for a stream of at most 32,000 tokens at 30 USD per million.
func (f *ledgers) streamed() Request {
	r := f.request()
	r.Stream, r.OutputCap, r.OutputBound, r.OutputPricePico, r.TrancheLeast = true, 32000, 32000, 30_000_000, 100
	r.PromptBytes, r.PromptHoldNUSD, r.HoldNUSD = 1000, 10_000, 1<<50
	return r
}

// Issue 4: 40 streams at once with a cap of 32,000 on a budget of $25, where worst-case holds would need $38: none is
// refused, every one is topped up to what it uses, and the spend is exact.
func TestLedgerTranchesFreezeNoBudget(t *testing.T) { onEach(t, 3, ledgerTranchesFreezeNoBudget) }

func ledgerTranchesFreezeNoBudget(t *testing.T, f *ledgers) {
	f.do("HSET", ":key:k1", "budget_usd", "25")
	var wg sync.WaitGroup
	for i := range 40 {
		l := f.list[i%3]
		wg.Go(func() {
			r := f.streamed()
			a, _ := f.admit(l, r)
			if a.Verdict != Admitted || a.HeldOutput != 256 || a.HeldNUSD != 10_000+256*30_000 {
				t.Errorf("%+v", a)
				return
			}
			if n := f.extend(l, r.RID, 512); n != 512 {
				t.Errorf("granted %d", n)
			}
			f.settle(l, f.settlement(r, a, 300*30_000))
		})
	}
	wg.Wait()
	for _, l := range f.list {
		f.settled(l)
	}
	if h := f.hash(f.month()); h["spent_nusd"] != fmt.Sprint(40*300*30_000) || h["reserved_nusd"] != "0" {
		t.Fatalf("%v", h)
	}
}

func TestLedgerExtendsOnlyWhatIsOpenHere(t *testing.T) { onEach(t, 2, ledgerExtendsOnlyWhatIsOpenHere) }

func ledgerExtendsOnlyWhatIsOpenHere(t *testing.T, f *ledgers) {
	f.do("HSET", ":key:k1", "budget_usd", "0.009")
	l, r := f.list[0], f.streamed()
	a, _ := f.admit(l, r)
	if n := f.extend(l, r.RID, 1000); n != 299 { // (9,000,000 − 10,000) / 30,000
		t.Fatalf("%d", n)
	}
	b := f.pipes.Batch()
	if g, err := f.list[1].Extend(b, f.tenant, r.RID, 1000).Wait(t.Context()); err != nil || g.Tokens != 0 || b.RoundTrips() != 0 {
		t.Fatalf("%+v %v", g, err)
	}
	if n := f.extend(l, r.RID, -1); n != 0 {
		t.Fatalf("%d", n)
	}
	f.settle(l, f.settlement(r, a, 5))
	f.settled(l)
	if n := f.extend(l, r.RID, 1000); n != 0 {
		t.Fatalf("%d", n)
	}
}

// Real usage of long prompts is learned from, and nothing else.
func TestLedgerLearns(t *testing.T) { onEach(t, 1, ledgerLearns) }

func ledgerLearns(t *testing.T, f *ledgers) {
	l := f.list[0]
	once := func(change func(*Request, *Settlement)) Admission {
		t.Helper()
		r := f.request()
		r.PromptBytes = 600
		s := Settlement{Prompt: 100, Completion: 400, KeepRequest: true, Real: true}
		change(&r, &s)
		a, _ := f.admit(l, r)
		s.Tenant, s.RID, s.Claim = f.tenant, r.RID, a.Claim
		f.settle(l, s)
		f.settled(l)
		r = f.request()
		r.PromptBytes, r.Choices = 600, 3
		a, _ = f.admit(l, r)
		f.settle(l, Settlement{Tenant: f.tenant, RID: r.RID, Claim: a.Claim})
		f.settled(l)
		return a
	}
	for i, change := range []func(*Request, *Settlement){
		func(_ *Request, s *Settlement) { s.Real = false },
		func(_ *Request, s *Settlement) { s.KeepRequest = false },
		func(r *Request, _ *Settlement) { r.PromptBytes = 199 },
		func(_ *Request, s *Settlement) { s.Completion = 0 },
		func(r *Request, _ *Settlement) { r.PromptBytes = 0 },
		func(r *Request, _ *Settlement) { r.ImageTokens = 1 },
	} {
		if a := once(change); a.BytesPerTokenMilli != 4000 || a.UsualOutput != 256 || len(f.hash(":learned")) != 0 {
			t.Fatalf("case %d: %+v", i, a)
		}
	}
	r := f.request()
	r.PromptBytes, r.ImageTokens = 600, 1000
	a, _ := f.admit(l, r)
	if a.HeldTokens != 150+1000+50 {
		t.Fatalf("with an image: %+v", a)
	}
	f.settle(l, Settlement{Tenant: f.tenant, RID: r.RID, Claim: a.Claim})
	a = once(func(*Request, *Settlement) {})
	if a.BytesPerTokenMilli != 4125 || a.UsualOutput != 265 || a.HeldTokens != 145+50 {
		t.Fatalf("%+v %v", a, f.hash(":learned"))
	}
}

// The end user and the tags of a request are scopes where they have a policy; odd names stand there by their SHA-256.
func TestLedgerScopesOfTheRequest(t *testing.T) { onEach(t, 1, ledgerScopesOfTheRequest) }

func ledgerScopesOfTheRequest(t *testing.T, f *ledgers) {
	r := f.request()
	r.EndUser, r.Tags = "ann@example.com", []string{"a", "b c", "c", "d", "e", "f", "g", "h", "ninth"}
	for _, suffix := range []string{":enduser:ann@example.com", ":tag:" + SafeID("b c"), ":tag:h", ":tag:ninth"} {
		f.do("HSET", suffix, "rpm", "0")
		l := NewLedger(f.list[0].cfg)
		a, _ := f.admit(l, r)
		if refused := a.Verdict == RequestsExceeded; refused == (suffix == ":tag:ninth") {
			t.Fatalf("%s: %+v", suffix, a)
		}
		f.do("DEL", suffix)
	}
}
