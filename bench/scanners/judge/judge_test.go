//go:build goexperiment.jsonv2

package judge

import (
	"bytes"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol"
	"github.com/headgate/headgate/gateway/protocol/lex"
	"github.com/headgate/headgate/gateway/protocol/scan"
)

var routes = []scan.Route{scan.Chat, scan.Completions, scan.Responses, scan.Messages, scan.Embeddings, scan.Tokens}

// verdict is what jsontext says of a body.
type verdict struct {
	object   bool   // it begins like an object
	valid    bool   // it is one JSON value in UTF-8, whatever stands in its strings
	repaired []byte // the body with everything that only jsontext objects to in strings replaced by ~, byte for byte
	depth    int    // containers open at once, up to the fault
}

// judge reads the body with jsontext. What jsontext refuses inside a string (difference 1) is replaced and read again, so
// that what stands behind it is judged too. None of the replacements moves a string's end: an escape that is not one
// cannot be one of a quote or a backslash.
func judge(t *testing.T, body []byte) verdict {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	v := verdict{object: len(trimmed) > 0 && trimmed[0] == '{', repaired: bytes.Clone(body)}
	for range len(body) + 1 {
		d := jsontext.NewDecoder(bytes.NewReader(v.repaired), jsontext.AllowDuplicateNames(true))
		var err error
		values := 0
		for err == nil {
			if d.StackDepth() == 0 {
				values++
			}
			_, err = d.ReadToken()
			v.depth = max(v.depth, d.StackDepth())
		}
		if err == io.EOF {
			v.valid = values == 2 // the second was the end
			return v
		}
		var fault *jsontext.SyntacticError
		if !errors.As(err, &fault) || !v.repair(fault) {
			return v
		}
	}
	t.Fatalf("%q: no end of repairs", body)
	return v
}

// repair reports whether the fault lies inside a string and could be replaced.
func (v *verdict) repair(fault *jsontext.SyntacticError) bool {
	at := int(fault.ByteOffset)
	if at < 0 || at >= len(v.repaired) {
		return false
	}
	what := fault.Err.Error()
	switch {
	case strings.Contains(what, "escape sequence"), strings.Contains(what, "surrogate"):
		if v.repaired[at] != '\\' {
			return false
		}
	case strings.Contains(what, "in string") && v.repaired[at] < ' ':
	default:
		return false
	}
	v.repaired[at] = '~' // in no name that anybody acts on: a repair must not make one
	return true
}

