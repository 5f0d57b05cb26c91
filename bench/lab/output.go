package lab

import (
	"strings"
	"sync"
)

// Output is what a process or a log has written; tests read it while it grows. The zero value is empty.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Count is how often text stands in it.
func (o *Output) Count(text string) int { return strings.Count(o.String(), text) }
