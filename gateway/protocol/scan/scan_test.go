package scan_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol/scan"
)

func mustScan(t testing.TB, body string, route scan.Route) scan.Body {
	t.Helper()
	b, fault := scan.Scan([]byte(body), route)
	if fault != nil {
		t.Fatalf("%.200s: %+v", body, *fault)
	}
	return b
}

func at(body string, s scan.Span) string { return body[s.From:s.To] }

func TestScanReadsWhatMatters(t *testing.T) {
	body := ` { "model" : "m\u002dsmall" , "stream":true,"stream_options":{"x":[1],"include_usage":true},
		"max_tokens":7,"max_completion_tokens":9,"n":2,"best_of":3,"user":"u\"1","priority":-4,"cache_salt":"s",
		"metadata":{"model":"no","stream":false},"messages":[{"role":"system","content":"a"},{"role":"user","content":"bb"}]}`
	b := mustScan(t, body, scan.Chat)
	if b.Model != "m-small" || at(body, b.ModelAt) != `"m\u002dsmall"` || !b.Stream || at(body, b.StreamAt) != "true" || !b.IncludeUsage ||
		at(body, b.IncludeUsageAt) != "true" || at(body, b.StreamOptionsAt) != `{"x":[1],"include_usage":true}` ||
		b.MaxTokens != 7 || b.MaxCompletionTokens != 9 || at(body, b.MaxCompletionTokensAt) != "9" || b.N != 2 || b.BestOf != 3 ||
		b.User != `u"1` || b.Priority != -4 || b.CacheSalt != "s" || at(body, b.CacheSaltAt) != `"s"` || b.Messages != 2 || b.Empty || b.InsertAt != 2 {
		t.Errorf("%+v", b)
	}
	if body[:b.FirstMessageEnd][b.MessagesAt.From:] != `[{"role":"system","content":"a"}` || !strings.HasSuffix(body[:b.MessageEnds[1]], `"bb"}`) || b.MessageEnds[2] != 0 {
		t.Errorf("%d %v", b.FirstMessageEnd, b.MessageEnds)
	}
	b = mustScan(t, `{"model":"m","stream":null,"stream_options":null,"max_tokens":null,"n":null,"user":null,"messages":null}`, scan.Chat)
	if b.Stream || b.MaxTokens != -1 || !b.MaxTokensAt.Present() || b.N != 1 || b.User != "" || b.MaxOutputTokensAt.Present() {
		t.Errorf("%+v", b)
	}
}

func TestMessageEnds(t *testing.T) {
	for n := range 12 {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(`{"role":"user","content":"%d"}`, i))
		}
		body := `{"model":"m","messages":[` + strings.Join(items, " , ") + `]}`
		b := mustScan(t, body, scan.Chat)
		if b.Messages != n {
			t.Fatalf("%d messages of %d", b.Messages, n)
		}
		for k := range min(n, 4) {
			want := items[max(n-4, 0)+k]
			if !strings.HasSuffix(body[:b.MessageEnds[k]], want) {
				t.Errorf("%d messages: end %d is not behind %s", n, k, want)
			}
		}
	}
}

