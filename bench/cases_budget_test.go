package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
	"github.com/headgate/headgate/coordinator"
)

func keyRecord(tenant, key string) string {
	return coordinator.KeyRecord(tenant, coordinator.HashKey(key))
}

func sorted(all []string) []string { slices.Sort(all); return all }

// moment is one burst of BUD-1: 40 requests of 320 micro-dollars at once, on a budget of 1,000.
type moment struct {
	forms    []form
	gateways int
	record   string // of the budget: "" = the key's own
	fields   []string
	more     []string // a member of the bodies
}

// TestBUD1_ABurstCannotOverspend: the case, and the same burst in each form, on a budget of each scope, and with several
// budgets and several forms at once (of one price held: a stream is also let in with less than its cap left). The backends
// hold what they got until the refusals are there: no refusal waits for anything.
func TestBUD1_ABurstCannotOverspend(t *testing.T) {
	t.Parallel()
	total := []string{"budget_usd", "0.001", "period", "total"}
	moments := map[string]moment{
		"the case": {forms: forms[:1], gateways: 2},
		"team":     {forms: forms[:2], gateways: 3, record: "team:search", fields: total},
		"user":     {forms: forms[:1], gateways: 3, record: "user:ann", fields: total},
		"tag":      {forms: forms[3:5], gateways: 3, record: "tag:night", fields: []string{"budget_usd", "0.001", "period", "day"}},
		"end user": {forms: forms[:3], gateways: 3, record: "enduser:bob", fields: []string{"budgets", "0.001/12h"}, more: []string{`"user":"bob"`}},
		"several":  {forms: forms[:2], gateways: 3, record: "team:search", fields: []string{"budget_usd", "1", "period", "day", "budgets", "0.001/week 5/30d"}},
		"tenant":   {forms: forms, gateways: 3, record: "tenant", fields: []string{"budget_usd", "0.001", "period", "month"}},
	}
	for _, f := range forms[1:] {
		moments[f.name] = moment{forms: []form{f}, gateways: 3}
	}
	for name, m := range moments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m.run(newLane(t, limits(t), 2, 64))
		})
	}
}

func (m moment) run(l *lane) {
	const all, budget, cost = 40, 1_000_000, 320_000 // nano-dollars
	policy := []string{"--models", l.model, "--team", "search", "--user", "ann"}
	if m.record == "" {
		policy = append(policy, "--budget", "0.001/month")
	}
	key, _, _ := l.named(policy...)
	if m.record != "" {
		l.policy(strings.TrimPrefix(m.record, "tenant"), m.fields...)
	}
	refused, open := make(chan struct{}, all), make(chan struct{})
	go func() { // 500 ms, as the case says, and longer while refusals are missing
		enough, held := time.After(patience), time.After(500*time.Millisecond)
		for range all - 3 {
			select {
			case <-refused:
			case <-enough:
			}
		}
		<-held
		close(open)
	}()
	l.playForms(m.forms, 10, 50, scripted.Until(open))
	replies := make([]reply, all)
	var wg sync.WaitGroup
	for i := range all {
		f := m.forms[i%len(m.forms)]
		wg.Go(func() {
			replies[i] = l.askAs(f, i%m.gateways, key, f.body(l.model, 50, m.more...), "X-Headgate-Tags: night", "X-Request-Id: "+l.id())
			if replies[i].Status == 429 {
				refused <- struct{}{}
			}
		})
	}
	wg.Wait()
	served, slowest := 0, time.Duration(0)
	for i, r := range replies {
		switch {
		case r.Status == 200:
			served++
		case !r.forMoney():
			l.t.Errorf("request %d: %d %s", i, r.Status, r.Body)
		default:
			slowest = max(slowest, r.ended.Sub(r.sent))
		}
	}
	l.t.Logf("%d served of %d; the slowest refusal took %v", served, all, slowest)
	if served < 2 || served > 3 || len(l.requests()) != served {
		l.t.Errorf("%d served, the backends saw %d", served, len(l.requests()))
	}
	lines := l.lines(all)
	if spent := l.books(); spent != int64(served*cost) || spent > budget {
		l.t.Errorf("spent %d for %d requests", spent, served)
	}
	for _, line := range lines {
		if line.Status == 429 && (line.Outcome != "rejected" || line.CostNUSD == nil || *line.CostNUSD != 0) || line.Status == 200 && line.UsageSource != "backend" {
			l.t.Errorf("%s", line.Raw)
		}
	}
}

