package sse_test

import (
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/headgate/headgate/gateway/protocol/sse"
)

func TestReader(t *testing.T) {
	cases := map[string]struct {
		in   string
		want []sse.Event
	}{
		"plain":             {"data: a\n\n", []sse.Event{{Data: "a"}}},
		"no space":          {"data:a\n\ndata:  b\n\n", []sse.Event{{Data: "a"}, {Data: " b"}}},
		"lines":             {"data: a\ndata\ndata: b\n\n", []sse.Event{{Data: "a\n\nb"}}},
		"empty data":        {"data\n\ndata:\n\n", []sse.Event{{}, {}}},
		"name and id":       {"event: x\nid: 1\ndata: a\n\ndata: b\n\n", []sse.Event{{Name: "x", ID: "1", Data: "a"}, {ID: "1", Data: "b"}}},
		"name without data": {"event: x\n\ndata: b\n\n", []sse.Event{{Data: "b"}}},
		"comment":           {": hi\n\n:\ndata: a\n: c\n\n", []sse.Event{{Data: "a"}}},
		"cr":                {"data: a\r\rdata: b\r\r", []sse.Event{{Data: "a"}, {Data: "b"}}},
		"crlf":              {"data: a\r\n\r\ndata: b\r\n\r\n", []sse.Event{{Data: "a"}, {Data: "b"}}},
		"mixed":             {"data: a\r\n\rdata: b\n\r\n", []sse.Event{{Data: "a"}, {Data: "b"}}},
		"mark":              {"\xEF\xBB\xBFdata: a\n\n", []sse.Event{{Data: "a"}}},
		"unknown":           {"foo: 1\nDATA: x\ndatas: y\ndata: a\n\n", []sse.Event{{Data: "a"}}},
		"unfinished":        {"data: a\n\ndata: b\n", []sse.Event{{Data: "a"}}},
		"long":              {"data: " + strings.Repeat("x", 1<<20) + "\n\n", []sse.Event{{Data: strings.Repeat("x", 1<<20)}}},
	}
	for name, c := range cases {
		for _, r := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
			reader := sse.NewReader(r)
			var got []sse.Event
			for {
				e, err := reader.Next()
				if err != nil {
					if err != io.EOF {
						t.Errorf("%s: %v", name, err)
					}
					break
				}
				got = append(got, e)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: %.200v", name, got)
			}
		}
	}
}
