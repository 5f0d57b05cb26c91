package scan_test

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"

	"github.com/headgate/headgate/gateway/protocol/scan"
)

const formType = "multipart/form-data; boundary=XX"

// part is one part of a form with boundary XX, as clients write it.
func part(disposition, value string, fields ...string) string {
	head := "--XX\r\nContent-Disposition: form-data; " + disposition + "\r\n"
	for _, f := range fields {
		head += f + "\r\n"
	}
	return head + "\r\n" + value + "\r\n"
}

func form(parts ...string) string { return strings.Join(parts, "") + "--XX--\r\n" }

var (
	sound   = strings.Repeat("\x00\xffRIFF\r\n--X\r\n--", 100)
	fileXX  = part(`name="file"; filename="a b.wav"`, sound, "Content-Type: audio/wav")
	modelXX = part(`name="model"`, "whisper")
)

func mustForm(t testing.TB, body, contentType string) scan.Body {
	t.Helper()
	b, fault := scan.Multipart([]byte(body), contentType)
	if fault != nil {
		t.Fatalf("%.300q: %+v", body, *fault)
	}
	return b
}

func TestForms(t *testing.T) {
	soundTokens := int64(len(sound)+79) / 80
	for name, c := range map[string]struct {
		body, contentType string
		stream, usage     bool
		bytes             int64
	}{
		"model first":                 {form(modelXX, fileXX), formType, false, false, soundTokens},
		"model last":                  {form(fileXX, modelXX), formType, false, false, soundTokens},
		"bare names":                  {form(part(`name=model`, "whisper"), part(`name=prompt`, "abc")), formType, false, false, 3},
		"quoted boundary":             {form(modelXX), `Multipart/Form-Data ; charset=UTF-8; BOUNDARY="XX";`, false, false, 0},
		"no last line end":            {strings.TrimSuffix(form(modelXX), "\r\n"), formType, false, false, 0},
		"streamed":                    {form(modelXX, part(`name="stream"`, "True"), part(`name="stream_include_usage"`, "1"), part(`name="user"`, "u")), formType, true, true, 0},
		"not streamed":                {form(modelXX, part(`name="stream"`, "false"), part(`name="stream_include_usage"`, "")), formType, false, false, 0},
		"other heads":                 {form(part(`name="model"`, "whisper", "Content-Type: text/plain; charset=utf-8", "X-Any: \"a\\", "Content-Transfer-Encoding: 8BIT")), formType, false, false, 0},
		"odd file names":              {form(modelXX, part(`name="file"; filename="C:\dir\a.wav"; filename*=UTF-8''a.wav`, "")), formType, false, false, 0},
		"its boundary inside a line":  {form(modelXX, part(`name="prompt"`, "a--XX\r\nb --XX--")), formType, false, false, 15},
		"a longer boundary is a text": {form(modelXX, part(`name="prompt"`, "\r\n--XXX")), formType, false, false, 7},
		"fields named alike":          {form(modelXX, part(`name="Model"`, "x"), part(`name="model[]"`, "x")), formType, false, false, 2},
	} {
		b := mustForm(t, c.body, c.contentType)
		if b.Model != "whisper" || at(c.body, b.ModelAt) != "whisper" || b.Stream != c.stream || b.IncludeUsage != c.usage || b.PromptBytes != c.bytes || b.Route != scan.Audio {
			t.Errorf("%s: %+v", name, b)
		}
		if _, declared, ok := b.OutputCap(); declared || !ok {
			t.Errorf("%s: a cap", name)
		}
	}
}

func TestFormEditsChangeTheModelAlone(t *testing.T) { // I4
	body := form(fileXX, part(`name="model"`, "small"), part(`name="prompt"`, "small"))
	b := mustForm(t, body, formType)
	for _, want := range []scan.Want{{Model: "whisper-large", IncludeUsage: true, MaxTokens: 5}, {Model: "small", IncludeUsage: true, MaxTokens: 5}, {}} {
		parts, length := scan.Splice(nil, []byte(body), b.Edits(nil, want))
		got := string(bytes.Join(parts, nil))
		model := want.Model
		if model == "" {
			model = "small"
		}
		if got != form(fileXX, part(`name="model"`, model), part(`name="prompt"`, "small")) || int64(len(got)) != length {
			t.Errorf("%+v: %q", want, got)
		}
	}
}

