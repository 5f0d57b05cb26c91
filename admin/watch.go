package admin

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

// watchEvery is the pace at which the replica looks at its own readiness, also when nobody asks.
const watchEvery = time.Second

// Watch logs changes of readiness and keeps them as metrics until ctx ends; it returns nil then. // A5
func (s *Server) Watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var before []string // names of what failed; nil: never looked
	for {
		before = s.look(ctx, before)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Fault is what Watch saw last: nil while the replica is ready. It does not block.
func (s *Server) Fault() error {
	switch failing := s.failing.Load(); {
	case s.draining.Load():
		return errors.New("draining")
	case failing == nil:
		return errors.New("starting")
	case len(*failing) > 0:
		return errors.New("not ready: " + strings.Join(*failing, ", "))
	}
	return nil
}

// look checks once, tells what is new against the names of before, and returns those of now.
func (s *Server) look(ctx context.Context, before []string) []string {
	limit, cancel := context.WithTimeout(ctx, max(checkTime, s.cfg.Watch))
	defer cancel()
	faults, warnings := s.faults(limit)
	if ctx.Err() != nil {
		return before
	}
	failing := slices.Sorted(maps.Keys(faults))
	if failing == nil {
		failing = []string{}
	}
	s.failing.Store(&failing)
	s.metrics.readiness(s.cfg.Checks, faults, warnings, s.draining.Load())
	switch {
	case before != nil && slices.Equal(before, failing):
	case s.draining.Load(): // the replica itself says that it leaves
	case len(failing) == 0:
		s.log.Info().Msg("ready")
	default:
		line, text := s.log.Warn(), "not ready"
		if before == nil {
			line, text = s.log.Info(), "not ready yet"
		}
		for _, name := range failing {
			line = line.Str(name, faults[name])
		}
		line.Msg(text)
	}
	return failing
}

// readiness files one look as metrics.
func (m *Metrics) readiness(checks []Check, faults, warnings map[string]string, draining bool) {
	ready := 1.0
	if len(faults) > 0 || draining {
		ready = 0
	}
	m.ready.Set(ready)
	for _, c := range checks {
		if _, moot := faults[c.Needs]; moot {
			m.checks.DeleteLabelValues(c.Name) // nothing is known of it
			continue
		}
		up := 1.0
		_, fails := faults[c.Name]
		if _, warns := warnings[c.Name]; fails || warns {
			up = 0
		}
		m.checks.WithLabelValues(c.Name).Set(up)
	}
}
