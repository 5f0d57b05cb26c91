package faults

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// run is a story of faults: what is built, what clients do, what happens when, and what may come of it.
type run struct {
	name string
	on   setup
	load load
	do   []step
	then time.Duration // traffic goes on so long after the last step; default 8 s
	may  []string      // ends of requests that are no fault of ours between the first step and 5 s after the last repair
	also []string      // ends that are none at any time
	// forgets: Redis loses what it had, so that its counters cannot agree with the records.
	forgets bool
	// crowds: engines may for a time have more requests than slots, because somebody lost count on purpose.
	crowds bool
	check  func(*testing.T, *world, *books) // further ones
}

// step is one thing that happens, at a time counted from the first second of traffic.
type step struct {
	at     time.Duration
	what   string
	do     func(*world)
	repair bool // what had failed is there again when do returns
}

// back is how soon after a repair the first good answer comes, and how long until no request fails any more.
const back = 5 * time.Second

// figures are what a run showed.
type figures struct {
	name                string
	asked, served, left int
	ends                map[string]int // of the requests that failed
	gap                 time.Duration  // the longest time without a good answer from the first step on
	firstGood           time.Duration  // from the last repair to the next good answer
	lastBad             time.Duration  // from the last repair to the begin of the last request that failed; negative: before it
	last                string         // that request
	quiet               time.Duration  // from the end of traffic until nothing was held
	unbilled, double    int
	difference          int64 // nano-dollars: Redis' counters less the records
	most                int   // requests at once on one engine
	above               time.Duration
	goroutines, memory  string
	excused             int           // requests that failed while this machine gave nobody a processor
	stall               time.Duration // the longest of those moments
	pressure            float64       // share of the time in which somebody waited for a processor
}

// play runs it and checks all invariants.
func (r run) play(t *testing.T) figures {
	t.Helper()
	w := newWorld(t, r.on)
	before := w.weights()
	machine := observe()
	d := w.drive(r.load)
	settled := time.Now().Add(time.Second)
	var first, repaired time.Time
	for _, s := range r.do {
		time.Sleep(time.Until(settled.Add(s.at)))
		at := time.Now()
		if first.IsZero() {
			first = at
		}
		t.Logf("%6.1f s  %s", at.Sub(settled).Seconds(), s.what)
		s.do(w)
		w.done[s.what] = time.Now()
		if s.repair {
			repaired = time.Now()
		}
	}
	if r.then == 0 {
		r.then = back + 3*time.Second
	}
	time.Sleep(r.then)
	last := time.Now()
	answers := d.end()
	machine.end()
	ended := time.Now()
	b, held := w.close(answers, ended)
	if held != nil {
		t.Errorf("%s after the end: %v", patience, held) // I3
	}
	f := r.judge(t, b, span{first, last}, repaired, machine)
	if !r.forgets {
		b.agree(t)
	}
	w.compare(t, before, &f)
	if r.check != nil {
		r.check(t, w, b)
	}
	f.print(t)
	if testing.Verbose() {
		t.Logf("whole answers by second, - where others ended otherwise: %s", timeline(answers, settled))
		for _, rep := range w.Replicas {
			t.Logf("%s said: %v", rep.Name, said(rep))
		}
	}
	return f
}

// timeline is how many answers were whole in each second, and how many (behind a minus) failed.
func timeline(answers []answer, from time.Time) string {
	good, bad := map[int]int{}, map[int]int{}
	last := 0
	for _, a := range answers {
		second := int(a.ended.Sub(from)/time.Second) + 1
		last = max(last, second)
		switch a.end {
		case whole:
			good[second]++
		case left:
		default:
			bad[second]++
		}
	}
	var text strings.Builder
	for second := range last + 1 {
		fmt.Fprintf(&text, " %d", good[second])
		if bad[second] > 0 {
			fmt.Fprintf(&text, "-%d", bad[second])
		}
	}
	return text.String()
}

// judge checks answers and books.
func (r run) judge(t *testing.T, b *books, trouble span, repaired time.Time, machine *stalls) figures {
	t.Helper()
	f := figures{name: r.name, asked: len(b.answers), ends: map[string]int{}, quiet: b.quiet, firstGood: -1, lastBad: -1, pressure: machine.pressure, stall: machine.longest()}
	first := trouble.from
	if repaired.IsZero() {
		repaired = first
	}
	var good []time.Time
	complaints := 0
	for _, a := range b.answers {
		switch {
		case a.end == whole:
			f.served++
			good = append(good, a.ended)
			if a.ended.After(repaired) && (f.firstGood < 0 || a.ended.Sub(repaired) < f.firstGood) {
				f.firstGood = a.ended.Sub(repaired)
			}
			continue
		case a.end == left:
			f.left++
			continue
		case a.tenant == tight && strings.HasSuffix(a.end, " insufficient_quota"):
			f.ends[a.end]++
			continue
		}
		during := a.ended.After(first) && a.began.Before(repaired.Add(back))
		allowed := slices.Contains(r.also, a.end) || during && slices.Contains(r.may, a.end)
		if !allowed && machine.around(span{a.began, a.ended}) {
			f.excused++
			continue
		}
		f.ends[a.end]++
		if !slices.Contains(r.also, a.end) {
			if after := a.began.Sub(repaired); after > f.lastBad {
				f.lastBad, f.last = after, fmt.Sprintf("%s by r%d, stream %v: %s after %v", a.id, a.replica+1, a.stream, a.end, a.ended.Sub(a.began))
			}
		}
		if !allowed { // I4
			if complaints++; complaints <= 5 {
				t.Errorf("%s by r%d (stream %v, long %v), begun %.1f s and ended %.1f s after the first step: %s %v %.300s",
					a.id, a.replica+1, a.stream, a.long, a.began.Sub(first).Seconds(), a.ended.Sub(first).Seconds(), a.end, a.err, a.text[max(0, len(a.text)-300):])
			}
		}
	}
	if complaints > 5 {
		t.Errorf("%d requests ended in a way they may not", complaints)
	}
	if len(r.do) > 0 && (f.firstGood < 0 || f.firstGood > back) {
		t.Errorf("the first good answer came %v after the last repair", f.firstGood)
	}
	slices.SortFunc(good, time.Time.Compare)
	for i := 1; i < len(good); i++ {
		if good[i].After(first) && good[i].Before(trouble.to) {
			f.gap = max(f.gap, good[i].Sub(good[i-1]))
		}
	}
	r.money(t, b, &f)
	for _, e := range b.w.engines {
		most, above := crowd(e.generations(), e.Slots)
		f.most, f.above = max(f.most, most), max(f.above, above)
	}
	if f.above > moment && !r.crowds { // I5
		t.Errorf("an engine with %d slots had up to %d requests, for %v in one piece", b.w.slots, f.most, f.above)
	}
	return f
}