func TestHostileForms(t *testing.T) { // I9
	long := strings.Repeat("x", 5000)
	for name, c := range map[string]struct{ body, contentType, field string }{
		"no boundary":               {form(modelXX), "multipart/form-data", ""},
		"empty boundary":            {form(modelXX), `multipart/form-data; boundary=""`, ""},
		"JSON":                      {`{"model":"whisper"}`, "application/json", ""},
		"no type":                   {form(modelXX), "", ""},
		"two boundaries":            {form(modelXX), "multipart/form-data; boundary=XX; boundary=YY", ""},
		"a boundary in pieces":      {form(modelXX), "multipart/form-data; boundary=XX; boundary*0=Y; boundary*1=Y", ""},
		"an extended boundary":      {form(modelXX), "multipart/form-data; boundary=XX; boundary*=utf-8''YY", ""},
		"a long boundary":           {form(modelXX), "multipart/form-data; boundary=" + strings.Repeat("X", 71), ""},
		"a boundary with a quote":   {form(modelXX), `multipart/form-data; boundary="X\X"`, ""},
		"another charset":           {form(modelXX), "multipart/form-data; charset=utf-16; boundary=XX", ""},
		"text behind the type":      {form(modelXX), "multipart/form-data; boundary=XX yes", ""},
		"empty":                     {"", formType, ""},
		"no part":                   {"--XX--\r\n", formType, "model"},
		"no model":                  {form(fileXX), formType, "model"},
		"model twice":               {form(modelXX, fileXX, modelXX), formType, "model"},
		"model a file":              {form(part(`name="model"; filename="m"`, "whisper")), formType, "model"},
		"model an extended file":    {form(part(`name="model"; filename*=utf-8''m`, "whisper")), formType, "model"},
		"model empty":               {form(part(`name="model"`, "")), formType, "model"},
		"model with a line end":     {form(part(`name="model"`, "whisper\r\n")), formType, "model"},
		"model not UTF-8":           {form(part(`name="model"`, "\xff")), formType, "model"},
		"model too long":            {form(part(`name="model"`, long)), formType, "model"},
		"model in base64":           {form(part(`name="model"`, "d2hpc3Blcg==", "Content-Transfer-Encoding: base64")), formType, "model"},
		"model in UTF-16":           {form(part(`name="model"`, "whisper", "Content-Type: text/plain; charset=utf-16")), formType, "model"},
		"stream twice":              {form(modelXX, part(`name="stream"`, "1"), part(`name="stream"`, "0")), formType, "stream"},
		"a name twice in a head":    {form(modelXX, part(`name="prompt"; name="model"`, "x")), formType, ""},
		"an extended name":          {form(modelXX, part(`name="prompt"; name*=utf-8''model`, "x")), formType, ""},
		"an escaped name":           {form(modelXX, part(`name="mod\el"`, "x")), formType, ""},
		"an escaped quote":          {form(modelXX, part(`name="a\"; name="model"`, "x")), formType, ""},
		"a second disposition":      {form(modelXX, part(`name="prompt"`, "x", `Content-Disposition: form-data; name="model"`)), formType, ""},
		"a folded line":             {form(modelXX, part(`name="prompt"`, "x", ` ; name="model"`)), formType, ""},
		"an attachment":             {form(modelXX, "--XX\r\nContent-Disposition: attachment; name=\"model\"\r\n\r\nx\r\n"), formType, ""},
		"a part without a head":     {form(modelXX, "--XX\r\n\r\nx\r\n"), formType, ""},
		"a part without a name":     {form(modelXX, part(`filename="x"`, "x")), formType, ""},
		"a head without an end":     {form(modelXX, "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\nx\r\n"), formType, ""},
		"a head that is too long":   {form(modelXX, part(`name="a"`, "x", "X: "+long)), formType, ""},
		"a control byte in a head":  {form(modelXX, part(`name="a"`, "x", "X: \x00")), formType, ""},
		"a preamble":                {"hello\r\n" + form(modelXX), formType, ""},
		"a preamble that is a form": {strings.ReplaceAll(form(modelXX), "XX", "YY") + form(modelXX), formType, ""},
		"an epilogue":               {form(modelXX) + form(modelXX), formType, ""},
		"bare line feeds":           {strings.ReplaceAll(form(modelXX), "\r\n", "\n"), formType, ""},
		"a boundary behind LF":      {form(modelXX, part(`name="prompt"`, "a\n--XX\nContent-Disposition: form-data; name=\"model\"\n\nx")), formType, ""},
		"padding behind a boundary": {form(modelXX, part(`name="prompt"`, "a\r\n--XX \r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nx")), formType, ""},
		"a boundary and a dash":     {form(modelXX, part(`name="prompt"`, "a\r\n--XX-\r\n")), formType, ""},
		"a value without line end":  {form(modelXX, "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n"), formType, ""},
		"no end":                    {modelXX, formType, ""},
		"an end in a part":          {modelXX + "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nabc", formType, ""},
		"too many parts":            {form(append([]string{modelXX}, repeat(part(`name="a"`, ""), 200)...)...), formType, ""},
	} {
		_, fault := scan.Multipart([]byte(c.body), c.contentType)
		want := "invalid_json"
		if c.field != "" {
			want = "invalid_field"
		}
		if fault == nil || fault.Code != want || fault.Field != c.field || fault.Reply().Status != 400 || fault.Offset > len(c.body) {
			t.Errorf("%s: %+v", name, fault)
		}
	}
}

