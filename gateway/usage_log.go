package gateway

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/rs/zerolog"
)

// UsageLog appends one line of JSON per client request to a file or to standard output. Requests never wait for the
// disk: lines are collected and written by Run. It is safe for concurrent use.
type UsageLog struct {
	none    bool           // nothing is logged
	path    string         // "": not a file
	out     io.WriteCloser // of run's goroutine
	log     zerolog.Logger
	mu      sync.Mutex
	pending []byte
	lost    int // lines dropped since the last good write
	wake    chan struct{}
	swap    chan swap
	stop    chan struct{}
	done    chan struct{}
}

// swap is a file that takes the place of the one before it.
type swap struct {
	out  io.WriteCloser
	done chan error // of closing the one before
}

// maxPendingLines bounds what a stuck disk may hold in memory; beyond it lines are dropped and counted in the log.
const maxPendingLines = 64 << 20

// OpenUsageLog opens the log: "stdout", a path (appended to), or "" for none. Close writes what is left.
func OpenUsageLog(target string, log zerolog.Logger) (*UsageLog, error) {
	l := &UsageLog{log: log, wake: make(chan struct{}, 1), swap: make(chan swap), stop: make(chan struct{}), done: make(chan struct{})}
	switch target {
	case "":
		l.none = true
	case "stdout":
		l.out = keepOpen{os.Stdout}
	default:
		f, err := appendTo(target)
		if err != nil {
			return nil, err
		}
		l.path, l.out = target, f
	}
	go l.run()
	return l, nil
}

func appendTo(path string) (io.WriteCloser, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("usage log: %w", err)
	}
	return f, nil
}

// Reopen opens the path anew, for rotation by renaming: lines written so far are in the file as it was, later ones go to
// what the path names now. No line is lost or torn. When the path cannot be opened the old file stays in use. It does
// nothing for a log that is no file.
func (l *UsageLog) Reopen() error {
	if l.path == "" {
		return nil
	}
	f, err := appendTo(l.path)
	if err != nil {
		return err
	}
	s := swap{f, make(chan error, 1)}
	select {
	case l.swap <- s:
		return <-s.done
	case <-l.done:
		return errors.Join(errors.New("usage log: closed"), f.Close())
	}
}

type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// Write queues one record, a JSON object without a line end.
func (l *UsageLog) Write(record []byte) {
	if l.none {
		return
	}
	l.mu.Lock()
	if len(l.pending) < maxPendingLines {
		l.pending = append(append(l.pending, record...), '\n')
	} else {
		l.lost++
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close writes what is queued and closes the file. Write must not be called after it.
func (l *UsageLog) Close() error {
	close(l.stop)
	<-l.done
	if l.none {
		return nil
	}
	return l.out.Close()
}

func (l *UsageLog) run() {
	defer close(l.done)
	var spare []byte
	for {
		select {
		case <-l.wake:
			spare = l.flush(spare)
		case s := <-l.swap:
			spare = l.flush(spare)
			before := l.out
			l.out = s.out
			s.done <- before.Close()
		case <-l.stop:
			l.flush(spare)
			return
		}
	}
}

// flush writes everything pending in one call and returns the buffer for the next round.
func (l *UsageLog) flush(spare []byte) []byte {
	l.mu.Lock()
	lines, lost := l.pending, l.lost
	l.pending, l.lost = spare[:0], 0
	l.mu.Unlock()
	if len(lines) > 0 {
		if _, err := l.out.Write(lines); err != nil {
			l.log.Error().Err(err).Int("bytes", len(lines)).Msg("usage lines not written")
		}
	}
	if lost > 0 {
		l.log.Error().Int("lines", lost).Msg("usage lines dropped: the log is too slow")
	}
	if cap(lines) > 1<<20 {
		return nil
	}
	return lines[:0]
}
