package bench

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// TestABusyFleetSaysWhy: who finds the queue full, who waited too long and whom the engine turned away are told so, under one code.
func TestABusyFleetSaysWhy(t *testing.T) {
	t.Parallel()
	redis, e := lab.Redis(t), scripted.Start(t, "qwen")
	f := fleet.Start(t, fleet.Options{Redis: redis.URL(), Catalogue: prices,
		Env: []string{"HG_BACKENDS=qwen=http://" + e.Addr + ";slots=1;id=b1", "HG_QUEUE_LIMIT=1", "HG_QUEUE_WAIT=5s"}})
	s := &stack{redis: redis, Fleet: f}
	s.waitServed(t, f.Replicas[0], 1)
	key := f.Key("--tenant", "acme")
	ask := func(wanted int, text string) {
		t.Helper()
		a := fleet.Ask(t, f.Replicas[0].URL, key, fleet.Chat("qwen", "hi"))
		if a.Status != wanted || wanted == 503 && (!strings.Contains(a.Body, text) || !strings.Contains(a.Body, `"queue_full"`) || a.Header.Get("Retry-After") == "") {
			t.Errorf("%d %v %s, want %d with %q", a.Status, a.Header, a.Body, wanted, text)
		}
	}
	const busy = "All model servers are busy and none came free in time; try again shortly."
	e.Play(scripted.JSON(503, `{}`))
	ask(503, busy)

	done := make(chan struct{})
	e.Play(append(scripted.Script{scripted.Until(done)}, scripted.JSON(200, scripted.J(10, 3))...))
	holder, waiter := make(chan struct{}), make(chan struct{})
	go func() { defer close(holder); ask(200, "") }()
	lab.Eventually(t, patience, func() bool { return len(e.Requests()) == 2 }, "the only slot is taken")
	go func() { defer close(waiter); ask(503, busy) }()
	lab.Eventually(t, patience, func() bool { return redis.CLI("ZCARD", "hg:{p:qwen}:queue") == "1" }, "one waits")
	ask(503, "All model servers are busy and the queue is full; try again shortly.")
	<-waiter
	close(done)
	<-holder
}
