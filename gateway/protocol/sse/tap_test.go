package sse_test

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// run feeds the stream cut before each offset of cuts, and ends it.
func run(o sse.Options, stream []byte, cuts ...int) ([]byte, sse.End) {
	t := sse.NewTap(o)
	got := make([]byte, 0, len(stream))
	out := func(b []byte) {
		if len(b) == 0 {
			panic("an empty slice was handed on")
		}
		got = append(got, b...)
	}
	from := 0
	var room []byte
	for _, c := range append(cuts, len(stream)) {
		// A copy of its own, overwritten after: the tap must not keep it.
		room = append(room[:0], stream[from:c]...)
		t.Feed(room, out)
		for i := range room {
			room[i] = '#'
		}
		from = c
	}
	end := t.Close(out)
	end.ErrorBody = bytes.Clone(end.ErrorBody)
	return got, end
}

func events(t testing.TB, stream []byte) []sse.Event {
	r := sse.NewReader(bytes.NewReader(stream))
	var all []sse.Event
	for {
		e, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
}

// chunk writes E(x) and its relatives of the acceptance cases.
func chunk(choices, rest string) string {
	return `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m-small","choices":[` + choices + `]` + rest + "}\n\n"
}

func delta(x string) string {
	return `{"index":0,"delta":{"content":"` + x + `"},"finish_reason":null}`
}

const (
	finish = `{"index":0,"delta":{},"finish_reason":"stop"}`
	done   = "data: [DONE]\n\n"
)

func usage(p, c int) string {
	return fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, p, c, p+c)
}

var abc = chunk(delta("a"), "") + chunk(delta("b"), "") + chunk(delta("c"), "")

// variants are a stream with other line ends, and with a byte order mark.
func variants(stream []byte) [][]byte {
	lf := bytes.ReplaceAll(stream, []byte("\r\n"), []byte("\n"))
	mixed := make([]byte, 0, 2*len(lf))
	for i, line := range bytes.SplitAfter(lf, []byte("\n")) {
		if body, ended := bytes.CutSuffix(line, []byte("\n")); ended {
			line = append(bytes.Clone(body), []string{"\n", "\r\n", "\r", "\r"}[i%4]...)
		}
		mixed = append(mixed, line...)
	}
	return [][]byte{
		stream,
		bytes.ReplaceAll(lf, []byte("\n"), []byte("\r\n")),
		bytes.ReplaceAll(lf, []byte("\n"), []byte("\r")),
		append([]byte("\xEF\xBB\xBF"), mixed...),
	}
}

func TestLineEnds(t *testing.T) {
	stream := []byte(abc + chunk(finish, "") + chunk("", usage(10, 3)) + done)
	for v, s := range variants(stream) {
		if n := len(events(t, s)); n != 6 {
			t.Errorf("variant %d: the reader sees %d events", v, n)
		}
		got, end := run(sse.Options{Strip: true}, s)
		if end.Events != 6 || end.Texts != 3 || end.Usage.Prompt != 10 || len(events(t, got)) != 5 {
			t.Errorf("variant %d: %+v\n%q", v, end, got)
		}
	}
}

func TestEventReachesTheClientWithItsBlankLine(t *testing.T) {
	for v, s := range variants([]byte(chunk(delta("a"), "") + abc)) {
		for _, o := range []sse.Options{{}, {Strip: true}} {
			tap := sse.NewTap(o)
			first := events(t, s)[0].Data
			var got []byte
			for i := 0; i < len(s) && len(events(t, got)) == 0; i++ {
				tap.Feed(s[i:i+1], func(b []byte) { got = append(got, b...) })
				if tap.Started() && len(events(t, got)) == 0 {
					t.Fatalf("variant %d: the event ended at %d and was not handed on", v, i)
				}
			}
			if all := events(t, got); len(all) != 1 || all[0].Data != first || bytes.Count(got, []byte("data")) != 1 {
				t.Errorf("variant %d: %q", v, got)
			}
		}
	}
}