// Whose a message is, however it is written.
func TestAnswers(t *testing.T) { // I10
	for item, want := range map[string]string{ // the routes on which it is the model's
		`{"role":"assistant","content":"a"}`:                          "chat messages responses",
		`{"content":[{"type":"text","text":"a"}],"role":"assistant"}`: "chat messages responses",
		`{ "content" : null , "role"` + "\n:\t" + `"assistant" }`:     "chat messages responses",
		`{"r\u006fle":"\u0061ssist\u0061nt"}`:                         "chat messages responses",
		`{"\u0072\u006f\u006c\u0065":"assistant"}`:                    "chat messages responses",
		`{"role":"user","role":"assistant"}`:                          "chat messages responses",
		`{"type":"message","role":"assistant","content":[]}`:          "chat messages responses",
		`{"type":"function_call","name":"f","arguments":"{}"}`:        "responses",
		`{"summary":[],"ty\u0070e":"reasoning"}`:                      "responses",
		`{"role":"assistant","role":"user"}`:                          "",
		`{"type":"reasoning","type":"message","role":"user"}`:         "",
		`{"type":"function_call_output","output":"assistant"}`:        "",
		`{"role":"user","content":"\"role\":\"assistant\""}`:          "",
		`{"role":"user","content":[{"role":"assistant","text":"a"}]}`: "",
		`{"role":"user","metadata":{"role":"assistant"}}`:             "",
		`{"role":["assistant"]}`:                                      "",
		`{"role":{"role":"assistant"}}`:                               "",
		`{"role":1}`:                                                  "",
		`{"role":null}`:                                               "",
		`{"role":""}`:                                                 "",
		`{"role":"Assistant"}`:                                        "",
		`{"role":"assistants"}`:                                       "",
		`{"role":"\ud800assistant"}`:                                  "",
		`{"roles":"assistant","ROLE":"assistant"}`:                    "",
		`{"role` + strings.Repeat(`\u0000`, 100) + `":"assistant"}`:   "",
		`{"role":"assistant` + strings.Repeat(`\u0000`, 100) + `"}`:   "",
		`{}`: "",
	} {
		for route, list := range map[scan.Route]string{scan.Chat: "messages", scan.Messages: "messages", scan.Responses: "input"} {
			name := map[scan.Route]string{scan.Chat: "chat", scan.Messages: "messages", scan.Responses: "responses"}[route]
			body := `{"model":"m","` + list + `":[{"role":"assistant"},` + item + `,{"role":"user"},` + item + `,{"role":"user"}]}`
			ours := strings.Contains(want, name)
			if b := mustScan(t, body, route); b.Answers != [4]bool{ours, false, ours, false} {
				t.Errorf("%s %s: %v", name, item, b.Answers)
			}
		}
	}
	both := `{"model":"m","messages":[{},{"role":"assistant"},{},{},{"role":"assistant"},{}],"input":[{}]}`
	if b := mustScan(t, both, scan.Chat); b.Answers != [4]bool{false, false, true, false} || b.MessageEnds[0] > b.MessageEnds[3] {
		t.Errorf("beside an input: %v at %v", b.Answers, b.MessageEnds)
	}
	for _, broken := range []string{`{"role"`, `{"role":`, `{"role":}`, `{"role":"assistant`, `{"role":"assistant"`, `{"role":x}`} {
		if _, fault := scan.Scan([]byte(`{"model":"m","messages":[`+broken), scan.Chat); fault == nil {
			t.Errorf("%s is accepted", broken)
		}
	}
}

