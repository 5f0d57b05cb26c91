package coordinator

import (
	"testing"
	"time"
)

// Who was cleared is not cleared again on the word of a beat that was sent before.
func TestBuriedOnceForWhatIsOld(t *testing.T) {
	t.Parallel()
	var b burying
	key, times := holdKey{"p", "dead"}, 0
	bury := func(asked time.Time) { b.start(key, asked, func() { times++ }); b.wait() }
	before := time.Now()
	bury(before)
	bury(before)
	if times != 1 {
		t.Errorf("cleared %d times", times)
	}
	bury(time.Now().Add(time.Millisecond))
	if times != 2 {
		t.Errorf("found dead again, cleared %d times", times)
	}
	b.start(holdKey{"p", "other"}, time.Now().Add(time.Second), func() {})
	b.wait()
	if len(b.now) != 1 {
		t.Errorf("%d are remembered", len(b.now))
	}
}
