package engine

import (
	"net/http"
	"sync"
	"time"
)

// Seen is one generation request as the engine saw it.
type Seen struct {
	Time       time.Time // when it was read
	Path       string
	RequestID  string // X-Request-Id
	Host       string
	Header     http.Header
	Body       []byte    // as received; nil when it had to make room for later ones
	FirstToken time.Time // zero = none yet
	Ended      time.Time // zero = still open
	Outcome    string    // "" while open, then "ok", "abort" (the client left), "rejected" (refused as invalid or full), or the kind of the fault
	Status     int       // 0 = no head was sent
	Prompt     int       // tokens
	Cached     int
	Output     int // tokens generated when it ended, over all choices
}

const (
	seenRequests = 8192
	seenBytes    = 64 << 20 // of bodies
)

// seenLog keeps the latest requests in arrival order.
type seenLog struct {
	mu      sync.Mutex
	entries []*Seen
	bytes   int
	noBody  int // entries[:noBody] have lost their bodies
}

func (l *seenLog) add(r *http.Request, body []byte) *Seen {
	s := &Seen{Time: time.Now(), Path: r.URL.Path, RequestID: r.Header.Get("X-Request-Id"), Host: r.Host,
		Header: r.Header.Clone(), Body: body}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == seenRequests {
		l.bytes -= len(l.entries[0].Body)
		l.entries[0] = nil
		l.entries = l.entries[1:]
		l.noBody = max(0, l.noBody-1)
	}
	l.entries = append(l.entries, s)
	for l.bytes += len(body); l.bytes > seenBytes && l.noBody < len(l.entries)-1; l.noBody++ {
		l.bytes -= len(l.entries[l.noBody].Body)
		l.entries[l.noBody].Body = nil
	}
	return s
}

// update changes an entry under the lock.
func (l *seenLog) update(s *Seen, change func(*Seen)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(s)
}

func (l *seenLog) all() []Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Seen, len(l.entries))
	for i, s := range l.entries {
		out[i] = *s
	}
	return out
}
