package sse_test

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/sse"
)

func TestUsage(t *testing.T) { // I4
	cases := map[string]string{
		"last chunk":      abc + chunk(finish, "") + chunk("", usage(10, 3)) + done,
		"on the finish":   abc + chunk(finish, usage(10, 3)) + done,
		"running":         chunk(delta("a"), usage(10, 1)) + chunk(delta("b"), usage(10, 2)) + chunk(delta("c"), usage(10, 3)) + chunk(finish, usage(10, 3)) + done,
		"twice":           abc + chunk(finish, usage(10, 3)) + chunk("", usage(10, 3)) + done,
		"null afterwards": abc + chunk(finish, "") + chunk("", usage(10, 3)) + chunk("", `,"usage":null`) + done,
		"nonsense after":  abc + chunk(finish, usage(10, 3)) + chunk("", `,"usage":{"prompt_tokens":-1}`) + done,
		"in a text":       chunk(delta(`x\"usage\":{\"prompt_tokens\":9}`), "") + abc + chunk(finish, "") + chunk("", usage(10, 3)) + done,
		"two in an event": abc + chunk(finish, usage(9, 9)+usage(10, 3)) + done,
		"below the top":   abc + chunk(finish, usage(10, 3)+`,"x":{"usage":{"prompt_tokens":7}}`) + done,
	}
	want := protocol.Usage{Prompt: 10, Completion: 3, Source: protocol.Backend}
	for name, stream := range cases {
		for _, o := range []sse.Options{{}, {Strip: true}} {
			_, end := run(o, []byte(stream))
			if end.Usage != want || !end.Done || !end.Finished() || end.Finishes != 1 || end.Failed {
				t.Errorf("%s, strip %v: %+v", name, o.Strip, end)
			}
		}
	}
	if _, end := run(sse.Options{}, []byte(abc+chunk(finish, "")+done)); end.Usage.Source != protocol.None {
		t.Errorf("no usage: %+v", end)
	}
}

func TestErrors(t *testing.T) {
	for name, c := range map[string]struct{ stream, body string }{
		"object":  {abc + "data: {\"error\":{\"message\":\"no\"}}\n\n" + done, `{"message":"no"}`},
		"string":  {"data: {\"error\":\"Unauthorized\"}\n\n", `"Unauthorized"`},
		"number":  {"data: {\"error\":500}\n\n", ``},
		"old":     {"data: {\"object\":\"error\",\"message\":\"no\"}\n\n", ``},
		"named":   {"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"x\"}}\n\n", `{"type":"x"}`},
		"by name": {"event:error\r\ndata: {\"message\":\"no\"}\r\n\r\n", ``},
		"first":   {"data: {\"error\":{\"n\":1}}\n\ndata: {\"error\":{\"n\":2}}\n\n", `{"n":1}`},
		"too big": {"data: {\"error\":{\"m\":\"" + strings.Repeat("x", sse.MaxError) + "\"}}\n\n", ``},
	} {
		_, end := run(sse.Options{}, []byte(c.stream))
		if !end.Failed || end.Finished() || string(end.ErrorBody) != c.body {
			t.Errorf("%s: %+v %s", name, end, end.ErrorBody)
		}
	}
	if _, end := run(sse.Options{}, []byte(chunk(delta(`{\"error\":1}`), `,"error":null`))); end.Failed {
		t.Error("a null error is none")
	}
	for _, s := range []string{"event: error\n\n" + abc, "event:  error\n" + abc, "event: errors\n" + abc, "event:erro\n" + abc, "events: error\n" + abc, " event: error\n" + abc, "devent: error\n" + abc, "event: error"} {
		if _, end := run(sse.Options{}, []byte(s)); end.Failed {
			t.Errorf("no event of that name: %q", s)
		}
	}
}

func TestShapesChangeNothing(t *testing.T) { // I6
	tricky := []string{
		chunk(delta("a"), ""), chunk(delta(`b\\`), ""), chunk(delta(`c\"`), ""), chunk(delta(`\\\"d`), ""), chunk(delta(""), ""),
		chunk(delta(`","finish_reason":"stop"},{"x":"`), ""), strings.Replace(chunk(delta("xy"), ""), "xy", "x\ny", 1),
		strings.Replace(chunk(delta("xy"), ""), "xy", "x\ry", 1), chunk(delta("a"), "") + "\n", "\n", ": c\n", done, chunk(finish, ""),
		chunk(delta("z"), usage(1, 1)), chunk("", usage(1, 2)), chunk(delta("z"), `,"x_groq":{"usage":{"prompt_tokens":3}}`),
		textDelta("a"), textDelta(`b\"`), start(`"input_tokens":1`), messageDelta(`"output_tokens":2`), stop,
		"event: error\n" + chunk(delta("q"), ""), named("ping", `,"delta":"p"`), named("ping", `,"delta":"q"`), named("error", `,"delta":"r"`),
		response("response.created", "resp_1", "null"), named("response.completed", `,"delta":"x","response":{"id":"resp_2"}`),
		named("x", `,"delta":"x","response":{"id":"resp_3"}`), named("x", `,"delta":"yz","response":{"id":"resp_3"}`),
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 4000 {
		var s []byte
		var each []int
		for range 6 {
			s = append(s, tricky[rng.IntN(len(tricky))]...)
		}
		for i := range s { // fed byte by byte no shape ever matches
			each = append(each, i)
		}
		o := sse.Options{Strip: rng.IntN(2) == 0, Shape: protocol.Shape(rng.IntN(3))}
		got, end := run(o, s)
		slow, slowEnd := run(o, s, each...)
		if !bytes.Equal(got, slow) || !reflect.DeepEqual(end, slowEnd) {
			t.Fatalf("%+v %q\n%+v\n%+v", o, s, end, slowEnd)
		}
	}
}
