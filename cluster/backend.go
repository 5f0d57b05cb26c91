package cluster

import (
	"slices"
	"sync/atomic"
	"time"
)

// Backend is one engine instance as it was known when its Pool was made. It is
// immutable; only what its methods return moves with the engine's health.
type Backend struct {
	ID         string
	Pool       string
	Scheme     string // http or https
	Host       string // host:port as a URL and a Host header have it, IPv6 in brackets
	Addr       string // host:port to dial
	BasePath   string // "" or /path, before every route
	Models     []string
	Slots      int
	CapacityMU int64 // MU per second; 0 = not said
	Hardware   string
	Priority   bool // the engine schedules by the request's priority
	Draining   bool // gets no new request

	critical   bool     // a Consul check says so
	probeCheck string   // the id of the check in Consul that probes keep; "" = none
	declared   []string // what it is registered for, whether the engine lists it or not
	maxLen     map[string]int64
	state      *state
}

// state is the part of a backend that moves; all snapshots of it share one. The
// zero value is out of use.
type state struct {
	up   atomic.Bool
	out  atomic.Bool  // all its readers found it unwell at its address; as the rounds say
	seen atomic.Int64 // Unix ms of the last good check
}

// Healthy reports whether the engine answered its last health checks, lists a
// model it is registered for, and is not out of use for the whole fleet. A
// backend just seen is not healthy before its first good check.
func (b *Backend) Healthy() bool {
	return b.state != nil && b.state.up.Load() && !b.state.out.Load() && len(b.Models) > 0
}

// Usable reports whether a new request may go there: healthy, not draining, no
// critical check in Consul.
func (b *Backend) Usable() bool { return !b.Draining && !b.critical && b.Healthy() }

// Critical reports whether a check in Consul is critical.
func (b *Backend) Critical() bool { return b.critical }

// Serves reports whether the backend lists the model.
func (b *Backend) Serves(model string) bool { return slices.Contains(b.Models, model) }

// MaxModelLen is the longest context of the model there, prompt and answer, in
// tokens; 0 = the engine did not say.
func (b *Backend) MaxModelLen(model string) int64 { return b.maxLen[model] }

// LastSeen is when the engine last answered a health check well; zero = never.
func (b *Backend) LastSeen() time.Time {
	if b.state == nil || b.state.seen.Load() == 0 {
		return time.Time{}
	}
	return time.UnixMilli(b.state.seen.Load())
}