// fields is what the gateway acts on, as a reader that lets the last of several names win finds it.
type fields struct {
	Model    string         `json:"model"`
	User     *string        `json:"user"`
	Stream   *bool          `json:"stream"`
	Max      *int64         `json:"max_tokens"`
	MaxChat  *int64         `json:"max_completion_tokens"`
	MaxOut   *int64         `json:"max_output_tokens"`
	N        *int64         `json:"n"`
	BestOf   *int64         `json:"best_of"`
	Priority *int64         `json:"priority"`
	Options  jsontext.Value `json:"stream_options"`
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":7,"n":2,"messages":[{"role":"user","content":"a"}]}`,
		`{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:x"}}]},null,[]],"tools":[{}]}`,
		`{"model":"m","mod\u0065l":"n"}`, `{"model":"m","model":"n"}`, `{"model":"m","x":{"a":1,"a":2}}`, `{"model":"m","x":"\q \ud800 \u12"}`,
		"{\"model\":\"m\",\"x\":\"\x01\"}", "{\"model\":\"m\",\"x\":\"\xff\"}", "\uFEFF{}", `{"model":"m"} {}`, `{"model":"m","n":1e2}`,
		`{"model":"\u00e9\ud83d\ude00","user":null,"priority":-3,"max_tokens":18446744073709551616}`, `{"model":"m","input":["a",[1,2]],"max_output_tokens":3}`,
		`{"model":"m","x":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, `{"model":"m","x":[1 2]}`, `{"model":"m","x":01}`, `{"model":"m",}`, ` { } `, `[]`, ``,
	} {
		for r := range routes {
			f.Add([]byte(s), uint8(r))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, to uint8) {
		route := routes[int(to)%len(routes)]
		b, fault := scan.Scan(body, route)
		v := judge(t, body)
		switch {
		case fault == nil:
			accepted(t, body, b, v)
		case fault.Code == protocol.CodeInvalidJSON:
			refused(t, body, fault, v)
		case fault.Code == protocol.CodeInvalidField: // the text may be broken behind the field
			if !v.object {
				t.Fatalf("%q: %+v", body, fault)
			}
		default:
			t.Fatalf("%q: %+v", body, fault)
		}
		if fault != nil && (fault.Offset < 0 || fault.Offset > len(body)) {
			t.Fatalf("%q: %+v", body, fault)
		}
	})
}

// accepted: what the scanner takes is one JSON object to jsontext, and both read the same in it.
func accepted(t *testing.T, body []byte, b scan.Body, v verdict) {
	if !v.valid || !v.object || v.depth > lex.MaxDepth {
		t.Fatalf("%q is accepted: %+v", body, v)
	}
	var f fields
	err := jsonv2.Unmarshal(v.repaired, &f, jsontext.AllowDuplicateNames(true))
	if err != nil {
		f = fields{} // a field this route does not act on has another type: judge it alone
		var model struct {
			Model string `json:"model"`
		}
		if err := jsonv2.Unmarshal(v.repaired, &model, jsontext.AllowDuplicateNames(true)); err != nil || model.Model != b.Model {
			t.Fatalf("%q: model %q, judged %q, %v", body, b.Model, model.Model, err)
		}
		return
	}
	if f.Model != b.Model || b.Model == "" {
		t.Fatalf("%q: model %q, judged %q", body, b.Model, f.Model)
	}
	same := func(name string, read int64, judged *int64, absent int64) {
		if want := or(judged, absent); read != want && read != absent { // a route that does not act on it leaves it absent
			t.Fatalf("%q: %s %d, judged %d", body, name, read, want)
		}
	}
	same("max_tokens", b.MaxTokens, f.Max, -1)
	same("max_completion_tokens", b.MaxCompletionTokens, f.MaxChat, -1)
	same("max_output_tokens", b.MaxOutputTokens, f.MaxOut, -1)
	same("n", b.N, f.N, 1)
	same("best_of", b.BestOf, f.BestOf, 1)
	same("priority", b.Priority, f.Priority, 0)
	if generates := b.Route.Generates(); generates && b.Stream != or(f.Stream, false) || b.User != "" && b.User != or(f.User, "") {
		t.Fatalf("%q: stream %v, user %q: judged %v, %q", body, b.Stream, b.User, or(f.Stream, false), or(f.User, ""))
	}
	if b.Route == scan.Chat && b.N != or(f.N, 1) || (b.Route == scan.Chat || b.Route == scan.Messages) && b.MaxTokens != or(f.Max, -1) {
		t.Fatalf("%q: n %d, max_tokens %d", body, b.N, b.MaxTokens)
	}
}

func or[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// refused: what the scanner calls broken is broken to jsontext too, but for the differences agreed on.
func refused(t *testing.T, body []byte, fault *scan.Fault, v verdict) {
	switch {
	case !v.valid || !v.object:
	case v.depth > lex.MaxDepth: // difference 2
	case strings.Contains(fault.Message, "malformed escape in a field name") && !bytes.Equal(v.repaired, body): // difference 3
	default:
		t.Fatalf("%q is refused: %+v", body, fault)
	}
}

// TestDifferences holds the list of agreed differences in docs/scanner.md to the truth: each has an example the two judge
// differently.
func TestDifferences(t *testing.T) {
	deep := func(n int) string { return `{"model":"m","x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + "}" }
	for _, c := range []struct {
		number        int
		body          string
		ours, theirs  bool // accepted
		wantField     string
		allowRepeated bool
	}{
		{1, `{"model":"m","x":"\q"}`, true, false, "", true},
		{1, "{\"model\":\"m\",\"x\":\"\x01\"}", true, false, "", true},
		{1, `{"model":"m","x":"\ud800"}`, true, false, "", true},
		{1, `{"model":"\q"}`, false, false, "model", true},
		{2, deep(lex.MaxDepth - 1), true, true, "", true},
		{2, deep(lex.MaxDepth), false, true, "", true},
		{3, `{"model":"m","\q":1}`, false, false, "", true},
		{4, `{"model":"m","model":"m"}`, false, true, "model", true},
		{4, `{"model":"m","x":1,"x":2}`, true, false, "", false},
		{4, `{"model":"m","x":{"a":1,"a":2}}`, true, false, "", false},
		{5, `{"mod\u0065l":"m"}`, false, true, "model", true},
		{6, `{"model":7}`, false, true, "model", true},
		{6, `{"model":"m","n":1e2}`, false, true, "n", true},
		{6, `{"x":1}`, false, true, "model", true},
		{7, `["model"]`, false, true, "", true},
		{7, `"model"`, false, true, "", true},
	} {
		_, fault := scan.Scan([]byte(c.body), scan.Chat)
		value := jsontext.Value(c.body)
		theirs := value.IsValid(jsontext.AllowDuplicateNames(c.allowRepeated))
		if (fault == nil) != c.ours || theirs != c.theirs || fault != nil && fault.Field != c.wantField {
			t.Errorf("difference %d: %.80s: %+v, theirs %v", c.number, c.body, fault, theirs)
		}
	}
}