func repeat(s string, n int) (out []string) {
	for range n {
		out = append(out, s)
	}
	return out
}

// FuzzMultipart lets mime/multipart judge: what is accepted has the same parts there, one of them the model, and after an
// edit all parts but that one are what they were. Agreed difference: mime/multipart accepts far more.
func FuzzMultipart(f *testing.F) {
	for _, body := range []string{
		form(modelXX, fileXX), form(fileXX, modelXX), form(part(`name=model`, "m"), part(`name="stream"`, "1")), modelXX,
		form(modelXX, part(`name="prompt"`, "a\n--XX\r\n")), form(modelXX, "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n--XX"),
	} {
		f.Add([]byte(body), formType, "another")
	}
	f.Add([]byte("--a b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--a b--"), `multipart/form-data; boundary="a b"`, "")
	f.Fuzz(func(t *testing.T, body []byte, contentType, model string) {
		b, fault := scan.Multipart(body, contentType)
		if fault != nil {
			return
		}
		if string(body[b.ModelAt.From:b.ModelAt.To]) != b.Model || b.Model == "" {
			t.Fatalf("%q: model %q at %v", body, b.Model, b.ModelAt)
		}
		before, known := judgeParts(t, body, contentType)
		if !known {
			return
		}
		if before["model"] != fmt.Sprintf("%q", []string{b.Model}) {
			t.Fatalf("%q: model %q, judged %s", body, b.Model, before["model"])
		}
		if strings.ContainsAny(model, "\r\n") || model == "" || strings.Contains(model, "--") {
			return // no model's name
		}
		parts, length := scan.Splice(nil, body, b.Edits(nil, scan.Want{Model: model}))
		after := bytes.Join(parts, nil)
		if int64(len(after)) != length {
			t.Fatalf("%d bytes, announced %d", len(after), length)
		}
		changed, _ := judgeParts(t, after, contentType)
		before["model"] = fmt.Sprintf("%q", []string{model})
		if fmt.Sprint(changed) != fmt.Sprint(before) {
			t.Fatalf("%q became %q", body, after)
		}
	})
}

// judgeParts are the values of all parts by their names; unknown where mime refuses a head that no rule of ours is about.
func judgeParts(t *testing.T, body []byte, contentType string) (parts map[string]string, known bool) {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, false
	}
	values := map[string][]string{}
	for r := multipart.NewReader(bytes.NewReader(body), params["boundary"]); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			if _, malformed := err.(textproto.ProtocolError); malformed || strings.Contains(err.Error(), "malformed MIME header") {
				return nil, false
			}
			t.Fatalf("%q: %v", body, err)
		}
		value, err := io.ReadAll(p)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		values[p.FormName()] = append(values[p.FormName()], string(value))
	}
	parts = map[string]string{}
	for name, v := range values {
		parts[name] = fmt.Sprintf("%q", v)
	}
	return parts, true
}

func BenchmarkMultipart(b *testing.B) {
	body := []byte(form(part(`name="file"; filename="a.wav"`, strings.Repeat("\x01\r\n-x", 200_000)), modelXX))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, fault := scan.Multipart(body, formType); fault != nil {
			b.Fatal(fault)
		}
	}
}
