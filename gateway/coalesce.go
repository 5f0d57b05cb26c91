package gateway

import (
	"context"
	"sync"

	"github.com/headgate/headgate/coordinator"
)

// flights are the cacheable requests this replica has sent to a backend and not seen answered, by tenant and hash. Of
// equal requests in flight one leads; the others follow and share its answer.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

// flight is one request others may follow.
type flight struct {
	done   chan struct{}
	answer *coordinator.Answer // nil: nothing to share; read it when done is closed
}

// join makes the caller the leader of name, or gives it the flight to follow. A leader lands, whatever happens to it.
func (f *flights) join(name string) (lead, follow *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if running, ok := f.all[name]; ok {
		return nil, running
	}
	if f.all == nil {
		f.all = map[string]*flight{}
	}
	lead = &flight{done: make(chan struct{})}
	f.all[name] = lead
	return lead, nil
}

// land shares answer with those who follow; nil lets each go its own way. Who comes later leads anew.
func (f *flights) land(name string, lead *flight, answer *coordinator.Answer) {
	f.mu.Lock()
	delete(f.all, name)
	f.mu.Unlock()
	lead.answer = answer
	close(lead.done)
}

// wait is the leader's answer, nil if it has none to share, or ctx's error.
func (f *flight) wait(ctx context.Context) (*coordinator.Answer, error) {
	select {
	case <-f.done:
		return f.answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
