package main

import (
	"encoding/json"

	"github.com/bytedance/sonic"
	"github.com/bytedance/sonic/ast"
	"github.com/minio/simdjson-go"
	"github.com/tidwall/gjson"
)

// request is what decoders into structs fill.
type request struct {
	Model     string          `json:"model"`
	Stream    bool            `json:"stream"`
	MaxTokens int64           `json:"max_tokens"`
	User      string          `json:"user"`
	Messages  json.RawMessage `json:"messages"`
}

func (r request) found() found {
	return found{r.Model, r.User, r.Stream, r.MaxTokens, head(r.Messages)}
}

var sonicStrict = sonic.Config{ValidateString: true}.Froze()

var libraries = append([]contender{
	{"sonic Unmarshal, fastest", func(body []byte) (found, error) {
		var r request
		err := sonic.ConfigFastest.Unmarshal(body, &r)
		return r.found(), err
	}},
	{"sonic Unmarshal, ValidateString", func(body []byte) (found, error) {
		var r request
		err := sonicStrict.Unmarshal(body, &r)
		return r.found(), err
	}},
	{"sonic ast Get", readSonicAST},
	{"simdjson-go, reused tape", readSIMD},
	{"gjson ForEach", readForEach},
	{"gjson Get", readGet},
	{"gjson ValidBytes + ForEach", func(body []byte) (found, error) {
		if !gjson.ValidBytes(body) {
			return found{}, errRefused
		}
		return readForEach(body)
	}},
	{"encoding/json Unmarshal" + experiment, func(body []byte) (found, error) {
		var r request
		err := json.Unmarshal(body, &r)
		return r.found(), err
	}},
	{"encoding/json to a map and back" + experiment, func(body []byte) (found, error) {
		var whole map[string]any
		if err := json.Unmarshal(body, &whole); err != nil {
			return found{}, err
		}
		if _, err := json.Marshal(whole); err != nil {
			return found{}, err
		}
		// The beginning of the prompt as written is not to be had this way; its cost is not counted against it.
		model, _ := whole["model"].(string)
		user, _ := whole["user"].(string)
		stream, _ := whole["stream"].(bool)
		limit, _ := whole["max_tokens"].(float64)
		return found{model, user, stream, int64(limit), head(messages(body))}, nil
	}},
}, more...)

func readSonicAST(body []byte) (f found, err error) {
	s := ast.NewSearcher(string(body))
	s.ConcurrentRead = false
	text := func(name string) (v string) {
		if n, e := s.GetByPath(name); e == nil {
			v, err = n.String()
		}
		return v
	}
	f.model, f.user = text("model"), text("user")
	if n, e := s.GetByPath("stream"); e == nil {
		f.stream, err = n.Bool()
	}
	if n, e := s.GetByPath("max_tokens"); e == nil {
		f.maxTokens, err = n.Int64()
	}
	n, e := s.GetByPath("messages")
	if e != nil {
		return f, e
	}
	raw, e := n.Raw()
	if e != nil {
		return f, e
	}
	f.prompt = raw[:min(len(raw), promptBytes)]
	return f, err
}

var tape *simdjson.ParsedJson

func readSIMD(body []byte) (f found, err error) {
	parsed, err := simdjson.Parse(body, tape, simdjson.WithCopyStrings(false))
	if err != nil {
		return f, err
	}
	tape = parsed
	var element simdjson.Element
	var object simdjson.Object
	root := parsed.Iter()
	root.AdvanceInto()
	_, inner, err := root.Root(nil)
	if err != nil {
		return f, err
	}
	if _, err = inner.Object(&object); err != nil {
		return f, err
	}
	for {
		name, kind, err := object.NextElement(&element.Iter)
		if err != nil {
			return f, err
		}
		if kind == simdjson.TypeNone {
			break
		}
		switch name {
		case "model":
			f.model, err = element.Iter.String()
		case "user":
			f.user, err = element.Iter.String()
		case "stream":
			f.stream, err = element.Iter.Bool()
		case "max_tokens":
			f.maxTokens, err = element.Iter.Int()
		}
		if err != nil {
			return f, err
		}
	}
	// As above: the tape has no offsets into the body.
	f.prompt = head(messages(body))
	return f, nil
}

func readForEach(body []byte) (f found, err error) {
	gjson.ParseBytes(body).ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "model":
			f.model = value.String()
		case "user":
			f.user = value.String()
		case "stream":
			f.stream = value.Bool()
		case "max_tokens":
			f.maxTokens = value.Int()
		case "messages":
			f.prompt = value.Raw[:min(len(value.Raw), promptBytes)]
		}
		return true
	})
	return f, nil
}

func readGet(body []byte) (f found, err error) {
	f.model = gjson.GetBytes(body, "model").String()
	f.user = gjson.GetBytes(body, "user").String()
	f.stream = gjson.GetBytes(body, "stream").Bool()
	f.maxTokens = gjson.GetBytes(body, "max_tokens").Int()
	raw := gjson.GetBytes(body, "messages").Raw
	f.prompt = raw[:min(len(raw), promptBytes)]
	return f, nil
}