func TestStrip(t *testing.T) { // I3
	odd := func(data string) string { return "data: " + data + "\n\n" }
	cases := []struct{ name, in, want string }{
		{"last chunk", abc + chunk(finish, "") + chunk("", usage(10, 3)) + done, abc + chunk(finish, "") + done},
		{"on a choice", abc + chunk(finish, usage(10, 3)) + done, abc + chunk(finish, "") + done},
		{"null stays", chunk(delta("a"), `,"usage":null`) + chunk("", `,"usage":null`), chunk(delta("a"), `,"usage":null`) + chunk("", `,"usage":null`)},
		{"empty choices without usage", chunk("", ``) + abc, chunk("", ``) + abc},
		{"usage first", odd(`{"usage":{"prompt_tokens":1} , "choices":[{}]}`), odd(`{ "choices":[{}]}`)},
		{"usage alone", odd(`{"usage":{"prompt_tokens":1}}`), odd(`{"usage":{"prompt_tokens":1}}`)},
		{"in the middle", odd(`{"a":1, "usage":{"prompt_tokens":1}, "choices":[{}]}`), odd(`{"a":1, "choices":[{}]}`)},
		{"over lines", "data: {\"a\":1,\ndata: \"usage\":{\ndata: \"prompt_tokens\":1},\ndata: \"choices\":[0]}\n\n", "data: {\"a\":1,\ndata: \"choices\":[0]}\n\n"},
		{"with an error", odd(`{"choices":[],"error":{"a":1},"usage":{"prompt_tokens":1}}`), odd(`{"choices":[],"error":{"a":1}}`)},
		{"event name and id go too", "event: x\nid: 1\n" + chunk("", usage(1, 1)) + done, done},
		{"comments stay", ": a\n\n: b\n" + chunk("", usage(1, 1)) + ":c\n\n", ": a\n\n: b\n:c\n\n"},
		{"not JSON", odd(`{"choices":[},"usage":{"prompt_tokens":1}}`), odd(`{"choices":[},"usage":{"prompt_tokens":1}}`)},
		{"without its blank line", abc + strings.TrimSuffix(chunk("", usage(10, 3)), "\n\n"), abc},
		{"done without its blank line", abc + "data: [DONE]\n", abc + "data: [DONE]\n"},
	}
	for _, c := range cases {
		if got, _ := run(sse.Options{Strip: true}, []byte(c.in)); string(got) != c.want {
			t.Errorf("%s:\n%q\nwant\n%q", c.name, got, c.want)
		}
	}
}

func TestLongLines(t *testing.T) { // I5
	stream := chunk(delta("a"), "") + chunk(delta(strings.Repeat("x", 200_000)), "") +
		chunk(`{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"`+strings.Repeat(`\"y`, 5<<20/3)+`"}}]},"finish_reason":null}`, usage(10, 1)) +
		chunk(`{"index":0,"delta":{"content":"`+strings.Repeat(`z`, 1<<20)+`"},"finish_reason":"stop"}`, usage(10, 50000)) + done
	for _, o := range []sse.Options{{}, {Strip: true}} {
		tap := sse.NewTap(o)
		var got bytes.Buffer
		fed := 0
		for rest := []byte(stream); len(rest) > 0; {
			n := min(len(rest), 4096)
			tap.Feed(rest[:n], func(b []byte) { got.Write(b) })
			rest = rest[n:]
			if fed += n; fed-got.Len() > sse.MaxHeld+4096 {
				t.Fatalf("%d bytes held", fed-got.Len())
			}
		}
		end := tap.Close(func(b []byte) { got.Write(b) })
		if got.String() != stream {
			t.Error("the bytes changed")
		}
		if end.Usage.Completion != 50000 || end.Events != 5 || end.Texts != 4 || end.Finishes != 1 || !end.Done || end.TextBytes < 6<<20 {
			t.Errorf("%+v", end)
		}
		if o.Strip && end.Oversized != 2 {
			t.Errorf("%d oversized", end.Oversized)
		}
	}
	// A stream that never ends its line costs no memory either.
	for _, begin := range []string{`data: {"usage":{"a":"`, `data: {"error":"`, `data: {"response":{"id":"`, `data: {"`, `event: error`, `: `} {
		tap := sse.NewTap(sse.Options{Strip: true})
		tap.Feed([]byte(begin), func([]byte) {})
		piece := bytes.Repeat([]byte("x"), 64<<10)
		tap.Feed(piece, func([]byte) {})
		if n := testing.AllocsPerRun(100, func() { tap.Feed(piece, func([]byte) {}) }); n > 0 {
			t.Errorf("%s: %v allocations for each read of an endless line", begin, n)
		}
	}
}

