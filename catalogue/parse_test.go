package catalogue_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/catalogue"
)

const example = `
models:
  qwen-7b:                      # the public name
    pool: qwen-7b               # default: the name
    aliases: [small]
    price: {prompt: 0.20, cached: 0.05, completion: 0.60}
    max_output_tokens: 4096
    image_tokens: 800
    units: {request: 1, prompt: 0.01, cached: 0.001, completion: 0.04, image: 20}
    cache: {ttl: 10m, max_bytes: 1048576, coalesce: true}
    fallbacks: [qwen-72b]
    providers: [{url: "https://example.com/v1", keys_env: [PROVIDER_KEY_1, PROVIDER_KEY_2], rpm: 600}]
  qwen-72b:
`

func TestParseReadsEveryField(t *testing.T) {
	t.Parallel()
	c, err := catalogue.Parse([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	got, ok := c.Resolve("small")
	if !ok {
		t.Fatal("the alias is not known")
	}
	want := catalogue.Model{
		Name: "qwen-7b", Pool: "qwen-7b", Aliases: []string{"small"},
		Priced: true, Price: catalogue.Price{Prompt: 200_000, Cached: 50_000, Completion: 600_000},
		MaxOutputTokens: 4096, ImageTokens: 800,
		Units:     catalogue.DefaultUnits,
		Cache:     catalogue.Cache{TTL: 10 * time.Minute, MaxBytes: 1 << 20, Coalesce: true},
		Fallbacks: []string{"qwen-72b"},
		Providers: []catalogue.Provider{{URL: "https://example.com/v1",
			KeysEnv: []string{"PROVIDER_KEY_1", "PROVIDER_KEY_2"}, RPM: 600}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if names := c.Names(); !reflect.DeepEqual(names, []string{"qwen-72b", "qwen-7b"}) {
		t.Errorf("names %v", names)
	}
	bare, _ := c.Resolve("qwen-72b")
	if bare.Priced || bare.Pool != "qwen-72b" || bare.Units != catalogue.DefaultUnits || bare.Cache.TTL != 0 || bare.ImageTokens != 2048 {
		t.Errorf("an empty entry is %+v", bare)
	}
	if _, ok := c.Resolve("nobody"); ok {
		t.Error("a name that is nowhere was found")
	}
}

func TestParsePricesAreExact(t *testing.T) { // I1
	t.Parallel()
	for written, want := range map[string]int64{
		"0": 0, "0.0": 0, "0.20": 200_000, "0.000001": 1, "0.1": 100_000, "0.3": 300_000, "2": 2_000_000,
		"1.000000": 1_000_000, "10000": 10_000_000_000, `"0.6"`: 600_000, "0.123456000": 123_456,
	} {
		c, err := catalogue.Parse(fmt.Appendf(nil, "models: {m: {price: {prompt: %s, completion: 1}}}", written))
		if err != nil {
			t.Errorf("%s: %v", written, err)
			continue
		}
		m, _ := c.Resolve("m")
		if !m.Priced || m.Price.Prompt != want || m.Price.Cached != want {
			t.Errorf("%s: %+v, want prompt and cached %d", written, m.Price, want)
		}
	}
	for _, written := range []string{"0.0000001", "-1", "10000.000001", "1e3", "0x10", "1_000", ".5", ".inf", ".nan",
		"~", "abc", "[1]", "{}", "99999999999999999999", "1/3", "true", "0.1.2", "''"} {
		_, err := catalogue.Parse(fmt.Appendf(nil, "models:\n  m:\n    price: {prompt: %s, completion: 1}\n", written))
		if err == nil || !strings.Contains(err.Error(), "line 3, model m, price.prompt:") {
			t.Errorf("%s: error %v", written, err)
		}
	}
}

func TestParseNamesEveryFault(t *testing.T) { // I4, I5
	t.Parallel()
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"several at once": {`
models:
  a:
    prise: {prompt: 1}
    pool: "no pool"
    units: {prompt: 0.0001, token: 1}
    max_output_tokens: 0
    cache: {max_bytes: 1TB}
  b:
    aliases: [a, x, x]
    fallbacks: [b, ghost, a, a]
    price: {prompt: 1, cached: 2}
    providers: [{url: ftp://x, keys_env: ["sk-secret"]}, {rpm: -1}]
  c: {aliases: [x]}
`, []string{
			`line 4, model a: unknown field "prise"`, `line 5, model a, pool: "no pool" is not`,
			`line 6, model a, units.prompt: "0.0001" is not a figure with at most 3 decimals`,
			`line 6, model a, units: unknown field "token"`,
			`line 7, model a, max_output_tokens: "0" is not a whole number from 1`,
			`line 8, model a, cache.max_bytes: "1TB"`, `line 8, model a, cache: ttl is missing`,
			`model b, aliases: "a" is a model's name`, `model b, aliases: "x" stands there twice`,
			`model b, fallbacks: a model cannot fall back to itself`, `model b, fallbacks: "ghost" is no model`,
			`model b, fallbacks: "a" stands there twice`, `line 12, model b, price: completion is missing`,
			`line 12, model b, price: cached is above prompt`, `model b, providers[0].url: must be an http or https URL`,
			`model b, providers[0].keys_env: must be names of environment variables`,
			`model b, providers[1].rpm: "-1"`, `model b, providers[1]: url is missing`,
			`model c, aliases: "x" is already an alias of b`,
		}},
		"not YAML":         {"models: {a: [}", []string{"line 1"}},
		"a list":           {"- a\n- b\n", []string{"must begin with models"}},
		"models is a list": {"models: [a]", []string{"line 1, models"}},
		"an unknown top":   {"modles: {a: {}}", []string{`unknown field "modles"`}},
		"twice":            {"models:\n  a: {}\n  a: {}\n", []string{`line 3`, `"a"`}},
		"two documents":    {"models: {}\n---\nmodels: {}\n", []string{"second document"}},
		"a bad name":       {"models: {'a b': {}}", []string{"not a model name"}},
		"a model is text":  {"models: {a: yes}", []string{"model a: must be a mapping"}},
	} {
		_, err := catalogue.Parse([]byte(c.file))
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("%s: more than one line: %q", name, err)
		}
		if strings.Contains(err.Error(), "sk-secret") {
			t.Errorf("%s: the error quotes a secret", name)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", name, want, err)
			}
		}
	}
}

func TestParseFollowsAnchorsAndMergeKeys(t *testing.T) {
	t.Parallel()
	c, err := catalogue.Parse([]byte(`
models:
  a: &base
    price: &p {prompt: 1, completion: 2}
    units: {prompt: 0.5}
  b:
    <<: *base
    pool: shared
    units: {prompt: 2}
  c: {price: *p}
`))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := c.Resolve("b")
	if b.Pool != "shared" || b.Price.Completion != 2_000_000 || b.Units.Prompt != 2000 {
		t.Errorf("b is %+v", b)
	}
	if m, _ := c.Resolve("c"); m.Price.Prompt != 1_000_000 {
		t.Errorf("c is %+v", m)
	}
	if _, err := catalogue.Parse([]byte("models: &m\n  a: *m\n")); err == nil {
		t.Error("a mapping inside itself was accepted")
	}
}

func TestParseEmptyFileIsAnEmptyCatalogue(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"", "\n# nothing yet\n", "models:\n", "models: {}\n"} {
		c, err := catalogue.Parse([]byte(file))
		if err != nil || len(c.Names()) != 0 {
			t.Errorf("%q: %v, %v", file, c, err)
		}
	}
}

func TestPoolOfIsAlwaysAPoolAndKeepsModelsApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, model := range []string{"qwen", "meta/llama-3.1", "llama3:8b", "llama3-8b", "llama3+8b", strings.Repeat("m", 200), strings.Repeat("m", 201)} {
		pool := catalogue.PoolOf(model)
		if !catalogue.ValidPool(pool) {
			t.Errorf("%q: %q is no pool's name", model, pool)
		}
		if other, ok := seen[pool]; ok {
			t.Errorf("%q and %q share %q", model, other, pool)
		}
		seen[pool] = model
	}
	if catalogue.PoolOf("meta/llama-3.1") != "meta/llama-3.1" {
		t.Error("a name that may be a pool's is changed")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("models: &m\n  a: *m\n"))
	f.Add([]byte("models: {a: {<<: [*x, *y]}}"))
	f.Add([]byte("? [a]\n: b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := catalogue.Parse(data)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		for _, name := range c.Names() {
			m, ok := c.Resolve(name)
			if !ok || m.Name != name || !catalogue.ValidPool(m.Pool) || m.Price.Prompt < 0 || m.Price.Cached > m.Price.Prompt {
				t.Errorf("%q: %+v", name, m)
			}
		}
	})
}
