package sse_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol/sse"
)

// TestWholeEvents: a stream broken off anywhere has been handed on up to the last event that ended, and an error event
// behind it is read as one of its own.
func TestWholeEvents(t *testing.T) { // I7
	for v, s := range variants([]byte(": hello\n\n" + abc + ": ping\n\n" + chunk(finish, "") + chunk("", usage(10, 3)) + done)) {
		all := events(t, s)
		for cut := range s {
			for from := max(0, cut-2); from <= cut; from++ { // the last bytes in a read of their own
				tap := sse.NewTap(sse.Options{Whole: true})
				var got []byte
				out := func(b []byte) { got = append(got, b...) }
				tap.Feed(s[:from], out)
				tap.Feed(s[from:cut], out)
				end := tap.Seen()
				if !bytes.HasPrefix(s, got) || end.Unfinished != 0 {
					t.Fatalf("variant %d, cut at %d: %q is handed on, %d bytes of an event", v, cut, got, end.Unfinished)
				}
				if n := len(events(t, got)); n != end.Events {
					t.Fatalf("variant %d, cut at %d: %d events are handed on, %d have ended", v, cut, n, end.Events)
				}
				broken := events(t, append(got, "data: broken\n\n"...))
				if n := len(broken) - 1; broken[n].Data != "broken" || n > 0 && broken[n-1] != all[n-1] {
					t.Fatalf("variant %d, cut at %d: the client sees %q", v, cut, broken)
				}
			}
		}
	}
	long := chunk(delta(strings.Repeat("x", 2*sse.MaxHeld)), "")
	tap := sse.NewTap(sse.Options{Whole: true})
	handed := 0
	tap.Feed([]byte(abc+long[:sse.MaxHeld+100]), func(b []byte) { handed += len(b) })
	if end := tap.Seen(); handed != len(abc)+sse.MaxHeld+100 || end.Unfinished != sse.MaxHeld+100 {
		t.Errorf("of an event that is too large to wait for: %d handed on, %d unfinished", handed, end.Unfinished)
	}
}

func TestFruitless(t *testing.T) {
	const fault = `data: {"error":{"message":"x"}}` + "\n\n"
	for stream, want := range map[string]bool{
		fault:              true,
		fault + done:       true,
		": x\n\n" + fault:  true,
		abc + fault:        false,
		abc:                false,
		fault + abc:        true,
		chunk(finish, ""):  false,
		fault + abc + done: true,
	} {
		if _, end := run(sse.Options{}, []byte(stream)); end.Fruitless != want {
			t.Errorf("%q: %v", stream, end.Fruitless)
		}
	}
	created := "event: response.created\n" + `data: {"type":"response.created","response":{"id":"r"}}` + "\n\n"
	if _, end := run(responses, []byte(created+`data: {"type":"error","message":"x"}`+"\n\n")); !end.Fruitless {
		t.Errorf("behind an event that says nothing was generated: %+v", end)
	}
}
