package coordinator

import (
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// One settlement after another takes no new memory.
func TestAckedUsesItsMemoryAgain(t *testing.T) {
	t.Parallel()
	var a acked
	s := kept(1).Settlement
	s.Record = make([]byte, 500)
	pieces := map[*byte]bool{}
	for i := range 40_000 { // a millisecond apart: 10,001 are kept
		a.add(s, noon.Add(time.Duration(i)*time.Millisecond), false)
		pieces[&a.kept.pieces[len(a.kept.pieces)-1][0]] = true
	}
	size := packedHead + len(s.Tenant) + len(s.RID) + len(s.Claim) + len(s.Record)
	if want := 10_001*size/packedPiece + 3; a.kept.n != 10_001 || len(pieces) > want {
		t.Errorf("%d held, %d pieces, want at most %d", a.kept.n, len(pieces), want)
	}
}

// What is put comes back in order, whatever it is, with what was forgotten left out.
func TestPackedSettlementsComeBack(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	text := func(most int) string { return strings.Repeat("x", random.IntN(most)) + "ü\x00" }
	var p packed
	var want []keptSettlement
	for i := range 3000 {
		k := keptSettlement{since: noon.Add(time.Duration(i) * time.Microsecond)}
		k.Tenant, k.RID, k.Claim, k.Record = text(20), strconv.Itoa(i), text(300), []byte(text(1000))
		k.KeepRequest, k.Real, k.NeverAdmitted = i&1 != 0, i&2 != 0, i&4 != 0
		k.Prompt, k.Cached, k.Completion, k.CostNUSD = random.Int64(), -random.Int64(), random.Int64(), random.Int64()
		switch i % 100 {
		case 0:
			k.Tenant, k.Claim, k.Record = "", "", nil
		case 1:
			k.Record = make([]byte, packedPiece+i)
		default:
			k.AdmittedAt = time.UnixMilli(random.Int64N(1 << 41))
		}
		p.put(k)
		want = append(want, k)
		for random.IntN(3) == 0 && p.n > 0 {
			if !p.oldest().Equal(want[0].since) {
				t.Fatalf("oldest %v, want %v", p.oldest(), want[0].since)
			}
			p.drop()
			want = want[1:]
		}
	}
	got := p.all()
	if len(got) != len(want) || p.n != len(want) || len(want) < 100 {
		t.Fatalf("%d, counted %d, want %d", len(got), p.n, len(want))
	}
	for i := range got {
		if !got[i].since.Equal(want[i].since) || !got[i].AdmittedAt.Equal(want[i].AdmittedAt) || got[i].AdmittedAt.IsZero() != want[i].AdmittedAt.IsZero() {
			t.Fatalf("%d: %v %v, want %v %v", i, got[i].since, got[i].AdmittedAt, want[i].since, want[i].AdmittedAt)
		}
		got[i].since, got[i].AdmittedAt = want[i].since, want[i].AdmittedAt
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("%d: %+v, want %+v", i, got[i], want[i])
		}
	}
	for p.n > 0 {
		p.drop()
	}
	if len(p.all()) != 0 || len(p.pieces) != 0 {
		t.Fatal("not empty")
	}
}
