package protocol_test

import (
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
)

func TestTotalOf(t *testing.T) { // I3
	for body, want := range map[string]int64{
		`{"usage":{"total_tokens":7}}`: 7,
		` {"results":[{"usage":{"total_tokens":1}}],"usage":{"x":[],"total_tokens":0}}`: 0,
		`{"usage":null,"usage":{"total_tokens":3}}`:                                     3,
		`{"usage":{"total_tokens":1},"usage":{"total_tokens":3}}`:                       3,
	} {
		if n, ok := protocol.TotalOf([]byte(body)); !ok || n != want {
			t.Errorf("%s: %d %v, want %d", body, n, ok, want)
		}
	}
	for _, body := range []string{``, `[]`, `{}`, `{"usage":null}`, `{"usage":{}}`, `{"usage":{"total_tokens":null}}`, `{"usage":{"total_tokens":-1}}`,
		`{"usage":{"total_tokens":1.5}}`, `{"usage":{"total_tokens":1099511627777}}`, `{"usage":{"total_tokens":1}`, `{"usage":{"total_tokens":1}}x`,
		`{"total_tokens":1}`, `{"usage":{"total_tokens":1},"usage":{"total_tokens":"2"}}`} {
		if n, ok := protocol.TotalOf([]byte(body)); ok {
			t.Errorf("%s: %d", body, n)
		}
	}
}
