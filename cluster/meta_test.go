package cluster

import (
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
	"github.com/headgate/headgate/catalogue"
	"github.com/rs/zerolog"
)

var quiet = zerolog.Nop()

func entryOf(id, address string, port int, meta map[string]string) *api.ServiceEntry {
	return &api.ServiceEntry{
		Node:    &api.Node{Node: "n1", Address: "10.0.0.1"},
		Service: &api.AgentService{ID: id, Address: address, Port: port, Meta: meta},
	}
}

func TestParseEntryReadsEveryField(t *testing.T) {
	t.Parallel()
	e := entryOf("b1", "h.example", 8000, map[string]string{
		"model": "qwen, lora,,qwen", "pool": "gpu", "slots": "8", "capacity_mu": "250.4", "hardware": "L40S", "scheme": "https",
		"priority": "true", "somebody": "else's"})
	e.Service.Tags = []string{"x", "draining"}
	e.Service.CreateIndex = 7
	e.Checks = api.HealthChecks{{Status: "passing"}, {Status: "critical"}}
	got, err := parseEntry(e)
	want := spec{id: "b1", node: "n1", created: 7, pool: "gpu", models: []string{"qwen", "lora"}, scheme: "https",
		host: "h.example:8000", addr: "h.example:8000", slots: 8, capacityMU: 250, hardware: "L40S", priority: true,
		draining: true, critical: true}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
	got, err = parseEntry(entryOf("b1", "", 8000, nil))
	if err != nil || got.addr != "10.0.0.1:8000" || got.scheme != "http" || got.slots != defaultSlots {
		t.Errorf("without anything: %v, %+v", err, got)
	}
}

func TestParseEntryAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string][2]string{ // host, addr
		"::1":          {"[::1]:80", "[::1]:80"},
		"[::1]":        {"[::1]:80", "[::1]:80"},
		"fe80::1%eth0": {"[fe80::1]:80", "[fe80::1%eth0]:80"},
		"127.0.0.1":    {"127.0.0.1:80", "127.0.0.1:80"},
		"gpu-1.local":  {"gpu-1.local:80", "gpu-1.local:80"},
		"":             {"10.0.0.1:80", "10.0.0.1:80"},
	} {
		s, err := parseEntry(entryOf("b", address, 80, nil))
		if err != nil || s.host != want[0] || s.addr != want[1] {
			t.Errorf("%q: %v, host %s, addr %s", address, err, s.host, s.addr)
		}
	}
	for _, address := range []string{"a b", "http://x", "x:1", "x/y", "[::1", "::1]", "[]", "-x", "u@h", strings.Repeat("a", 300)} {
		if s, err := parseEntry(entryOf("b", address, 80, nil)); err == nil {
			t.Errorf("%q is taken for %s", address, s.addr)
		}
	}
}

func TestParseEntryRefusesBadMeta(t *testing.T) { // L4
	t.Parallel()
	for name, values := range map[string][]string{
		"model": {"a b", "*", "x\ny"}, "pool": {"a b", "p{x}", strings.Repeat("p", 129)}, "slots": {"0", "-1", "x", "1.5", "100001"},
		"capacity_mu": {"0", "-1", "x", "NaN", "Inf", "1e99"}, "hardware": {"a\x00", strings.Repeat("h", 65)},
		"scheme": {"ftp", "HTTP"}, "priority": {"maybe"},
	} {
		for _, value := range values {
			_, err := parseEntry(entryOf("b", "h", 80, map[string]string{name: value}))
			if err == nil || !strings.Contains(err.Error(), "meta "+name) || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("%s %q: %v", name, value, err)
			}
		}
	}
	for _, e := range []*api.ServiceEntry{nil, {}, {Service: &api.AgentService{}}, entryOf("a b", "h", 80, nil),
		entryOf("b", "h", 0, nil), entryOf("b", "h", 65536, nil), {Service: &api.AgentService{ID: "b", Port: 1}}} {
		if _, err := parseEntry(e); err == nil {
			t.Errorf("%+v was taken", e)
		}
	}
}