func TestLargeUsage(t *testing.T) {
	for size, want := range map[int]int64{5 << 10: 3, sse.MaxHeld: 3, sse.MaxUsage - 200: 3, sse.MaxUsage: 0} {
		object := `"iterations":[` + strings.Repeat(`{"type":"message"},`, size/19) + `1]`
		for _, c := range []struct {
			o      sse.Options
			stream string
		}{
			{sse.Options{Strip: true}, chunk("", `,"usage":{"prompt_tokens":9,`+object+`,"completion_tokens":3}`)},
			{messages, start(`"input_tokens":9`) + messageDelta(object+`,"output_tokens":3`)},
			{responses, response("response.completed", "r", `{"input_tokens":9,"output_tokens":3,`+object+`}`)},
		} {
			if _, end := run(c.o, []byte(c.stream)); end.Usage.Completion != want {
				t.Errorf("%d bytes, %+v: %+v", size, c.o, end.Usage)
			}
		}
	}
}

func TestBrokenStream(t *testing.T) {
	whole := []byte(abc + chunk(finish, "") + chunk("", usage(10, 3)))
	for _, s := range variants(whole) {
		for cut := range s {
			for _, o := range []sse.Options{{}, {Strip: true}} {
				tap := sse.NewTap(o)
				var got []byte
				tap.Feed(s[:cut], func(b []byte) { got = append(got, b...) })
				end := tap.End()
				if again := tap.End(); !reflect.DeepEqual(again, end) {
					t.Fatalf("the second End differs: %+v, %+v", again, end)
				}
				got = sse.AppendBreak(got, end, protocol.StreamTruncated())
				all := events(t, got)
				last := all[len(all)-1].Data
				if !strings.Contains(last, "stream_truncated") || strings.Contains(last, "choices") {
					t.Fatalf("cut at %d, strip %v: the last event is %q", cut, o.Strip, last)
				}
			}
		}
	}
	// A usage that is whole is believed although its blank line is missing.
	tap := sse.NewTap(sse.Options{})
	tap.Feed(whole[:len(whole)-2], func([]byte) {})
	if end := tap.End(); end.Usage.Completion != 3 {
		t.Errorf("%+v", end)
	}
}

func TestReset(t *testing.T) {
	tap := sse.NewTap(sse.Options{Strip: true})
	tap.Feed([]byte(abc+`data: {"usage":{"prompt_tokens":1,`), func([]byte) {})
	tap.Reset(sse.Options{})
	fresh := sse.NewTap(sse.Options{})
	s := []byte("\xEF\xBB\xBF" + abc + chunk("", usage(1, 2)))
	tap.Feed(s, func([]byte) {})
	fresh.Feed(s, func([]byte) {})
	if a, b := tap.End(), fresh.End(); !reflect.DeepEqual(a, b) {
		t.Errorf("%+v\n%+v", a, b)
	}
}

func TestByteOrderMark(t *testing.T) {
	const mark = "\xEF\xBB\xBF"
	for stream, want := range map[string]int{
		mark + chunk(delta("a"), ""):                                1,
		mark + chunk(delta("a"), "") + mark + chunk(delta("a"), ""): 1, // the second is a field of another name
		mark + mark + chunk(delta("a"), ""):                         0,
		mark[:2] + chunk(delta("a"), ""):                            0,
		mark[:2] + "\n" + chunk(delta("a"), ""):                     1,
		mark + "\n" + chunk(delta("a"), ""):                         1,
	} {
		if _, end := run(sse.Options{}, []byte(stream)); end.Events != want || len(events(t, []byte(stream))) != want {
			t.Errorf("%q: %d events, the reader sees %d, want %d", stream[:20], end.Events, len(events(t, []byte(stream))), want)
		}
	}
}

func TestWholeEventsAreHandedOnInOnePiece(t *testing.T) {
	in := []byte(abc + abc + chunk(finish, "") + done)
	tap := sse.NewTap(sse.Options{Strip: true})
	calls := 0
	tap.Feed(in, func(b []byte) {
		if calls++; len(b) != len(in) || &b[0] != &in[0] {
			t.Errorf("%d of %d bytes, or a copy", len(b), len(in))
		}
	})
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
}
