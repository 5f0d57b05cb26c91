package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
)

func kept(i int) keptSettlement {
	return keptSettlement{Settlement{Tenant: "acme", RID: fmt.Sprint("r", i), Claim: "o \n", CostNUSD: int64(i), AdmittedAt: noon,
		Record: fmt.Appendf(nil, "{\"n\":%d}", i)}, noon.Add(time.Duration(i))}
}

func spoolFile(t *testing.T, n int) []byte {
	t.Helper()
	var data []byte
	for i := range n {
		var err error
		if data, err = spoolLine(data, kept(i)); err != nil {
			t.Fatal(err)
		}
	}
	return data
}

// Wherever the file was torn, what stands before is read, and nothing else is made of the rest.
func TestSpoolTorn(t *testing.T) {
	t.Parallel()
	data := spoolFile(t, 3)
	for cut := range len(data) + 1 {
		list, torn := readSpool(data[:cut])
		whole := bytes.Count(data[:cut], []byte{'\n'})
		if cut+1 < len(data) && data[cut] == '\n' {
			whole++ // only its line end is missing
		}
		if cut == len(data)-1 {
			whole = 3
		}
		if len(list) != whole || torn > 1 || len(list)+torn > 3 {
			t.Fatalf("cut at %d: %d read, %d torn, want %d", cut, len(list), torn, whole)
		}
		for i, k := range list {
			if !reflect.DeepEqual(k, kept(i)) {
				t.Fatalf("%+v", k)
			}
		}
		// What a later process appends after a line end is read too.
		again, torn := readSpool(append(append(bytes.Clone(data[:cut]), '\n'), spoolFile(t, 1)...))
		if len(again) != whole+1 || torn > 1 {
			t.Fatalf("cut at %d: %d read, %d torn", cut, len(again), torn)
		}
	}
	for i := range data { // one changed byte loses one line
		bad := bytes.Clone(data)
		bad[i] ^= 1
		if list, _ := readSpool(bad); len(list) < 1 || len(list) > 2 {
			if data[i] != '\n' {
				t.Fatalf("byte %d: %d read", i, len(list))
			}
		}
	}
}

func FuzzSpool(f *testing.F) {
	f.Add([]byte("00000000 2 {}\n"))
	if l, err := spoolLine(nil, kept(1)); err == nil {
		f.Add(l)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		list, torn := readSpool(data)
		if lines := bytes.Count(data, []byte{'\n'}) + 1; len(list)+torn > lines {
			t.Fatalf("%d and %d of %d lines", len(list), torn, lines)
		}
		var again []byte
		for _, k := range list {
			var err error
			if again, err = spoolLine(again, k); err != nil {
				t.Fatal(err)
			}
		}
		if same, torn := readSpool(again); torn != 0 || len(same) != len(list) {
			t.Fatalf("%d of %d, %d torn", len(same), len(list), torn)
		}
	})
}

// A file belongs to its process as long as that lives; then it is adopted, once.
func TestSpoolIsAdoptedOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "spool")
	dead := spool{dir: dir, name: "a"}
	for i := range 3 {
		if err := dead.put(kept(i)); err != nil {
			t.Fatal(err)
		}
	}
	var got []keptSettlement
	take := func(list []keptSettlement) bool { got = append(got, list...); return true }
	b := spool{dir: dir, name: "b"}
	if files, _, err := b.adopt(take); files != 0 || err != nil || len(got) != 0 {
		t.Fatalf("adopted the file of one that lives: %d %v", files, err)
	}
	if err := dead.close(); err != nil {
		t.Fatal(err)
	}
	if files, torn, err := b.adopt(func([]keptSettlement) bool { return false }); files != 0 || torn != 0 || err != nil {
		t.Fatalf("%d %d %v", files, torn, err)
	}
	for range 2 {
		if _, _, err := b.adopt(take); err != nil || len(got) != 3 || !reflect.DeepEqual(got[2], kept(2)) {
			t.Fatalf("%+v %v", got, err)
		}
	}
	if err := b.put(kept(7)); err != nil {
		t.Fatal(err)
	}
	if err := b.clear(); err != nil {
		t.Fatal(err)
	}
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Fatalf("left behind: %v", entries)
	}
}

