package lab

import (
	"testing"
	"time"
)

func TestConsulPairHasNoLeaderWhileOneIsFrozen(t *testing.T) {
	t.Parallel()
	p := ConsulPair(t)
	p.Other.Stop()
	Eventually(t, 30*time.Second, func() bool { return p.Leader() != nil }, "the leader is lost")
	if _, err := p.Asked.get("/v1/catalog/nodes"); err == nil {
		t.Error("a server without a leader answers a consistent read")
	}
	p.Other.Cont()
	Succeeds(t, 30*time.Second, p.Leader, "there is a leader again")
}
