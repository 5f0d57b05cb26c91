package sse

import (
	"bufio"
	"io"
	"strings"
)

// Event is one event as the standard dispatches it.
type Event struct {
	Name string // of the field event; empty = message
	ID   string // the last id seen, also in an earlier event
	Data string // the data lines, joined by LF
}

// Reader parses an event stream by the standard, with lines of any length. It is meant for clients and tests: it
// copies.
type Reader struct {
	r       *bufio.Reader
	id      string
	begun   bool
	afterCR bool // an LF now belongs to the line before
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReader(r)} }

// Next returns the next event that has data. At the end of the stream it returns io.EOF; an event that was not ended
// by a blank line is dropped, as the standard says.
func (r *Reader) Next() (Event, error) {
	var e Event
	var data []string
	for {
		line, err := r.line()
		if err != nil {
			return Event{}, err
		}
		if line == "" {
			if len(data) == 0 {
				e.Name = ""
				continue
			}
			e.ID, e.Data = r.id, strings.Join(data, "\n")
			return e, nil
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "event":
			e.Name = value
		case "data":
			data = append(data, value)
		case "id":
			if !strings.Contains(value, "\x00") {
				r.id = value
			}
		}
	}
}

// line returns the next line that was ended, without its end.
func (r *Reader) line() (string, error) {
	if !r.begun {
		r.begun = true
		if b, err := r.r.Peek(len(byteOrder)); err == nil && string(b) == byteOrder {
			_, _ = r.r.Discard(len(byteOrder))
		}
	}
	var line []byte
	for {
		c, err := r.r.ReadByte()
		if err != nil {
			return "", err
		}
		afterCR := r.afterCR
		r.afterCR = false
		switch c {
		case '\n':
			if afterCR {
				continue
			}
			return string(line), nil
		case '\r':
			r.afterCR = true // the LF may come later, the line must not
			return string(line), nil
		}
		line = append(line, c)
	}
}
