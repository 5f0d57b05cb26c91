package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// inUse asks every gateway five times a second in turning forms, and keeps the replies.
type inUse struct {
	*lane
	key     string
	mu      sync.Mutex
	replies []gatewayReply
	asking  sync.WaitGroup
	end     chan struct{}
}

type gatewayReply struct {
	reply
	gateway int
}

func keepAsking(l *lane, key string) *inUse {
	s := &inUse{lane: l, key: key, end: make(chan struct{})}
	for g := range l.Replicas {
		s.asking.Go(func() {
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				f := forms[i%len(forms)]
				r := s.askAs(f, g, key, f.body(l.model, 3))
				s.mu.Lock()
				s.replies = append(s.replies, gatewayReply{r, g})
				s.mu.Unlock()
				select {
				case <-tick.C:
				case <-s.end:
					return
				}
			}
		})
	}
	return s
}

// since are the replies to what was sent then or later.
func (s *inUse) since(at time.Time) (found []gatewayReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.replies {
		if !r.sent.Before(at) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b gatewayReply) int { return a.sent.Compare(b.sent) })
	return found
}

// becomes waits for an answer of that status at every gateway, and returns how long after at the last one of another
// status was sent.
func (s *inUse) becomes(status int, at time.Time) (took time.Duration) {
	s.t.Helper()
	lab.Eventually(s.t, 5*time.Second+patience, func() bool {
		there := map[int]bool{}
		for _, r := range s.since(at) {
			if r.Status == status {
				there[r.gateway] = true
			}
		}
		return len(there) == len(s.Replicas)
	}, "every gateway answers %d", status)
	for _, r := range s.since(at) {
		if r.Status != status {
			took = max(took, r.sent.Sub(at))
		}
	}
	return took
}

// TestKEY1_AChangeReachesEveryReplica: three gateways in inUse use and a 20 s stream, a key that is revoked, restored and
// limited: by the command line, by redis-cli, on the key, on its tenant.
func TestKEY1_AChangeReachesEveryReplica(t *testing.T) {
	t.Parallel()
	type change struct {
		revoke, restore, limit func(l *lane, record string)
	}
	cli := func(what ...string) func(l *lane, record string) {
		return func(l *lane, _ string) {
			l.Run(append([]string{"keys", "set", "k1", "--tenant", l.tenant}, what...)...)
		}
	}
	redis := func(what ...string) func(l *lane, record string) {
		return func(l *lane, record string) { l.redis.CLI(append([]string{what[0], record}, what[1:]...)...) }
	}
	changes := map[string]change{
		"by the command line": {cli("--disabled"), cli("--disabled=false"), cli("--rpm", "2")},
		"by redis-cli": {redis("HSET", "expires_at", "1000"), redis("HDEL", "expires_at"), func(l *lane, record string) {
			l.redis.CLI("HSET", record, "rpm", "0") // first none, then the tenant's 2
			l.policy("", "rpm", "2")
			l.redis.CLI("HDEL", record, "rpm")
		}},
	}
	var wg sync.WaitGroup
	for name, c := range changes { // beside each other in one test: they wait most of the time
		l := newLane(t, limits(t), 2, 64)
		key, _, record := l.named("--name", "k1", "--models", l.model, "--rpm", "100000")
		l.policy("", "rpm", "100000")
		l.playForms(forms, 10, 3)
		long := l.playLong(20)
		wg.Go(func() {
			s := keepAsking(l, key)
			defer s.asking.Wait()
			defer close(s.end)
			stream := make(chan reply, 1)
			go func() {
				stream <- s.askAs(forms[1], 0, key, fleet.Chat(l.model, long, `"stream":true`), "X-Request-Id: "+l.tenant+"-long")
			}()
			began := time.Now()
			s.becomes(200, began)

			revoked := time.Now()
			c.revoke(l, record)
			took := s.becomes(401, revoked)
			time.Sleep(time.Until(revoked.Add(15 * time.Second)))
			for _, r := range s.since(revoked.Add(5 * time.Second)) {
				if r.Status != 401 {
					t.Errorf("%s: %v after it was revoked gateway %d says %d %s", name, r.sent.Sub(revoked), r.gateway, r.Status, r.Body)
				}
			}
			t.Logf("%s: the last request that passed was sent %v after the change began", name, took)

			restored := time.Now()
			c.restore(l, record)
			if took := s.becomes(200, restored); took > 5*time.Second {
				t.Errorf("%s: still refused %v after it was restored", name, took)
			} else {
				t.Logf("%s: the last refusal was sent %v after it was restored", name, took)
			}

			lowered := time.Now()
			c.limit(l, record)
			if took := s.becomes(429, lowered); took > 5*time.Second {
				t.Errorf("%s: the old limit holds for %v", name, took)
			}
			if r := <-stream; r.Status != 200 || r.Err != nil || !strings.HasSuffix(r.Body, scripted.D) || r.ended.Sub(r.sent) < 19*time.Second {
				t.Errorf("%s: the open stream ends after %v: %d %v %q", name, r.ended.Sub(r.sent), r.Status, r.Err, r.Body)
			}
			s.twoAMinute(name, lowered)
		})
	}
	wg.Wait()
	for _, line := range limits(t).Lines() {
		if strings.HasSuffix(line.RequestID, "-long") && (line.Outcome != "ok" || line.CostNUSD == nil || *line.CostNUSD != 1000*(2*10+6*20)) {
			t.Errorf("%s", line.Raw)
		}
	}
}

