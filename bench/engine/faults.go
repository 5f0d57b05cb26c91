package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Kinds of Fault. A kind that is a number from 400 to 599 answers with that status and vLLM's error body. "Events" are the
// data events of a stream; an answer that is not streamed is broken half-way through its body instead.
const (
	Refuse          = "refuse"            // the port is closed and idle connections with it, until the fault is cleared
	CloseBeforeHead = "close_before_head" // the connection ends without a byte
	CloseAfterHead  = "close_after_head"  // the head, then the end of the connection
	Cut             = "cut"               // After events, then the connection ends (FIN) in mid-stream
	Reset           = "reset"             // the same with a reset (RST)
	HangBeforeHead  = "hang_before_head"  // no answer until the client leaves
	HangStream      = "hang_stream"       // After events, then nothing; the sequence keeps its slot until the client leaves
	ErrorEvent      = "error_event"       // After events, then vLLM's error event and [DONE], no usage
	NoUsage         = "no_usage"          // usage is left out although asked for
	NoDone          = "no_done"           // a proper end of the body without [DONE]
	Slow            = "slow"              // Delay before every event, or before the answer
	Garbage         = "garbage"           // After events (0: in place of the head) bytes that are not HTTP
	Unhealthy       = "unhealthy"         // GET /health answers 503, until the fault is cleared
)

// Fault is a failure on demand. It befalls the next Times generation requests (0 = all until it is cleared).
type Fault struct {
	Kind  string        `json:"kind"`
	After int           `json:"after,omitempty"` // events that still pass
	Times int           `json:"times,omitempty"`
	Delay time.Duration `json:"-"` // waited before the fault strikes; "delay" in JSON, as in Go ("150ms")
}

// SetFault replaces all faults; without arguments none is left. With several, the first that has not used up its Times
// befalls the next request; Refuse and Unhealthy act at once and beside the others.
func (e *Engine) SetFault(faults ...Fault) error {
	var list []*Fault
	refuse, unhealthy := false, false
	for _, f := range faults {
		switch f.Kind {
		case Refuse:
			refuse = true
		case Unhealthy:
			unhealthy = true
		default:
			if !knownKind(f.Kind) {
				return fmt.Errorf("engine: no fault %q", f.Kind)
			}
			list = append(list, &f)
		}
	}
	e.mu.Lock()
	e.faults, e.unhealthy = list, unhealthy
	hook := e.refuse
	e.mu.Unlock()
	if hook != nil {
		return hook(refuse)
	}
	if refuse {
		return fmt.Errorf("engine: fault %q needs a listener of its own: use Start", Refuse)
	}
	return nil
}

// takeFault returns what befalls this request; the zero Fault is none.
func (e *Engine) takeFault() Fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.faults) == 0 {
		return Fault{}
	}
	f := *e.faults[0]
	if f.Times > 0 {
		if e.faults[0].Times--; e.faults[0].Times == 0 {
			e.faults = e.faults[1:]
		}
	}
	return f
}

// status is the answer of a numeric kind, 0 for any other.
func (f Fault) status() int {
	if n, err := strconv.Atoi(f.Kind); err == nil {
		return n
	}
	return 0
}

func knownKind(kind string) bool {
	switch kind {
	case CloseBeforeHead, CloseAfterHead, Cut, Reset, HangBeforeHead, HangStream, ErrorEvent, NoUsage, NoDone, Slow, Garbage:
		return true
	}
	status := Fault{Kind: kind}.status()
	return status >= 400 && status < 600
}

// UnmarshalJSON reads "delay" as a duration.
func (f *Fault) UnmarshalJSON(data []byte) error {
	type plain Fault
	in := struct {
		*plain
		Delay string `json:"delay"`
	}{plain: (*plain)(f)}
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	var err error
	if in.Delay != "" {
		f.Delay, err = time.ParseDuration(in.Delay)
	}
	return err
}

// serveFaults is POST /sim/faults (one fault or a list; replaces all) and DELETE /sim/faults.
func (e *Engine) serveFaults(w http.ResponseWriter, r *http.Request) {
	var faults []Fault
	if r.Method == http.MethodPost {
		var raw json.RawMessage
		err := json.NewDecoder(r.Body).Decode(&raw)
		if err == nil && len(raw) > 0 && raw[0] == '{' {
			raw = append(append([]byte{'['}, raw...), ']')
		}
		if err == nil {
			err = json.Unmarshal(raw, &faults)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	if err := e.SetFault(faults...); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
