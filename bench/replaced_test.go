package bench

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// TestAReplacedBackendIsWaitedFor: Consul's list has the new backend in the place of the old. Until a replica has looked at
// it, here through 50 ms of network in each direction, nobody serves the model: requests wait for that look, none is refused.
func TestAReplacedBackendIsWaitedFor(t *testing.T) {
	t.Parallel()
	l := agentLane(t)
	l.b = []*scripted.Server{scripted.Start(t, l.model), scripted.Start(t, l.model)}
	far := lab.Relay(t, l.b[1].Addr, 50*time.Millisecond)
	_, port, _ := net.SplitHostPort(far.Addr)
	_, direct, _ := net.SplitHostPort(l.b[1].Addr)
	old := l.entry(0, "127.0.0.1", l.b[0])
	next := strings.Replace(l.entry(1, "127.0.0.1", l.b[1]), `"Port":`+direct, `"Port":`+port, 1)
	swap := make(chan struct{})
	consul := scriptAgent(t, func(_ int, q query) scripted.Script {
		switch q.index {
		case "5":
			return scripted.Script{scripted.Until(swap)}.Then(answered(6, next)...)
		case "6":
			return scripted.Script{scripted.Hang()}
		}
		return answered(5, old)
	})
	l.begin(consul, 1, 1)
	d := l.load(100, l.Replicas, func(i int) string { return fleet.Chat(l.model, fmt.Sprint("prompt ", i)) })
	lab.Eventually(t, patience, func() bool { return len(d.answered()) > 20 }, "the old one answers")
	close(swap)
	lab.Eventually(t, patience, func() bool { return len(l.b[1].Requests()) > 20 }, "the new one answers")
	d.end(t)
}
