package cluster

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/catalogue"
)

func TestTally(t *testing.T) { // L3, L7
	t.Parallel()
	for _, c := range []struct {
		name     string
		outcomes []outcome
		up       []bool
	}{
		{"the first good answer brings it in", []outcome{failed, refused, good}, []bool{false, false, true}},
		{"a refused connection takes it out at once", []outcome{good, refused, good}, []bool{true, false, true}},
		{"three failures in a row", []outcome{good, failed, failed, failed, failed, good}, []bool{true, true, true, false, false, true}},
		{"not in a row", []outcome{good, failed, failed, good, failed, failed, good}, []bool{true, true, true, true, true, true, true}},
		{"what could not be asked changes nothing", []outcome{unasked, good, failed, failed, unasked, unasked, failed}, []bool{false, true, true, true, true, true, false}},
		{"never well", []outcome{failed, failed, failed, failed}, []bool{false, false, false, false}},
	} {
		var now tally
		for i, o := range c.outcomes {
			if now = now.after(o); now.up != c.up[i] {
				t.Errorf("%s: after %v up is %v", c.name, c.outcomes[:i+1], now.up)
			}
		}
	}
}

func TestAnEngineIsPublishedOnlyWhenItsChecksAreGood(t *testing.T) { // L3
	t.Parallel()
	e := newEngine(spec{addr: "a:1", models: []string{"m"}})
	up := func() bool { e.publish(); return e.state.up.Load() }
	if up() {
		t.Fatal("in use before any check")
	}
	if !e.file(0, good, false, nil) || !up() {
		t.Fatal("not in use after a good check")
	}
	e.update(spec{addr: "b:1", models: []string{"m"}})
	if up() {
		t.Fatal("in use at a new address before any check there")
	}
	if e.file(0, good, false, nil); up() {
		t.Fatal("in use by an answer of the old address")
	}
	if e.file(1, good, false, nil); !up() {
		t.Fatal("not in use after a good check at the new address")
	}
	if e.file(1, good, true, listing{"other": 0}); up() {
		t.Fatal("in use although it does not list its model")
	}
}

func TestEffectiveModels(t *testing.T) {
	t.Parallel()
	l := listing{"b": 1, "a": 2}
	for _, c := range []struct {
		declared []string
		listed   listing
		want     []string
	}{
		{nil, nil, nil},
		{[]string{"a"}, nil, []string{"a"}},
		{nil, l, []string{"a", "b"}},
		{[]string{"x", "b"}, l, []string{"b"}},
		{[]string{"x"}, l, []string{}},
		{[]string{"x"}, listing{}, []string{}},
	} {
		if got := effective(c.declared, c.listed); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v, %v: %v, want %v", c.declared, c.listed, got, c.want)
		}
	}
}

func TestParseListing(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]listing{
		`{"object":"list","data":[{"id":"m","max_model_len":4096},{"id":"lora","parent":"m"},{"id":""},{"id":"a b"}]}`: {"m": 4096, "lora": 0},
		`{"data":[]}`:                  {},
		`{"object":"chat.completion"}`: nil,
		`[]`:                           nil,
		``:                             nil,
		`{"data":[{"id":1}]}`:          nil,
		`{"data":null}`:                nil,
		`{"data":[{"id":"m","max_model_len":-5}]}`: {"m": 0},
	} {
		if got := parseListing([]byte(body)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}

func TestJitterIsBounded(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for range 1000 {
		d := jittered(time.Second)
		if d < 900*time.Millisecond || d > 1100*time.Millisecond {
			t.Fatalf("%v", d)
		}
		seen[d] = true
	}
	if len(seen) < 100 {
		t.Errorf("only %d different waits of 1000", len(seen))
	}
}

func TestModelsStayKnownForAnHour(t *testing.T) {
	t.Parallel()
	start := time.Now()
	with := []*Pool{poolOf("p", 1, nil)}
	known := models(with, nil, start)
	if known["m"] != (modelInfo{pool: "p"}) {
		t.Fatalf("%+v", known)
	}
	for range 3 {
		known = models(nil, known, start.Add(time.Minute))
	}
	if want := (modelInfo{pool: "p", gone: start.Add(time.Minute)}); known["m"] != want {
		t.Fatalf("%+v", known)
	}
	if again := models(with, known, start.Add(2*time.Minute)); again["m"] != (modelInfo{pool: "p"}) {
		t.Errorf("back again: %+v", again)
	}
	if late := models(nil, known, start.Add(time.Minute+knownFor+1)); len(late) != 0 {
		t.Errorf("after more than an hour: %+v", late)
	}
	denied := poolOf("q", 1, nil)
	denied.Backends[0].Models, denied.Backends[0].declared = nil, []string{"x"}
	if got := models([]*Pool{denied}, nil, start); got["x"] != (modelInfo{pool: "q"}) {
		t.Errorf("a model that its engine does not list: %+v", got)
	}
	c := New(Config{}, catalogue.NewStore(nil), quiet)
	c.current.Store(&view{models: map[string]modelInfo{
		"fresh": {pool: "p", gone: start.Add(-time.Minute)}, "stale": {pool: "p", gone: start.Add(-knownFor - time.Minute)}}})
	if pool, ok := c.ModelPool("fresh"); pool != "p" || !ok {
		t.Errorf("a model that vanished a minute ago: %q, %v", pool, ok)
	}
	if _, ok := c.ModelPool("stale"); ok {
		t.Error("a model that vanished more than an hour ago is known")
	}
}

// TestHealthIsToldOncePerChange: a line when it comes, goes and comes back, none for what goes on.
func TestHealthIsToldOncePerChange(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	e := newEngine(spec{id: "b1", addr: "a:1", models: []string{"m"}})
	e.story.log = zerolog.New(&log)
	told := func(want string) {
		t.Helper()
		if n := strings.Count(log.String(), "\n"); want == "" && n != 0 || want != "" && (n != 1 || !strings.Contains(log.String(), want)) {
			t.Fatalf("told %q, want %q once", log.String(), want)
		}
		log.Reset()
	}
	e.file(0, refused, false, nil)
	told(`"backend":"b1","address":"a:1","reason":"the connection to its port is refused","message":"backend not healthy yet"`)
	e.file(0, failed, false, nil)
	told("")
	e.file(0, good, false, nil)
	told(`"message":"backend healthy"`)
	e.file(0, good, false, nil)
	e.file(0, failed, false, nil)
	e.file(0, failed, false, nil)
	told("")
	e.file(0, failed, false, nil)
	told("backend unhealthy: out of use")
	e.file(0, good, true, listing{"m": 0})
	told(`"message":"backend healthy"`)
	e.file(0, good, true, listing{"other": 0})
	told("lists no model it is registered for")
	e.file(0, good, true, listing{"m": 0})
	told(`"message":"backend healthy"`)
	e.fail("a:1")
	e.fail("a:1")
	told("a request could not connect")
	e.update(spec{id: "b1", addr: "b:1", models: []string{"m"}, draining: true})
	told("draining mark changed")
	e.file(1, good, false, nil)
	told(`"address":"b:1","message":"backend healthy"`)
}