// period is a budget that starts anew every 10 s and lets two requests pass. The case's is 100 micro-dollars for answers of 38;
// a team's is what two answers of 46 cost exactly, so that its refusals may be repeated from memory, until its end.
type period struct {
	*lane
	prompt          int    // tokens of an answer
	cost            int64  // of an answer, in nano-dollars
	key, id, record string // of the key
	scope           string // with its id, as in names of counters: whose budget it is
	began           time.Time
}

// periodOf makes the key. The budget is the key's own or its team's; both are made at the same moment.
func periodOf(l *lane, team bool) *period {
	p := &period{lane: l, prompt: 10, cost: 38_000}
	if team {
		p.prompt, p.cost = 14, 46_000
		p.key, p.id, p.record = l.named("--models", l.model, "--team", "search")
		p.scope, p.record = "team:search", "hg:{t:"+l.tenant+"}:team:search"
		l.redis.CLI("HSET", p.record, "budget_usd", "0.000092", "period", "10s")
	} else {
		p.key, p.id, p.record = l.named("--models", l.model, "--budget", "0.0001/10s")
		p.scope = "key:" + p.id
	}
	created, _ := strconv.ParseInt(l.redis.CLI("HGET", p.record, "created_at"), 10, 64)
	p.began = time.UnixMilli(created).Truncate(time.Second) // a period's start is a whole second
	return p
}

// end is the end of the period t lies in.
func (p *period) end(t time.Time) time.Time {
	const length = 10 * time.Second
	return p.began.Add((t.Sub(p.began)/length + 1) * length)
}

// counter is the spend counter of the period that ends then.
func (p *period) counter(end time.Time) string {
	return fmt.Sprintf("hg:{t:%s}:spend:%s:10s@%d", p.tenant, p.scope, end.Add(-10*time.Second).Unix())
}

func (p *period) in(end time.Time, field string) int64 {
	text := p.redis.CLI("HGET", p.counter(end), field)
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// TestBUD2_ThePeriodEndsForEveryoneAtOnce: the case on a key's budget and on a team's, in several forms.
func TestBUD2_ThePeriodEndsForEveryoneAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		team        bool
		short, late form
	}{
		"key":  {false, chatForm, forms[1]},
		"team": {true, forms[3], forms[4]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, limits(t), 2, 64)
			p := periodOf(l, c.team)
			l.playForm(c.short, p.prompt, 3)
			p.untilRefused(c.short)
			p.acrossTheEnd(c.short)
			l.settled()
		})
		t.Run(name+", a late stream", func(t *testing.T) {
			t.Parallel()
			l := newLane(t, limits(t), 2, 64)
			periodOf(l, c.team).lateStream(c.late)
			l.settled()
		})
	}
}

// untilRefused waits for a period that has just begun and spends it at the first gateway.
func (p *period) untilRefused(f form) {
	p.t.Helper()
	lab.Eventually(p.t, patience, func() bool { return time.Until(p.end(time.Now())) > 8*time.Second }, "a period begins")
	for i := 0; ; i++ {
		r := p.askAs(f, 0, p.key, f.body(p.model, 3))
		if r.Status == 429 {
			if i != 2 {
				p.t.Errorf("refused after %d", i)
			}
			return
		}
		if r.Status != 200 {
			p.t.Fatalf("%d %s", r.Status, r.Body)
		}
		p.settled()
	}
}

