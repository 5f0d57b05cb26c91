package lex_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/headgate/headgate/gateway/protocol/lex"
)

// accepts reports whether b is one value by Value, and by a Cursor that steps into everything.
func accepts(b []byte) (value, cursor bool) {
	end, why := lex.Value(b, lex.Space(b, 0), 0)
	value = why == "" && lex.Space(b, end) == len(b)
	c := lex.Cursor{B: b}
	c.Start()
	walk(&c)
	return value, c.End()
}

func walk(c *lex.Cursor) {
	switch c.Peek() {
	case '{':
		for c.Enter(); c.Member(); {
			walk(c)
		}
	case '[':
		for c.Enter(); c.Item(); {
			walk(c)
		}
	default:
		c.Skip()
	}
}

var texts = []string{
	`{}`, `[]`, `null`, `true`, `false`, `0`, `-0`, `1.5e+10`, `""`, `"a\"b"`, `"\\"`, `{"a":[1,{"b":null}],"c":"d"}`, " {\t\"a\" :\r\n1 } ",
	``, ` `, `{`, `}`, `[`, `]`, `{]`, `[}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `[1,]`, `[,1]`, `[1 2]`, `{"a":1 "b":2}`, `{a:1}`, `{1:2}`,
	`01`, `-`, `1.`, `.5`, `1e`, `1e+`, `+1`, `0x1`, `NaN`, `Infinity`, `nul`, `nulll`, `tru`, `True`, `"a`, `"a\"`, `"a\\\"`, `'a'`, `1 1`, `{}{}`,
	"\uFEFF{}", "{\"a\":1}\x00", "\v1", `[1,2,[3,[4,[5,{"a":[]}]]]]`, `{"a":{"b":{"c":{}}}}`, `{"a":1}}`, `"\u12"`, `"\x"`,
}

func TestValueAgreesWithEncodingJSON(t *testing.T) { // I1
	for _, s := range texts {
		value, cursor := accepts([]byte(s))
		want := json.Valid([]byte(s)) || s == `"\u12"` || s == `"\x"` // the inside of strings is not judged
		if value != want || cursor != want {
			t.Errorf("%q: Value %v, Cursor %v, want %v", s, value, cursor, want)
		}
	}
	for _, open := range []string{"[", `{"a":`} {
		closing := map[string]string{"[": "]", `{"a":`: "}"}[open]
		for _, depth := range []int{63, 64, 65, lex.MaxDepth, lex.MaxDepth + 1, 100_000} {
			s := []byte(strings.Repeat(open, depth) + "1" + strings.Repeat(closing, depth))
			value, cursor := accepts(s)
			if want := depth <= lex.MaxDepth; value != want || cursor != want {
				t.Errorf("%d times %s: Value %v, Cursor %v", depth, open, value, cursor)
			}
		}
	}
}

// stringsAreClean reports whether encoding/json has nothing to object to inside the strings of b.
func stringsAreClean(b []byte) bool {
	for i := 0; i < len(b); i++ {
		if b[i] != '"' {
			continue
		}
		end := lex.String(b, i)
		if end < 0 {
			return true
		}
		if !json.Valid(b[i:end]) {
			return false
		}
		i = end - 1
	}
	return true
}

func FuzzValue(f *testing.F) { // I1, I3
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		value, cursor := accepts(b)
		if value != cursor {
			t.Fatalf("%q: Value %v, Cursor %v", b, value, cursor)
		}
		valid := json.Valid(b)
		if valid && !value && strings.Count(string(b), "{")+strings.Count(string(b), "[") <= lex.MaxDepth {
			t.Fatalf("%q is refused", b)
		}
		if value && !valid && stringsAreClean(b) {
			t.Fatalf("%q is accepted", b)
		}
	})
}

func TestNoAllocation(t *testing.T) { // I2
	b := []byte(`{"a":[` + strings.Repeat(`{"b":["x",1.5,null]},`, 1000) + `0]}`)
	if n := testing.AllocsPerRun(10, func() { accepts(b) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestInt(t *testing.T) {
	good := map[string]int64{"0": 0, "-0": 0, "12": 12, "-3": -3, "9223372036854775807": 9223372036854775807, "-9223372036854775807": -9223372036854775807}
	for s, want := range good {
		if n, ok := lex.Int([]byte(s)); !ok || n != want {
			t.Errorf("%s: %d %v", s, n, ok)
		}
	}
	for _, s := range []string{"", "-", "1.0", "1e2", "9223372036854775808", "99999999999999999999", "true"} {
		if _, ok := lex.Int([]byte(s)); ok {
			t.Errorf("%s is accepted", s)
		}
	}
}

func TestUnquoted(t *testing.T) {
	for raw, want := range map[string]lex.Decoding{
		`plain`: lex.Clean, `\"\\\/\b\f\n\r\t`: lex.Clean, `\u00e9\uD83D\uDE42`: lex.Clean, `日本`: lex.Clean,
		`\ud800`: lex.Lone, `\ud800x`: lex.Lone, `\udc00\ud800`: lex.Lone, `\ud800\ud800\udc00`: lex.Lone,
		`\x`: lex.Malformed, `\u12`: lex.Malformed, `\u12g4`: lex.Malformed, `\`: lex.Malformed, "a\nb": lex.Malformed,
	} {
		got, how := lex.AppendUnquoted(nil, []byte(raw))
		if how != want {
			t.Errorf("%s: %v", raw, how)
		}
		var std string
		if err := json.Unmarshal([]byte(`"`+raw+`"`), &std); (err == nil) != (how != lex.Malformed) || err == nil && std != string(got) {
			t.Errorf("%s: %q, encoding/json says %q, %v", raw, got, std, err)
		}
	}
}

func FuzzQuoted(f *testing.F) {
	f.Add("a\"\\\n\x00\x7f\u2028\xff日🙂")
	f.Fuzz(func(t *testing.T, s string) {
		q := lex.AppendQuoted(nil, s)
		var back string
		if err := json.Unmarshal(q, &back); err != nil {
			t.Fatalf("%q: %v", q, err)
		}
		if want := strings.ToValidUTF8(s, "\uFFFD"); utf8.ValidString(s) && back != want {
			t.Fatalf("%q became %q", s, back)
		}
		decoded, how := lex.AppendUnquoted(nil, q[1:len(q)-1])
		if how != lex.Clean || string(decoded) != back {
			t.Fatalf("%q decodes to %q", q, decoded)
		}
	})
}