// TestNoOtherDifferences: what both must refuse.
func TestNoOtherDifferences(t *testing.T) {
	for _, body := range []string{
		"", " ", "{", `{"model":"m"`, `{"model":"m",}`, `{"model":"m"}}`, `{"model":"m"} x`, `{"model":"m"}{}`, `{,"model":"m"}`, `{"model" "m"}`, `{model:"m"}`,
		`{"model":"m","x":01}`, `{"model":"m","x":1.}`, `{"model":"m","x":+1}`, `{"model":"m","x":.5}`, `{"model":"m","x":1e}`, `{"model":"m","x":NaN}`, `{"model":"m","x":tru}`,
		`{"model":"m","x":[1,]}`, `{"model":"m","x":[1 2]}`, `{"model":"m","x":"a}`, `{"model":"m","x":'a'}`, `{"model":"m"/**/}`, "\uFEFF{\"model\":\"m\"}", "{\"model\":\"m\",\"x\":\"\xc0\x80\"}",
		"{\"model\":\"m\",\"\xff\":1}", "{\"model\":\"m\"}\x00", "{\"model\":\"m\",\v\"x\":1}",
	} {
		if _, fault := scan.Scan([]byte(body), scan.Chat); fault == nil || fault.Code != protocol.CodeInvalidJSON {
			t.Errorf("%q: %+v", body, fault)
		}
		if v := judge(t, []byte(body)); v.valid && v.object {
			t.Errorf("%q: the judge accepts it", body)
		}
	}
}

// TestJudgeRepairs: the judge itself, on what it has to forgive.
func TestJudgeRepairs(t *testing.T) {
	for body, want := range map[string]string{
		`{"a":"\q\\\"\u12\ud800\ud83d\ude00"}`: `{"a":"~q\\\"~u12~ud800\ud83d\ude00"}`,
		"{\"a\":\"\x01\n\\\x02\"}":             `{"a":"~~~~"}`,
		`{"\q":1}`:                             `{"~q":1}`,
	} {
		if v := judge(t, []byte(body)); !v.valid || string(v.repaired) != want {
			t.Errorf("%s: %+v %s", body, v, v.repaired)
		}
	}
}

func TestNumbersKeepTheirRange(t *testing.T) {
	var limits []int64
	for _, digits := range []string{"0", "1", "9223372036854775807"} {
		b, fault := scan.Scan([]byte(`{"model":"m","max_tokens":`+digits+`}`), scan.Chat)
		if fault != nil {
			t.Fatal(fault)
		}
		limits = append(limits, b.MaxTokens)
	}
	if !slices.Equal(limits, []int64{0, 1, math.MaxInt64}) {
		t.Error(limits)
	}
}
