package catalogue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

const (
	// pollEvery is how often the file is read. Reading some kilobytes a second
	// costs nothing and sees every way of replacing a file: written in place,
	// renamed over, a symbolic link moved.
	pollEvery = time.Second
	// settleTime is how long new content must stand still before it counts, so
	// that half a file being written is not taken for a shorter one.
	settleTime = 100 * time.Millisecond
	// settleTries is how often that is tried before the next tick's turn.
	settleTries = 20
	maxFile     = 16 << 20
)

// Store holds the current catalogue. It is safe for concurrent use.
type Store struct {
	path    string
	log     zerolog.Logger
	poll    time.Duration
	read    func() ([]byte, error)
	current atomic.Pointer[Catalogue]
	loaded  atomic.Pointer[Load]

	// Of Watch alone.
	seen   []byte // the content last judged, valid or not
	absent bool   // the file could not be read, and that was logged
}

// Load is how the file was read last.
type Load struct {
	At   time.Time // when the current catalogue was read; zero where there is no file
	Good bool      // what the file said last is what Current returns
}

// Open reads the catalogue at path; an empty path is an empty catalogue. The
// error is one line that names the file and all faults in it.
func Open(path string, log zerolog.Logger) (*Store, error) {
	s := &Store{path: path, log: log, poll: pollEvery}
	s.read = s.readFile
	s.current.Store(&Catalogue{})
	if path == "" {
		return s, nil
	}
	data, err := s.read()
	if err != nil {
		return nil, err
	}
	c, err := parseFile(data)
	if err != nil {
		return nil, fmt.Errorf("catalogue %s: %w", path, err)
	}
	s.seen = data
	s.current.Store(c)
	s.loaded.Store(&Load{At: time.Now(), Good: true})
	return s, nil
}

// NewStore holds a catalogue that comes from no file; Watch changes nothing.
func NewStore(c *Catalogue) *Store {
	if c == nil {
		c = &Catalogue{}
	}
	s := &Store{log: zerolog.Nop(), poll: pollEvery}
	s.current.Store(c)
	return s
}

// Current is the catalogue of now. It costs one atomic load; a request takes it
// once and keeps to it.
func (s *Store) Current() *Catalogue { return s.current.Load() }

// LastLoad is how the file was read last. Without a file it is good and of no time.
func (s *Store) LastLoad() Load {
	if l := s.loaded.Load(); l != nil {
		return *l
	}
	return Load{Good: true}
}

// Replace swaps the catalogue, as a changed file does.
func (s *Store) Replace(c *Catalogue) { s.current.Store(c) }

// Watch reloads the file when its content changes and on SIGHUP, until ctx
// ends; it returns nil then. Content that is not valid is logged once and
// changes nothing. (I3) SIGHUP is taken over even without a file, so that it
// never ends the process.
func (s *Store) Watch(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	tick := time.NewTicker(s.poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			s.check(ctx, true)
		case <-tick.C:
			s.check(ctx, false)
		}
	}
}

// check judges the file's content when it is new, or when somebody asked, and
// stands still.
func (s *Store) check(ctx context.Context, asked bool) {
	if s.path == "" {
		return
	}
	content, err := s.read()
	for range settleTries {
		if err != nil {
			s.complain(err, asked)
			return
		}
		asked, s.absent = asked || s.absent, false // one that was away is judged again
		if !asked && bytes.Equal(content, s.seen) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(settleTime, s.poll)):
		}
		before := content
		if content, err = s.read(); err == nil && bytes.Equal(before, content) {
			s.judge(content)
			return
		}
	}
}

// parseFile is Parse for a file. Content of nothing at all is a file somebody
// has just begun to write, or a wrong path, not a wish to serve no model.
func parseFile(content []byte) (*Catalogue, error) {
	if len(bytes.TrimSpace(content)) == 0 {
		return nil, errors.New("the file is empty (write models: {} for no models)")
	}
	return Parse(content)
}

// judge takes the content if it is valid.
func (s *Store) judge(content []byte) {
	s.seen = content
	c, err := parseFile(content)
	if err != nil {
		s.failed()
		s.log.Error().Str("file", s.path).Err(err).Msg("catalogue not reloaded: the last valid one stays")
		return
	}
	s.current.Store(c)
	s.loaded.Store(&Load{At: time.Now(), Good: true})
	s.log.Info().Str("file", s.path).Int("models", len(c.names)).Msg("catalogue reloaded")
}

// complain logs a file that cannot be read: once, or when somebody asked.
func (s *Store) complain(err error, asked bool) {
	if s.absent && !asked {
		return
	}
	s.absent = true
	s.failed()
	s.log.Error().Err(err).Msg("catalogue not reloaded: the last valid one stays")
}

func (s *Store) failed() { s.loaded.Store(&Load{At: s.LastLoad().At}) }

// readFile returns the file's content, at most maxFile bytes of it.
func (s *Store) readFile() ([]byte, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	if len(data) > maxFile {
		return nil, errors.New("catalogue " + s.path + ": more than 16 MiB")
	}
	return data, nil
}