func TestHostileBodies(t *testing.T) { // I1
	deep := func(n int) string {
		return `{"model":"m","x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	for _, body := range []string{
		``, ` `, `{`, `null`, `[]`, `"model"`, `1`, `{"model":"m"`, `{"model":"m",}`, `{,"model":"m"}`, `{"model":"m"}x`, `{"model":"m"}{}`,
		`{"model" "m"}`, `{"model":}`, `{"model":"m" "n":1}`, `{model:"m"}`, `{'model':'m'}`, `{"model":"m","x":01}`, `{"model":"m","x":1.}`,
		`{"model":"m","x":nul}`, `{"model":"m","x":NaN}`, `{"model":"m`, `{"model":"m\"}`, `{"model":"m","x":[1,2}`, `{"model":"m","x":{"a":1]}`,
		"\uFEFF{\"model\":\"m\"}", "{\"model\":\"m\"}\x00", "{\"model\":\"m\",\"x\":\"\xff\"}", "{\"model\":\"m\",\"x\":\"\xed\xa0\x80\"}",
		`{"mod\x65l":"m"}`, `{"mod\u65l":"m"}`, deep(256), deep(100_000), `/**/{"model":"m"}`, `{"model":"m"/**/}`,
		`{"model":"m","messages":[{"role":"user","content":"a"}`, `{"model":"m","messages":[{"content":[{"image_url":{"url":"data:`, `{"model":"m","stream_options":{"include_usage":true`,
	} {
		if _, fault := scan.Scan([]byte(body), scan.Chat); fault == nil || fault.Code != "invalid_json" || fault.Reply().Status != 400 || fault.Offset > len(body) {
			t.Errorf("%.80q: %+v", body, fault)
		}
	}
	for _, body := range []string{
		deep(255), `{"model":"m","x":"\x \u12 \ud800"}`, "{\"model\":\"m\",\"x\":\"a\nb\"}", `{"model":"m","\ud800":1}`, "\r\n\t {\"model\":\"m\"} \n",
		`{"model":"m","":1,"":2}`, `{"model":"m","Model":"x","MODEL":1}`,
	} {
		mustScan(t, body, scan.Chat)
	}
}

func TestWrongTypes(t *testing.T) {
	for field, values := range map[string][]string{
		"model":                        {`null`, `1`, `""`, `[]`, `{}`, `true`, `"\x"`, `"\ud800"`, "\"a\nb\"", `"` + strings.Repeat("m", scan.MaxNameBytes+1) + `"`},
		"stream":                       {`1`, `"true"`, `{}`, `[]`},
		"stream_options":               {`1`, `true`, `[]`, `"x"`},
		"stream_options.include_usage": {`{"include_usage":1}`, `{"include_usage":"true"}`, `{"include_usage":{}}`, `{"include_usage":true,"include_usage":false}`, `{"include\u005fusage":true}`},
		"max_tokens":                   {`-1`, `1.0`, `1e3`, `"1"`, `true`, `[]`, `9223372036854775808`},
		"max_completion_tokens":        {`-1`, `{}`},
		"max_output_tokens":            {`-1`},
		"n":                            {`0`, `-1`, `1.5`, `2147483648`, `"2"`},
		"best_of":                      {`0`, `false`},
		"user":                         {`1`, `{}`, `"\q"`, `true`},
		"priority":                     {`1.5`, `"high"`, `{}`},
		"messages":                     {`{}`, `"hi"`, `1`},
	} {
		name, _, _ := strings.Cut(field, ".")
		for _, v := range values {
			body := `{"model":"m","` + name + `":` + v + `}`
			if name == "model" {
				body = `{"model":` + v + `}`
			}
			if _, fault := scan.Scan([]byte(body), scan.Chat); fault == nil || fault.Code != "invalid_field" || fault.Field != field || fault.Reply().Param != field {
				t.Errorf("%.80s: %+v", body, fault)
			}
		}
	}
	if _, fault := scan.Scan([]byte(`{"messages":[]}`), scan.Chat); fault == nil || fault.Field != "model" {
		t.Errorf("no model: %+v", fault)
	}
}

// known is every top-level field the gateway acts on, with a value it accepts.
var known = map[string]string{
	"model": `"m"`, "stream": `true`, "stream_options": `{}`, "max_tokens": `1`, "max_completion_tokens": `1`, "max_output_tokens": `1`, "n": `1`,
	"best_of": `1`, "user": `"u"`, "priority": `1`, "cache_salt": `"s"`, "messages": `[]`, "prompt": `""`, "input": `""`, "tools": `[]`,
	"functions": `[]`, "response_format": `{}`, "documents": `[]`, "system": `""`, "instructions": `""`, "suffix": `""`, "query": `""`,
	"queries": `[]`, "text_1": `""`, "text_2": `""`, "chat_template": `""`, "chat_template_kwargs": `{}`, "prompt_embeds": `""`,
	"previous_input_messages": `[]`, "text": `{}`,
}

func TestRepeatedFields(t *testing.T) { // I2
	for name, v := range known {
		for _, body := range []string{
			`{"model":"m","` + name + `":` + v + `,"x":1,"` + name + `":` + v + `}`,
			`{"` + name + `":` + v + `,"model":"m","` + name + `":null}`,
		} {
			want := name
			if _, fault := scan.Scan([]byte(body), scan.Chat); fault == nil || fault.Code != "invalid_field" || fault.Field != want && fault.Field != "model" {
				t.Errorf("%s: %+v", body, fault)
			}
		}
	}
}

func TestEscapedNames(t *testing.T) { // I2
	for name, v := range known {
		for i := range name {
			key := fmt.Sprintf(`%s\u%04X%s`, name[:i], name[i], name[i+1:])
			for _, body := range []string{`{"` + key + `":` + v + `}`, `{"model":"m","` + key + `":` + v + `}`, `{"` + key + `":` + v + `,"model":"m","` + name + `":` + v + `}`} {
				if _, fault := scan.Scan([]byte(body), scan.Chat); fault == nil || fault.Code != "invalid_field" || fault.Field != name {
					t.Errorf("%s: %+v", body, fault)
				}
			}
		}
		var all strings.Builder
		for _, c := range name {
			fmt.Fprintf(&all, `\u%04x`, c)
		}
		if _, fault := scan.Scan([]byte(`{"`+all.String()+`":`+v+`}`), scan.Chat); fault == nil || fault.Field != name {
			t.Errorf("%s: %+v", all.String(), fault)
		}
	}
	mustScan(t, `{"model":"m","mod\u0065":1,"a\/b":2,"`+strings.Repeat(`\u0061`, 1000)+`":3}`, scan.Chat)
}

func TestRepeatedBelowTheTop(t *testing.T) { // I3
	body := `{"model":"m","metadata":{"a":1,"a":2,"model":"x","model":"y"},"messages":[{"role":"user","role":"user","content":"a","content":"b"}]}`
	b := mustScan(t, body, scan.Chat)
	if parts, _ := scan.Splice(nil, []byte(body), b.Edits(nil, scan.Want{})); len(parts) != 1 || string(parts[0]) != body {
		t.Errorf("%q", parts)
	}
}

func TestOutputCap(t *testing.T) { // I7
	for body, want := range map[string]string{
		`"n":1`:                            "0 false true",
		`"max_tokens":5`:                   "5 true true",
		`"max_tokens":0`:                   "0 true true",
		`"max_tokens":5,"n":3,"best_of":2`: "15 true true",
		`"max_tokens":5,"n":2,"best_of":3,"prompt":["a","b"]`:                                 "30 true true",
		`"max_tokens":5,"prompt":[1,2,3]`:                                                     "5 true true",
		`"max_tokens":5,"prompt":[[1,2],[3],[]]`:                                              "15 true true",
		`"max_tokens":5,"prompt":[]`:                                                          "5 true true",
		`"max_tokens":9223372036854775807`:                                                    fmt.Sprint(int64(math.MaxInt64), " true true"),
		`"max_tokens":9223372036854775807,"n":2`:                                              "0 true false",
		`"max_tokens":4294967297,"n":2147483647,"prompt":["",""]`:                             "0 true false",
		`"max_tokens":0,"n":2147483647,"prompt":["",""]`:                                      "0 true true",
		`"n":2147483647,"prompt":[` + strings.TrimSuffix(strings.Repeat(`"",`, 9), ",") + `]`: "0 false true",
	} {
		b := mustScan(t, `{"model":"m",`+body+`}`, scan.Completions)
		tokens, declared, ok := b.OutputCap()
		if got := fmt.Sprint(tokens, declared, ok); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

func TestOnlyTheRoutesOwnCapsCount(t *testing.T) { // I8
	all := `{"model":"m","max_tokens":1,"max_completion_tokens":100,"max_output_tokens":10000}`
	for route, want := range map[scan.Route]string{scan.Chat: "100 true", scan.Completions: "1 true", scan.Messages: "1 true", scan.Responses: "10000 true",
		scan.Embeddings: "0 true", scan.Tokens: "0 true"} {
		b := mustScan(t, all, route)
		tokens, declared, _ := b.OutputCap()
		if got := fmt.Sprint(tokens, declared); got != want {
			t.Errorf("route %d: %s, want %s", route, got, want)
		}
	}
	for route, body := range map[scan.Route]string{
		scan.Chat: `"max_output_tokens":1`, scan.Completions: `"max_completion_tokens":1,"max_output_tokens":1`,
		scan.Messages: `"max_completion_tokens":1,"max_output_tokens":1`, scan.Responses: `"max_tokens":1,"max_completion_tokens":1`,
	} {
		b := mustScan(t, `{"model":"m",`+body+`}`, route)
		if _, declared, _ := b.OutputCap(); declared {
			t.Errorf("route %d: %s bounds an answer", route, body)
		}
	}
	for body, want := range map[string]int64{``: 16, `,"max_tokens":null`: 0, `,"max_tokens":3`: 0} {
		b := mustScan(t, `{"model":"m"`+body+`}`, scan.Completions)
		if got := b.DefaultCap(); got != want {
			t.Errorf("%s: default cap %d, want %d", body, got, want)
		}
		b = mustScan(t, `{"model":"m"`+body+`}`, scan.Chat)
		if got := b.DefaultCap(); got != 0 {
			t.Errorf("chat %s: default cap %d", body, got)
		}
	}
}

func TestResponsesFields(t *testing.T) {
	b := mustScan(t, `{"model":"m","previous_response_id":"resp_\u0031","background":true,"store":false}`, scan.Responses)
	if b.Previous != "resp_1" || !b.Background || !b.Unstored {
		t.Errorf("%+v", b)
	}
	b = mustScan(t, `{"model":"m","previous_response_id":null,"background":null,"store":null}`, scan.Responses)
	if b.Previous != "" || b.Background || b.Unstored {
		t.Errorf("%+v", b)
	}
	for field, body := range map[string]string{"previous_response_id": `1`, "background": `"yes"`, "store": `0`, "request_id": `"resp_of_another"`} {
		body := `{"model":"m","` + field + `":` + body + `}`
		if _, fault := scan.Scan([]byte(body), scan.Responses); fault == nil || fault.Field != field {
			t.Errorf("%s: %+v", body, fault)
		}
		if _, fault := scan.Scan([]byte(body), scan.Chat); fault != nil { // not a field of chat
			t.Errorf("%s: %+v", body, fault)
		}
	}
	for _, body := range []string{`{"model":"m","previous_response_id":"a","previous_response_id":"a"}`, `{"model":"m","previous_response_\u0069d":"a"}`} {
		if _, fault := scan.Scan([]byte(body), scan.Responses); fault == nil || fault.Field != "previous_response_id" { // I2
			t.Errorf("%s: %+v", body, fault)
		}
	}
	b = mustScan(t, `{"model":"m","previous_response_id":"resp_1","background":true}`, scan.Chat)
	if b.Previous != "" || b.Background {
		t.Errorf("%+v", b)
	}
}

func TestOpening(t *testing.T) {
	for _, c := range []struct {
		route      scan.Route
		body, want string
	}{
		{scan.Chat, `"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]`, `[{"role":"system","content":"a"}`},
		{scan.Chat, `"system":"not its field","messages":[{"content":"b"}]`, `[{"content":"b"}`},
		{scan.Messages, `"messages":[{"role":"user","content":"b"}],"system":"you are"`, `"you are"`},
		{scan.Messages, `"system":null,"messages":[{"content":"b"}]`, `[{"content":"b"}`},
		{scan.Completions, `"prompt":"once"`, `"once"`},
		{scan.Completions, `"prompt":["once","twice"]`, `["once","twice"]`},
		{scan.Responses, `"input":"hi","instructions":"be brief"`, `"be brief"`},
		{scan.Responses, `"input":"hi","instructions":null`, `"hi"`},
		{scan.Responses, `"input":[{"role":"user","content":"a"},{"role":"user","content":"b"}]`, `[{"role":"user","content":"a"}`},
		{scan.Embeddings, `"input":["a","b"]`, `["a","b"]`},
		{scan.Chat, `"temperature":1`, ``},
	} {
		body := `{"model":"m",` + c.body + `}`
		b := mustScan(t, body, c.route)
		if got := at(body, b.Opening()); got != c.want {
			t.Errorf("route %d %s: %s, want %s", c.route, body, got, c.want)
		}
	}
	body := `{"model":"m","input":[{"role":"user","content":"a"},{"type":"function_call_output","output":"b"}]}`
	if b := mustScan(t, body, scan.Responses); b.Messages != 2 || !strings.HasSuffix(body[:b.MessageEnds[1]], `"b"}`) || b.MessageEnds[2] != 0 {
		t.Errorf("%+v", b)
	}
}

func TestPromptBytesByRoute(t *testing.T) { // I5
	image := strings.Repeat("A", 50_000)
	for _, c := range []struct {
		route         scan.Route
		body          string
		bytes, images int64
	}{
		{scan.Messages, `"system":"abc","messages":[{"role":"user","content":[{"type":"text","text":"de"}]}]`, 3 + 8 + 8 + 4 + 4 + 2, 0},
		{scan.Messages, `"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + image + `"}}]}]`, 8 + 5 + 6 + 9, 1},
		{scan.Messages, `"messages":[{"content":[{"source":{"data":"` + image + `","media_type":"image/png","type":"base64"}}]}]`, 8 + 6 + 9, 1},
		{scan.Messages, `"messages":[{"content":[{"source":{"type":"url","url":"http://x/y"}}]}]`, 8 + 3 + 10, 1},
		{scan.Messages, `"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + image + `"}}]}]}]`, 8 + 11 + 5 + 6 + 9, 1},
		{scan.Responses, `"instructions":"abc","input":"de","text":{"a":1}`, 3 + 8 + 2 + 8 + 7, 0},
		{scan.Responses, `"input":[{"type":"message","content":[{"type":"input_image","image_url":"data:` + image + `"}]}]`, 8 + 7 + 11, 1},
		{scan.Responses, `"input":[{"output":[{"image_url":"data:` + image + `"}]}],"previous_input_messages":["ab"]`, 8 + 6, 1},
		{scan.Responses, `"messages":["not the conversation"]`, 24, 0},
		{scan.Completions, `"prompt_embeds":"abcd","suffix":"ef"`, 6, 0},
		{scan.Embeddings, `"input":["abc",[1,2]],"made_up":"xyz"`, 5 + 3, 0},
		{scan.Embeddings, `"query":"q","documents":["ab","c"],"items":["de"]`, 1 + 10 + 6, 0},
		{scan.Embeddings, `"text_1":"q","text_2":["ab","c"],"data_1":"r"`, 1 + 10 + 1, 0},
		{scan.Tokens, `"prompt":"abc","messages":[{"content":[{"image_url":"data:x"}]}]`, 0, 0},
	} {
		b := mustScan(t, `{"model":"m",`+c.body+`}`, c.route)
		if b.PromptBytes != c.bytes || b.Images != c.images {
			t.Errorf("route %d %.100s: %d bytes, %d images, want %d, %d", c.route, c.body, b.PromptBytes, b.Images, c.bytes, c.images)
		}
	}
}

func TestPromptBytes(t *testing.T) { // I5
	image := `data:image/png;base64,` + strings.Repeat("A", 100_000)
	for body, want := range map[string][2]int64{ // bytes, images
		`"messages":[{"role":"user","content":"hi"}]`:                                                                      {8 + 4 + 2, 0},
		`"messages":[{"role":"user","content":"hi"},{"role":"a","content":null,"name":"bob"}]`:                             {14 + 8 + 1 + 3, 0},
		`"messages":[{"role":"a","tool_calls":[{"a":"b"}]}]`:                                                               {8 + 1 + 11, 0},
		`"messages":[{"content":[{"type":"text","text":"abc"},{"type":"image_url","image_url":{"url":"` + image + `"}}]}]`: {8 + 4 + 3 + 9, 1},
		`"messages":[{"content":[{"type":"input_image","image_url":"` + image + `"},{"image_url":null}]}]`:                 {8 + 11, 1},
		`"messages":[{"content":[{"image_url":{"url":"http://x/y"}}]}]`:                                                    {8 + 10, 1},
		`"prompt":"abc"`:           {3, 0},
		`"prompt":["abc","d"]`:     {4, 0},
		`"prompt":[12345,6]`:       {2, 0},
		`"prompt":[[12345,6],[7]]`: {3, 0},
		`"input":["abc",[1,2],3]`:  {6, 0},
		`"input":[{"role":"user","content":[{"image_url":"` + image + `"}]}]`: {8 + 4, 1},
		`"tools":[{"a":1}],"functions":null,"response_format":{}`:             {9 + 2, 0},
		`"documents":["ab"],"chat_template":"abc","metadata":"not counted"`:   {6 + 3, 0},
	} {
		b := mustScan(t, `{"model":"m",`+body+`}`, scan.Chat)
		if b.PromptBytes != want[0] || b.Images != want[1] {
			t.Errorf("%.100s: %d bytes, %d images, want %v", body, b.PromptBytes, b.Images, want)
		}
	}
}

func TestPromptBytesCannotBeDodged(t *testing.T) { // I5
	const n = 1000
	text := strings.Repeat("x", n)
	for _, body := range []string{
		`"messages":[{"role":"` + text + `"}]`,
		`"messages":[{"content":"data:` + text + `"}]`,
		`"messages":[{"content":[{"type":"text","text":"data:` + text + `"}]}]`,
		`"messages":[{"content":["` + text + `"]}]`,
		`"messages":["` + text + `"]`,
		`"messages":[{"content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"` + text + `"}}]}]`,
		`"messages":[{"content":[{"source":{"type":"text","media_type":"image/png","data":"` + text + `"}}]}]`,
		`"messages":[{"content":[{"source":{"type":"base64","media_type":"image\/png","data":"` + text + `"}}]}]`,
		`"messages":[{"content":[{"source":{"type":"base64","media_type":"image/png","d\u0061ta":"` + text + `"}}]}]`,
		`"messages":[{"content":[{"source":{"type":"base64","media_type":"image/png","data":["` + text + `"]}}]}]`,
		`"messages":[{"source":{"type":"base64","media_type":"image/png","data":"` + text + `"}}]`,
		`"messages":[{"cont\u0065nt":"` + text + `"}]`,
		`"messages":[{"content":[{"im\u0061ge_url":{"url":"data:` + text + `"}}]}]`,
		`"messages":[{"content":[{"image_url":{"url":" data:` + text + `"}}]}]`,
		`"messages":[{"content":[{"image_url":{"url":{"a":"` + text + `"}}}]}]`,
		`"messages":[{"content":{"image_url":"data:` + text + `"}}]`,
		`"messages":[{"image_url":"data:` + text + `"}]`,
		`"messages":[{"content":[[{"image_url":"data:` + text + `"}]]}]`,
		`"prompt":[[["` + text + `"]]]`, `"prompt":{"a":"` + text + `"}`, `"input":{"a":"` + text + `"}`, `"prompt":[["` + text + `"]]`,
		`"messages":[{"content":"` + strings.Repeat(`\u0041`, n) + `"}]`,
	} {
		b := mustScan(t, `{"model":"m",`+body+`}`, scan.Chat)
		if b.PromptBytes < n {
			t.Errorf("%.80s: %d bytes", body, b.PromptBytes)
		}
	}
}

func TestAllocations(t *testing.T) { // I6
	one := []byte(chatBody(1))
	many := []byte(chatBody(2000))
	count := func(body []byte) float64 {
		return testing.AllocsPerRun(50, func() {
			if _, fault := scan.Scan(body, scan.Chat); fault != nil {
				t.Error(fault)
			}
		})
	}
	if a, b := count(one), count(many); a > 2 || b > 2 {
		t.Errorf("%v and %v allocations", a, b)
	}
}

// chatBody is a streamed chat of n short messages.
func chatBody(n int) string {
	return chatOf(n, 1)
}

// chatOf is a streamed chat of n messages of some 90 bytes times size, with escapes and bytes that are not ASCII.
func chatOf(n, size int) string {
	var m []string
	for i := range n {
		line := fmt.Sprintf("Message %d says \"naïve\" things:\n\tover and over, and then some more text to read. ", i)
		text, _ := json.Marshal(strings.Repeat(line, size))
		m = append(m, `{"role":"user","content":`+string(text)+`}`)
	}
	return `{"model":"qwen-7b","stream":true,"max_tokens":128,"user":"u-1","temperature":0.7,"messages":[` + strings.Join(m, ",") + `]}`
}

func BenchmarkScan(b *testing.B) {
	for name, body := range map[string]string{"small": chatOf(1, 2), "100KB": chatOf(20, 53), "100KB in short messages": chatOf(900, 1), "1MB": chatOf(20, 530)} {
		b.Run(name, func(b *testing.B) {
			body := []byte(body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if got, fault := scan.Scan(body, scan.Chat); fault != nil || got.Model == "" {
					b.Fatal(fault)
				}
			}
		})
	}
}