func FuzzMeta(f *testing.F) {
	f.Add("b1", "::1", 8000, "qwen,lora", "gpu", "8", "250", "L40S", "https", "true")
	f.Add("", "", -1, ",", "/", "1e9", "NaN", "\x00", "HTTP", "2")
	f.Fuzz(func(t *testing.T, id, address string, port int, model, pool, slots, capacity, hardware, scheme, priority string) {
		s, err := parseEntry(entryOf(id, address, port, map[string]string{"model": model, "pool": pool, "slots": slots,
			"capacity_mu": capacity, "hardware": hardware, "scheme": scheme, "priority": priority}))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		b := newBackend(s.id, engineView{spec: s}, &catalogue.Catalogue{})
		if b.ID == "" || b.Host == "" || b.Slots < 1 || b.CapacityMU < 0 || b.Pool != "" && !catalogue.ValidPool(b.Pool) ||
			strings.ContainsAny(b.ID+b.Host+b.Addr, "\r\n ,") {
			t.Errorf("%+v", b)
		}
	})
}

func TestMembers(t *testing.T) {
	t.Parallel()
	at := func(id, node, addr string, created uint64, critical bool) spec {
		return spec{id: id, node: node, addr: addr, created: created, critical: critical, pool: "p", scheme: "http"}
	}
	cat, err := catalogue.Parse([]byte("models:\n  qwen: {pool: p}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		static, consul []spec
		want           map[string]string // address by id
		twins          []string
	}{
		"the same id on two nodes": {nil, []spec{at("b", "n1", "a:1", 1, false), at("b", "n2", "b:1", 2, false), at("c", "n1", "c:1", 3, false)},
			map[string]string{"b@n1": "a:1", "b@n2": "b:1", "c": "c:1"}, nil},
		"two ids with one address": {nil, []spec{at("old", "n1", "a:1", 1, false), at("new", "n1", "a:1", 2, false)},
			map[string]string{"new": "a:1"}, []string{"old"}},
		"the newer one is critical": {nil, []spec{at("old", "n1", "a:1", 1, false), at("new", "n1", "a:1", 2, true)},
			map[string]string{"old": "a:1"}, []string{"new"}},
		"two ids with one address, whose pool the catalogue names": {nil, []spec{at("old", "n1", "a:1", 1, false), {id: "new", node: "n1", addr: "a:1",
			scheme: "http", created: 2, models: []string{"qwen"}}}, map[string]string{"new": "a:1"}, []string{"old"}},
		"static and Consul": {[]spec{at("b", "", "a:1", 0, false)}, []spec{at("b", "n1", "b:1", 1, false), at("x", "n1", "a:1", 2, false)},
			map[string]string{"b": "a:1", "b@n1": "b:1"}, []string{"x"}},
	} {
		all, twins := members(c.static, c.consul, poolIn(cat))
		got := map[string]string{}
		for id, s := range all {
			got[id] = s.addr
		}
		var left []string
		for _, s := range twins {
			left = append(left, s.id)
		}
		if !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(left, c.twins) {
			t.Errorf("%s: %v, left out %v", name, got, left)
		}
	}
}

func TestParseStatic(t *testing.T) {
	t.Parallel()
	s, err := parseStatic(Static{Pool: "p", URL: "https://[::1]/base/"})
	if err != nil || s.addr != "[::1]:443" || s.basePath != "/base" || s.scheme != "https" || s.id != "[::1]:443" || s.slots != defaultSlots {
		t.Errorf("%v, %+v", err, s)
	}
	for _, bad := range []Static{{Pool: "p", URL: "ftp://x"}, {Pool: "p q", URL: "http://x"}, {Pool: "p", URL: "http://"},
		{Pool: "p", URL: "http://u:p@x"}, {Pool: "p", URL: "http://x", Slots: -1}, {Pool: "p", URL: "http://x:0"}, {Pool: "p", URL: "http://x", ID: "a b"}} {
		if s, err := parseStatic(bad); err == nil {
			t.Errorf("%+v was taken for %+v", bad, s)
		}
	}
}
