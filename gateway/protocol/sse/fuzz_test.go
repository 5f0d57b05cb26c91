package sse_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

// FuzzTap cuts any bytes in two places and compares with the bytes read whole (I1), holds the tap to I2 without Strip,
// and lets Reader and encoding/json judge what Strip took out (I3).
func FuzzTap(f *testing.F) {
	for _, r := range recordings(f) {
		s := withoutMiddle(r.stream)
		f.Add(s[:min(len(s), 3000)], uint16(10), uint16(900), uint8(r.options(false).Shape))
	}
	for _, s := range []string{
		abc + chunk(finish, "") + chunk("", usage(10, 3)) + done,
		chunk(finish, usage(10, 3)) + ": x\n\nevent: y\n" + chunk("", usage(1, 1)),
		"data:{\"usage\":{},\r\ndata: \"choices\":[]}\r\r\ndata\n\n",
		"\xEF\xBB\xBFdata: {\"choices\":[{}],\"usage\":{\"a\":\"\\\\\"}}\r\n\r\n",
	} {
		f.Add([]byte(s), uint16(3), uint16(200), uint8(0))
	}
	f.Fuzz(func(t *testing.T, stream []byte, a, b uint16, shape uint8) {
		x, y := int(a)%(len(stream)+1), int(b)%(len(stream)+1)
		for _, o := range []sse.Options{{}, {Strip: true}, {Whole: true}, {Shape: protocol.Shape(shape % 3)}} {
			whole, wholeEnd := run(o, stream)
			each := make([]int, 0, len(stream))
			for i := range stream {
				each = append(each, i)
			}
			for _, cuts := range [][]int{{min(x, y), max(x, y)}, each} {
				got, end := run(o, stream, cuts...)
				if !bytes.Equal(got, whole) || !reflect.DeepEqual(end, wholeEnd) {
					t.Fatalf("strip %v: cuts %v matter:\n%q\n%q\n%+v\n%+v", o.Strip, cuts, got, whole, end, wholeEnd)
				}
			}
			if !o.Strip && !bytes.Equal(whole, stream) {
				t.Fatal("bytes changed without Strip")
			}
			if o.Strip {
				judgeStrip(t, stream, whole, wholeEnd)
			}
		}
	})
}

// judgeStrip compares the events before and after: those that are valid JSON may only have lost their usage.
func judgeStrip(t *testing.T, before, after []byte, end sse.End) {
	left := events(t, after)
	for _, e := range events(t, before) {
		var v map[string]any
		valid := json.Unmarshal([]byte(e.Data), &v) == nil
		choices, hasChoices := v["choices"].([]any)
		usage, hasUsage := v["usage"].(map[string]any)
		if valid && hasChoices && hasUsage && len(choices) == 0 && v["error"] == nil &&
			(len(left) == 0 || left[0].Data != e.Data) {
			if end.Stripped == 0 {
				t.Fatalf("%q is gone", e.Data)
			}
			continue
		}
		if len(left) == 0 {
			if !valid && end.Stripped > 0 {
				continue
			}
			t.Fatalf("%q is gone", e.Data)
		}
		got := left[0].Data
		if got == e.Data {
			left = left[1:]
			continue
		}
		if !valid { // what Strip makes of almost-JSON is bounded by the byte invariants only
			return
		}
		var w map[string]any
		if json.Unmarshal([]byte(got), &w) != nil {
			t.Fatalf("%q became %q", e.Data, got)
		}
		delete(v, "usage")
		delete(w, "usage")
		if !hasUsage || usage == nil || !reflect.DeepEqual(v, w) {
			t.Fatalf("%q became %q", e.Data, got)
		}
		left = left[1:]
	}
}

func BenchmarkTap(b *testing.B) {
	ordinary := []byte(chunk(delta(" hello"), `,"system_fingerprint":null`))
	other := []byte(chunk(`{"index":1,"delta":{"content":" hello"},"finish_reason":null}`, ""))
	for name, chunks := range map[string][2][]byte{"same shape": {ordinary, ordinary}, "walked": {ordinary, other}} {
		b.Run(name, func(b *testing.B) {
			tap := sse.NewTap(sse.Options{Strip: true})
			out := func([]byte) {}
			b.SetBytes(int64(len(ordinary)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				tap.Feed(chunks[i&1], out)
			}
			if tap.Seen().Texts == 0 {
				b.Fatal("nothing learned")
			}
		})
	}
}