func TestSpoolIsBounded(t *testing.T) {
	t.Parallel()
	one := int64(len(spoolFile(t, 1)))
	s := spool{dir: t.TempDir(), name: "a", max: 3*one + one/2}
	for range 3 {
		if err := s.put(kept(0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.put(kept(0)); !errors.Is(err, errSpoolFull) {
		t.Fatalf("%v", err)
	}
	if err := s.clear(); err != nil {
		t.Fatal(err)
	}
	if err := s.put(kept(0)); err != nil {
		t.Fatal(err)
	}
	_ = s.close()
}

// L3. A process ends while Redis is away; the next one settles what it left, once, and the file is gone.
func TestLedgerSettlesWhatAProcessLeft(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	f := newLedgers(t, server.URL(), 2)
	f.do("HSET", ":key:k1", "budget_usd", "1")
	dir := t.TempDir()
	for _, l := range f.list {
		l.unsettled.spool.dir = dir
	}
	old, next := f.list[0], f.list[1]
	for i := range 10 {
		r := f.request()
		a, _ := f.admit(old, r)
		if i == 0 {
			server.Kill()
		}
		if i < 5 {
			old.keep(f.settlement(r, a, int64(i)), pipeline.ErrUnavailable)
		}
		if i == 0 {
			server.Restart()
			lab.Eventually(t, 10*time.Second, func() bool { return f.store.Ready(t.Context()) == nil }, "redis is back")
		}
	}
	old.closeSpool() // the process is gone
	next.adopt()
	if next.unsettled.count() != 5 || f.logs.Count("found in the spool") != 1 {
		t.Fatalf("%d", next.unsettled.count())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := next.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	next.closeSpool()
	if h := f.hash(f.month()); h["spent_nusd"] != "10" {
		t.Fatalf("%v", h)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Fatalf("left behind: %v", entries)
	}
	next.adopt()
	if next.unsettled.count() != 0 {
		t.Fatal("adopted again")
	}
}

// A spool that cannot be written is said once; the settlements wait in memory.
func TestLedgerWithoutASpoolDirectory(t *testing.T) { onEach(t, 1, ledgerWithoutASpoolDirectory) }

func ledgerWithoutASpoolDirectory(t *testing.T, f *ledgers) {
	l := f.list[0]
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.unsettled.spool.dir = file
	for i := range 3 {
		l.keep(kept(i+1).Settlement, pipeline.ErrUnavailable)
	}
	if l.unsettled.count() != 3 || f.logs.Count("in memory only") != 1 {
		t.Fatalf("%d kept, %d logged", l.unsettled.count(), f.logs.Count("in memory only"))
	}
	l.unsettled.spool.dir = t.TempDir()
	l.keep(kept(4).Settlement, pipeline.ErrUnavailable)
	if f.logs.Count("on disk again") != 1 {
		t.Fatal("not said")
	}
	l.closeSpool()
}

// L2. Redis comes back without what it acknowledged last: that is repeated, and charged once.
func TestLedgerRepeatsWhatAPrimaryTookAlong(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t)
	f := newLedgers(t, server.URL(), 1)
	f.do("HSET", ":key:k1", "budget_usd", "1")
	l := f.list[0]
	r := f.request()
	a, _ := f.admit(l, r)
	f.settle(l, f.settlement(r, a, 7))
	f.settled(l)
	server.Kill()
	f.settle(l, f.settlement(f.request(), Admission{}, 0))
	lab.Eventually(t, 20*time.Second, func() bool { return l.unsettled.count() == 1 }, "redis is missed")
	server.Restart() // empty: nothing was persistent
	lab.Eventually(t, 10*time.Second, func() bool { return f.store.Ready(t.Context()) == nil }, "redis is back")
	for range 2 {
		l.repeatAcked()
		l.retry(t.Context())
	}
	if h := f.hash(f.month()); h["spent_nusd"] != "7" || h["requests"] != "1" {
		t.Fatalf("%v", h)
	}
	if l.unsettled.count() != 0 || f.logs.Count("charged in full") != 1 {
		t.Fatalf("%d wait, log %s", l.unsettled.count(), f.logs)
	}
}

func TestAckedIsBounded(t *testing.T) {
	t.Parallel()
	var a acked
	for i := range ackedMax + 10 {
		a.add(kept(i).Settlement, noon, true)
	}
	if kept := a.kept.all(); len(kept) != ackedMax || kept[0].RID != "r10" {
		t.Fatalf("%d from %s", len(kept), kept[0].RID)
	}
	a.add(kept(1).Settlement, noon.Add(ackedFor+time.Second), true)
	if len(a.kept.all()) != ackedMax {
		t.Fatal("forgot while redis fails")
	}
	a.add(kept(2).Settlement, noon.Add(ackedFor+time.Second), false)
	if n := a.kept.n; n != 2 || len(a.kept.pieces) > 2 || len(a.take()) != 2 || len(a.take()) != 0 {
		t.Fatalf("%d in %d pieces", n, len(a.kept.pieces))
	}
}

// TestLedgerAsksNoRedisThatIsAway: after three admissions without an answer the next is told so at once, and one in 250 ms asks.
func TestLedgerAsksNoRedisThatIsAway(t *testing.T) {
	t.Parallel()
	server := lab.Redis(t)
	f := newLedgers(t, server.URL(), 1)
	l := f.list[0]
	now := time.Now()
	l.cfg.Clock = func() time.Time { return now }
	server.Kill()
	for range trippedAfter {
		if _, err := l.Admit(f.pipes.Batch(), f.request()).Wait(t.Context()); err == nil || errors.Is(err, ErrNotAsked) {
			t.Fatalf("%v", err)
		}
	}
	b := f.pipes.Batch()
	if _, err := l.Admit(b, f.request()).Wait(t.Context()); !errors.Is(err, ErrNotAsked) || !errors.Is(err, pipeline.ErrUnavailable) || b.RoundTrips() != 0 {
		t.Fatalf("%v", err)
	}
	server.Restart()
	lab.Eventually(t, 10*time.Second, func() bool { return f.store.Ready(t.Context()) == nil }, "redis is back")
	f.do("HSET", ":key:k1", "id", "key_1")
	now = now.Add(probeEvery)
	for range 2 {
		if a, _ := f.admit(l, f.request()); a.Verdict != Admitted {
			t.Fatalf("%+v", a)
		}
	}
}