// acrossTheEnd asks two gateways every 200 ms until 3 s behind the period's end. No two moments lie so that one would be
// just before the end and the next more than 100 ms behind it.
func (p *period) acrossTheEnd(f form) {
	p.t.Helper()
	end := p.end(time.Now())
	spent, dies := p.in(end, "spent_nusd"), p.redis.CLI("PEXPIRETIME", p.counter(end))
	var mu sync.Mutex
	var replies []reply
	var wg sync.WaitGroup
	for at := end.Add(120 * time.Millisecond).Add(-time.Until(end).Truncate(200 * time.Millisecond)); at.Before(end.Add(3 * time.Second)); at = at.Add(200 * time.Millisecond) {
		time.Sleep(time.Until(at))
		for g := range 2 {
			wg.Go(func() {
				r := p.askAs(f, g, p.key, f.body(p.model, 3))
				mu.Lock()
				defer mu.Unlock()
				replies = append(replies, r)
			})
		}
		if at.Before(end.Add(-200*time.Millisecond)) && (p.in(end, "spent_nusd") != spent || p.redis.CLI("PEXPIRETIME", p.counter(end)) != dies) {
			p.t.Errorf("refusals changed the counter from %d to %d", spent, p.in(end, "spent_nusd"))
		}
	}
	wg.Wait()
	slices.SortFunc(replies, func(a, b reply) int { return a.sent.Compare(b.sent) })
	served := 0
	for _, r := range replies {
		switch {
		case r.Status == 200:
			served++
			if r.ended.Before(end) {
				p.t.Errorf("served %v before the end of a spent period", end.Sub(r.ended))
			}
		case !r.forMoney():
			p.t.Errorf("%d %s", r.Status, r.Body)
		case r.ended.Before(end): // whole seconds, rounded up; it was said some time between the two
			if most, least := up(end.Sub(r.sent)), up(end.Sub(r.ended)); r.secondsOf("Retry-After") > most || r.secondsOf("Retry-After") < least {
				p.t.Errorf("Retry-After: %s, %v to %v before the end", r.Header.Get("Retry-After"), end.Sub(r.sent), end.Sub(r.ended))
			}
		case r.sent.After(end.Add(100*time.Millisecond)) && served < 2:
			p.t.Errorf("refused %v after the end, when %d were served: %s", r.sent.Sub(end), served, r.Body)
		}
	}
	if served != 2 {
		p.t.Errorf("%d served after the end, want 2", served)
	}
	lab.Eventually(p.t, patience, func() bool { return p.in(p.end(end), "reserved_nusd") == 0 }, "nothing is reserved")
	if got := p.in(p.end(end), "spent_nusd"); got != 2*p.cost {
		p.t.Errorf("the new period has spent %d", got)
	}
}

// lateStream is admitted a second before a period's end and ends two seconds behind it.
func (p *period) lateStream(f form) {
	p.t.Helper()
	end := p.end(time.Now())
	if time.Until(end) < 2*time.Second || p.in(end, "spent_nusd") != 0 { // another period, with nothing spent in it
		end = end.Add(10 * time.Second)
	}
	whole := f.answer(p.prompt, 3)
	ready := make(chan struct{})
	script := append(append(slices.Clone(whole[:2]), scripted.Until(ready)), whole[2:]...)
	p.play(script)
	time.Sleep(time.Until(end.Add(-time.Second)))
	done := make(chan reply, 1)
	go func() { done <- p.askAs(f, 2, p.key, f.body(p.model, 3)) }()
	lab.Eventually(p.t, patience, func() bool { return p.in(end, "reserved_nusd") > 0 }, "it is admitted in the old period")
	if !time.Now().Before(end) {
		p.t.Fatal("admitted behind the end: the machine is too busy to say anything")
	}
	next := p.end(end)
	for time.Now().Before(end.Add(2 * time.Second)) {
		if n := p.in(next, "spent_nusd"); n != 0 {
			p.t.Errorf("the new period shows %d", n)
		}
		time.Sleep(50 * time.Millisecond)
	}
	close(ready)
	if r := <-done; r.Status != 200 || r.Err != nil {
		p.t.Errorf("%d %v %s", r.Status, r.Err, r.Body)
	}
	lab.Eventually(p.t, patience, func() bool { return p.in(end, "reserved_nusd") == 0 }, "it is settled")
	if old, now := p.in(end, "spent_nusd"), p.in(next, "spent_nusd"); old != p.cost || now != 0 || p.in(next, "reserved_nusd") != 0 {
		p.t.Errorf("the old period has spent %d, the new one %d", old, now)
	}
}

// up is whole seconds, rounded up.
func up(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