// moment is how long the end of a request and the begin of the next may overlap on an engine: a client that left is noticed
// with the engine's next step.
const moment = 200 * time.Millisecond

func (r run) money(t *testing.T, b *books, f *figures) {
	t.Helper()
	a := b.audit()
	f.unbilled, f.double = len(a.unbilled), len(a.double)
	for what, list := range map[string][]string{"answered whole and not billed": a.unbilled, "billed twice": a.double,
		"not charged for what the record says": a.foreign, "worked on by an engine, and in no record": a.strange} {
		if len(list) > 0 {
			t.Errorf("%d requests %s: %v", len(list), what, list[:min(3, len(list))])
		}
	}
	for _, name := range []string{tenant, tight} {
		difference := b.spent[name] - b.billed[name]
		f.difference += difference
		if difference != 0 && !r.forgets { // I2
			t.Errorf("%s: Redis says %d nano-dollars were spent, the records %d", name, b.spent[name], b.billed[name])
		}
	}
	budget := int64(b.w.budget * 1e9)
	if b.spent[tight] > budget+b.over[tight] { // I6
		t.Errorf("%d nano-dollars spent of a budget of %d; the records say %d over", b.spent[tight], budget, b.over[tight])
	}
}

// weight is what a replica holds when nothing runs.
type weight struct {
	pid                int
	goroutines, memory float64
	files              int
}

func (w *world) weights() map[*fleet.Replica]weight {
	all := map[*fleet.Replica]weight{}
	for _, r := range w.Replicas {
		all[r] = weight{r.PID(), r.Metric("go_goroutines"), r.Metric("process_resident_memory_bytes"), files(r)}
	}
	return all
}

func files(r *fleet.Replica) int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.PID()))
	return len(entries)
}

// compare waits until each replica has about as many goroutines and open files as before the load. // I7
func (w *world) compare(t *testing.T, before map[*fleet.Replica]weight, f *figures) {
	t.Helper()
	const goroutines, open, memory = 30, 30, 128 << 20
	var counts, sizes []string
	for _, r := range w.Replicas {
		was, now := before[r], weight{}
		lab.Succeeds(t, 20*time.Second, func() error {
			now = weight{r.PID(), r.Metric("go_goroutines"), r.Metric("process_resident_memory_bytes"), files(r)}
			if now.goroutines == 0 || now.goroutines > was.goroutines+goroutines || now.files > was.files+open {
				return fmt.Errorf("%.0f goroutines and %d files, were %.0f and %d", now.goroutines, now.files, was.goroutines, was.files)
			}
			return nil
		}, "%s is back to where it was", r.Name)
		if now.memory > was.memory+memory {
			t.Errorf("%s has %.0f MB, had %.0f", r.Name, now.memory/1e6, was.memory/1e6)
		}
		counts = append(counts, fmt.Sprintf("%.0f→%.0f", was.goroutines, now.goroutines))
		sizes = append(sizes, fmt.Sprintf("%.0f→%.0f", was.memory/1e6, now.memory/1e6))
	}
	f.goroutines, f.memory = strings.Join(counts, " "), strings.Join(sizes, " ")
}

// print writes the run as a row of the table in docs/faults.md.
func (f figures) print(t *testing.T) {
	t.Helper()
	var ends []string
	for _, end := range slices.Sorted(maps.Keys(f.ends)) {
		ends = append(ends, fmt.Sprintf("%d × %s", f.ends[end], end))
	}
	if f.excused > 0 {
		ends = append(ends, fmt.Sprintf("%d while the machine stood still", f.excused))
	}
	if len(ends) == 0 {
		ends = []string{"none"}
	}
	if f.excused > 0 || f.pressure > 0.5 {
		t.Logf("%d requests failed while this machine stood still, for %v at most; processors were waited for in %.0f %% of the time: figures of time say little",
			f.excused, f.stall, 100*f.pressure)
	}
	if f.lastBad > time.Second {
		t.Logf("the last request that failed began %v after the last repair: %s", f.lastBad, f.last)
	}
	t.Logf("\nROW | %s | %d, %d | %s | %.1f | %.1f / %s | %d / %d / %d | %.1f | %d | %s | %s |", f.name, f.asked, f.served, strings.Join(ends, ", "),
		f.gap.Seconds(), f.firstGood.Seconds(), never(f.lastBad), f.unbilled, f.double, f.difference, f.quiet.Seconds(), f.most, f.goroutines, f.memory)
}

// never is a time in seconds, or a dash for one that is none.
func never(d time.Duration) string {
	if d < 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", d.Seconds())
}