// playLong has one prompt, which it returns, answered by a stream of that many seconds.
func (l *lane) playLong(seconds int) (prompt string) {
	script := scripted.Script{scripted.StreamHead()}
	for range seconds {
		script = append(script, scripted.Chunk(scripted.E("x")), scripted.Pause(time.Second))
	}
	script = script.Then(scripted.Chunk(scripted.F+scripted.U(10, seconds)+scripted.D), scripted.End())
	for _, b := range l.b {
		b.Answer(func(q *scripted.Request) scripted.Script {
			if strings.Contains(string(q.Body), `"a long one"`) {
				return script
			}
			return inForm(q)
		})
	}
	return "a long one"
}

// inForm answers in the form of the request, with usage 10/3.
func inForm(q *scripted.Request) scripted.Script {
	stream := strings.Contains(string(q.Body), `"stream":true`)
	for _, f := range forms {
		if f.path == q.Target && f.stream == stream {
			return f.answer(10, 3)
		}
	}
	return nil
}

// twoAMinute goes on until the minute of the old limit is over and two have passed again; from 5 s after the change on no
// 60 s hold more.
func (s *inUse) twoAMinute(name string, lowered time.Time) {
	passed := func() (at []time.Time) {
		for _, r := range s.since(lowered.Add(5 * time.Second)) {
			if r.Status == 200 {
				at = append(at, r.ended)
			}
		}
		return at
	}
	for time.Since(lowered) < 60*time.Second+patience && len(passed()) < 2 {
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(time.Second)
	at := passed()
	if len(at) < 2 {
		s.t.Errorf("%s: %d passed in the minute after", name, len(at))
	}
	for i := 2; i < len(at); i++ {
		if at[i].Sub(at[i-2]) < 59*time.Second {
			s.t.Errorf("%s: three passed within %v", name, at[i].Sub(at[i-2]))
		}
	}
}

const family = `models:
  fam/x: {price: {prompt: 2, completion: 6}}
  famz/x: {price: {prompt: 2, completion: 6}, aliases: [nick]}
  xfam/x: {price: {prompt: 2, completion: 6}}
  FAM/x: {price: {prompt: 2, completion: 6}}
  solo: {price: {prompt: 2, completion: 6}}
  solo2: {price: {prompt: 2, completion: 6}, aliases: [solo-nick]}
`

// TestKEY2_PatternsMatchWhatTheySay: the case on every route, and further lists; of a key, its team and its tenant all must
// let a model pass.
func TestKEY2_PatternsMatchWhatTheySay(t *testing.T) {
	t.Parallel()
	w := &world{redis: lab.Redis(t), consul: lab.Consul(t)}
	models := []string{"fam/x", "famz/x", "xfam/x", "FAM/x", "solo", "solo2"}
	var backends []string
	servers := map[string]*scripted.Server{}
	for i, m := range models {
		servers[m] = scripted.Start(t, m)
		backends = append(backends, m+"=http://"+servers[m].Addr+";slots=64;id=b"+strconv.Itoa(i))
	}
	w.Fleet = fleet.Start(t, fleet.Options{Replicas: 3, Redis: w.redis.URL(), Consul: w.consul.Addr, Catalogue: family,
		Env: []string{"HG_BACKENDS=" + strings.Join(backends, ",")}})
	for _, r := range w.Replicas {
		lab.Eventually(t, patience, func() bool { return r.Metric(`headgate_backends`) > 0 && healthyIn(r, models) }, "%s uses all backends", r.Name)
	}
	l := &lane{world: w, t: t, tenant: "acme"}
	for _, s := range servers {
		s.Answer(inForm)
	}
	others := []string{"famz/x", "xfam/x", "FAM/x", "solo2", "fam/", "fam", "Solo", "nick", "other", "SOLO", " solo", "fam%2fx", "*", "solo,fam/x"}
	for i, c := range []struct {
		key, team, tenant string
		served, missing   []string
		forbidden         []string
	}{
		{key: "fam/*,solo", served: []string{"fam/x", "solo"}, missing: []string{"fam/nope", "fam/*", "fam/x/y", "fam/x "}, forbidden: others},
		{key: "nick", forbidden: []string{"nick", "famz/x", "fam/x"}},
		{key: "nick,famz/x", served: []string{"nick", "famz/x"}, forbidden: []string{"fam/x", "solo"}},
		{key: "*/x", served: []string{"fam/x", "famz/x", "xfam/x", "FAM/x", "nick"}, missing: []string{"y/x"}, forbidden: []string{"/x", "solo", "fam/y"}},
		{key: "fam*", served: []string{"fam/x", "famz/x", "nick"}, missing: []string{"famous"}, forbidden: []string{"fam", "xfam/x", "FAM/x"}},
		{key: "s*o", served: []string{"solo"}, missing: []string{"s1o"}, forbidden: []string{"so", "solo2", "solo-nick"}},
		{key: "solo?,f.m/x,[a-z]*", forbidden: []string{"solo", "solo2", "fam/x"}},
		{team: "fam/*", served: []string{"fam/x"}, forbidden: []string{"solo", "other"}},
		{key: "*", team: "solo*", served: []string{"solo2", "solo-nick"}, missing: []string{"solos"}, forbidden: []string{"fam/x", "solo"}},
		{key: "fam/*,solo", tenant: "solo,famz/*", served: []string{"solo"}, forbidden: []string{"fam/x", "famz/x"}},
		{served: models, missing: []string{"other"}},
	} {
		l.tenant = fmt.Sprintf("acme%d", i)
		policy := []string{"--team", "search"}
		if c.key != "" {
			policy = append(policy, "--models", c.key)
		}
		key, _, _ := l.named(policy...)
		if c.team != "" {
			l.policy("team:search", "models", c.team)
		}
		if c.tenant != "" {
			l.policy("", "models", c.tenant)
		}
		for want, names := range map[int][]string{200: c.served, 404: c.missing, 403: c.forbidden} {
			for n, name := range names {
				for k, f := range forms {
					before := received(servers)
					r := l.askAs(f, n+k, key, f.body(name, 3))
					if r.Status != want {
						t.Errorf("key %q team %q tenant %q: %s as %s is %d, want %d: %s", c.key, c.team, c.tenant, name, f.name, r.Status, want, r.Body)
					}
					if reached := received(servers) - before; reached != map[int]int{200: 1}[want] {
						t.Errorf("%s: %d requests reached backends", name, reached)
					}
				}
			}
		}
		if i == 0 {
			list := ask(t, "GET", w.Replicas[1].URL+"/v1/models", key, "")
			var shown []string
			for _, m := range decodeAnswer(t, list)["data"].([]any) {
				shown = append(shown, m.(map[string]any)["id"].(string))
			}
			if slices.Sort(shown); fmt.Sprint(shown) != "[fam/x solo]" {
				t.Errorf("/v1/models shows %v", shown)
			}
		}
	}
}

func healthyIn(r *fleet.Replica, pools []string) bool {
	for _, p := range pools {
		if r.Metric(`headgate_backends{pool="`+p+`",state="healthy"}`) != 1 {
			return false
		}
	}
	return true
}

func received(servers map[string]*scripted.Server) (n int) {
	for _, s := range servers {
		n += len(s.Requests())
	}
	return n
}
