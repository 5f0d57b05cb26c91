package cluster

import (
	"strconv"
	"time"

	"github.com/rs/zerolog"
)

// meter is one engine over all its readings by this replica. The zero value was never read.
type meter struct {
	host     string
	asked    time.Time
	asking   bool
	failures int // in a row
	last     exposition
	restarts []string // texts that are still to be published, one in each reading
}

// due reports whether the engine is to be asked now.
func (m *meter) due(now time.Time, every time.Duration) bool {
	if m.failures > 0 {
		every = min(readPause<<min(m.failures-1, 10), longestPause)
	}
	return !m.asking && now.Sub(m.asked) >= every-readEvery/2 // a tick that is a little early is the one meant // R3
}

// at says where the backend is now. At another address runs another process.
func (m *meter) at(host string) {
	if m.host != host {
		*m = meter{host: host, asking: m.asking, restarts: restarted(time.Now())}
	}
}

// take files an answer and reports whether requests ran there since the one before.
func (m *meter) take(b *Backend, said exposition, err error, log zerolog.Logger) (busy bool) {
	m.asking = false
	if err != nil {
		if m.failures++; m.failures == 1 {
			log.Warn().Err(err).Str("backend", b.ID).Msg("engine's load is not known: GET /metrics failed")
		}
		return false
	}
	if m.failures > 0 {
		m.failures = 0
		log.Info().Str("backend", b.ID).Msg("engine's load is known")
	}
	if said.promptTokens < m.last.promptTokens {
		m.restarts = restarted(time.Now())
	}
	busy = said.running+said.waiting > 0 || m.last.promptTokens > 0 && said.promptTokens != m.last.promptTokens
	m.last = said
	return busy
}

// restarted is what is published, in two readings, where an engine that does not say when it was started must have been
// started anew. The record counts a restart when a text follows another one, and may have none yet. Two readers that see
// it within 10 s mostly say the same; a restart counted twice costs little.
func restarted(now time.Time) []string {
	return []string{"fell", "fell-" + strconv.FormatInt(now.Unix()/10, 10)}
}

// started is what is known of the start of the process.
func (m *meter) started() string {
	switch {
	case m.last.started != "":
		return m.last.started
	case len(m.restarts) > 0:
		return m.restarts[0]
	}
	return ""
}

// published: the fleet knows what started said.
func (m *meter) published() {
	if len(m.restarts) > 0 {
		m.restarts = m.restarts[1:]
	}
}
