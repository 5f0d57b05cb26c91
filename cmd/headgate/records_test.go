package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
)

// TestKeysCreatePrintsTheKeyAlone: M2. Scripts rely on both forms.
func TestKeysCreatePrintsTheKeyAlone(t *testing.T) {
	redis := lab.Redis(t)
	env := []string{"HG_REDIS_URL=" + redis.URL()}
	status, out, diag := headgate(t, env, "keys", "create", "--tenant", "acme", "--team", "search", "--name", "ci", "--rpm", "60",
		"--tpm", "100000", "--parallel", "4", "--budget", "50/month", "--budget", "5/day", "--models", "qwen*", "--expires", "720h",
		"--user", "bob", "--tags", "a,b", "--priority", "3", "--isolate-prefix")
	if status != 0 || !regexp.MustCompile(`^sk-acme-[0-9A-Za-z]{40}\n$`).MatchString(out) {
		t.Fatalf("status %d, stdout %q, stderr %q", status, out, diag)
	}
	key := strings.TrimSpace(out)
	told := `^tenant "acme" made \(no limits\)\nteam "search" of tenant "acme" made \(no limits\)\nuser "bob" of tenant "acme" made \(no limits\)\n` +
		`key_[0-9A-Z]{26} created for tenant acme[^\n]*\n$`
	if !regexp.MustCompile(told).MatchString(diag) || strings.Contains(diag, key) {
		t.Fatalf("stderr %q", diag)
	}
	if n := redis.CLI("HLEN", coordinator.KeyRecord("acme", coordinator.HashKey(key))); n != "16" {
		t.Fatalf("the record has %s fields: %s", n, redis.CLI("HGETALL", coordinator.KeyRecord("acme", coordinator.HashKey(key))))
	}
	for _, name := range strings.Fields(redis.CLI("KEYS", "*")) {
		if strings.Contains(name, key) {
			t.Fatalf("the key itself is in redis: %s", name)
		}
	}

	var made struct{ ID, Key, Tenant, Team, Name, Created_at string }
	text := must(t, env, "keys", "create", "--tenant", "acme", "--team", "search", "--name", "two", "--json")
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&made); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if !strings.HasPrefix(made.ID, "key_") || !strings.HasPrefix(made.Key, "sk-acme-") || made.Tenant != "acme" || made.Team != "search" || made.Name != "two" {
		t.Fatalf("%s", text)
	}
	if at, err := time.Parse("2006-01-02T15:04:05.000Z", made.Created_at); err != nil || time.Since(at).Abs() > time.Hour {
		t.Fatalf("created_at %s: %v", made.Created_at, err)
	}
	text = must(t, env, "keys", "create", "--tenant", "acme", "--user", "eve", "--rpm", "7", "--expires", "2999-12-31", "--json")
	if !regexp.MustCompile(`^\{"id":"key_[^"]+","key":"sk-acme-[^"]+","tenant":"acme","team":"","name":"","created_at":"[^"]+","user":"eve","rpm":7,"expires_at":"3000-01-01T00:00:00\.000Z"\}\n$`).MatchString(text) {
		t.Fatalf("%s", text)
	}
}

// TestKeysShowTellsWhereAndWhat: the Redis key, what was spent in each current period, and by the secret itself, which is
// not repeated.
func TestKeysShowTellsWhereAndWhat(t *testing.T) {
	redis := lab.Redis(t)
	env := []string{"HG_REDIS_URL=" + redis.URL()}
	secret := strings.TrimSpace(must(t, env, "keys", "create", "--tenant", "acme", "--name", "ci", "--budget", "5/total", "--budget", "2/day"))
	record := coordinator.KeyRecord("acme", coordinator.HashKey(secret))
	id := redis.CLI("HGET", record, "id")
	redis.CLI("HSET", "hg:{t:acme}:spend:key:"+id+":total", "spent_nusd", "1250000000", "reserved_nusd", "1000000", "requests", "3")
	for _, name := range []string{"ci", id, secret} {
		status, out, diag := headgate(t, env, "keys", "show", name)
		if status != 0 || !regexp.MustCompile(`(?m)^redis_key +`+regexp.QuoteMeta(record)+`$`).MatchString(out) ||
			!regexp.MustCompile(`(?m)^spent total +1\.25 USD, 0\.001 reserved, 3\.749 left of 5 \(requests: 3\)$`).MatchString(out) ||
			!regexp.MustCompile(`(?m)^spent \d{4}-\d\d-\d\d +0 USD, 0 reserved, 2 left of 2 `).MatchString(out) || strings.Contains(out+diag, secret) {
			t.Fatalf("show %s: %d %s%s", name, status, out, diag)
		}
	}
	var shown struct {
		Redis_key string
		Spend     []struct {
			Period                                           string
			Spent_nusd, Reserved_nusd, Limit_nusd, Left_nusd int64
		}
	}
	if err := json.Unmarshal([]byte(must(t, env, "keys", "show", "ci", "--json")), &shown); err != nil || shown.Redis_key != record || len(shown.Spend) != 2 ||
		shown.Spend[0].Left_nusd != 3_749_000_000 {
		t.Fatalf("%+v %v", shown, err)
	}
	other := "sk-acme-" + strings.Repeat("x", 40)
	if status, out, diag := headgate(t, env, "keys", "delete", other); status != 1 || strings.Contains(out+diag, other) || !strings.Contains(diag, "not found") {
		t.Fatalf("an unknown secret: %d %s", status, diag)
	}
	if out := must(t, env, "keys", "delete", secret, "--json"); out != `{"deleted":true,"id":"`+id+`","kind":"key","tenant":"acme"}`+"\n" {
		t.Fatalf("delete --json: %s", out)
	}
}

// TestListsMarkWhatDoesNotWork: a key that has ended, and one made by hand without an id.
func TestListsMarkWhatDoesNotWork(t *testing.T) {
	redis := lab.Redis(t)
	env := []string{"HG_REDIS_URL=" + redis.URL()}
	must(t, env, "keys", "create", "--tenant", "acme", "--name", "good", "--expires", "1h")
	hash := coordinator.HashKey("by hand")
	redis.CLI("HSET", coordinator.KeyRecord("acme", hash), "rpm", "5")
	redis.CLI("HSET", coordinator.KeyRecord("acme", coordinator.HashKey("ended")), "id", "ended", "expires_at", "1000")
	status, out, diag := headgate(t, env, "keys", "list", "--scan")
	if status != 0 || strings.Count(out, "(expired)") != 1 || !regexp.MustCompile(`(?m)ended .*1970-01-01T00:00:01\.000Z \(expired\)`).MatchString(out) ||
		!strings.Contains(diag, "warning: "+hash[:12]+" has no field id") {
		t.Fatalf("%d %s%s", status, out, diag)
	}
	if _, _, diag := headgate(t, env, "keys", "show", hash[:12]); !strings.Contains(diag, "warning: id: missing") {
		t.Fatalf("show: %s", diag)
	}
	redis.CLI("HSET", coordinator.KeyRecord("acme", hash), "id", "by-hand")
	if out := must(t, env, "keys", "list"); strings.Count(out, "rpm=5") != 1 || !strings.Contains(out, "by-hand") {
		t.Fatalf("after it got an id: %s", out)
	}
}

// TestKeysAreTakenOver: what create --json prints is an import's line, and so is what other gateways export.
func TestKeysAreTakenOver(t *testing.T) {
	from, to := lab.Redis(t), lab.Redis(t)
	env := []string{"HG_REDIS_URL=" + to.URL()}
	line := must(t, []string{"HG_REDIS_URL=" + from.URL()}, "keys", "create", "--tenant", "acme", "--name", "ci", "--team", "search", "--rpm", "5",
		"--budget", "5/day", "--budget", "7/week", "--models", "a,b*", "--isolate-prefix", "--json")
	file := t.TempDir() + "/keys.jsonl"
	foreign := `{"key":"sk-proj-a_B-c","tenant":"umbrella","budget":["5/day","7/week"],"models":["x","y"],"tpm":1000,"disabled":true,"user":null}`
	if err := os.WriteFile(file, []byte(line+"\n"+foreign+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, diag := headgate(t, env, "keys", "import", "--from", file)
	if status != 0 || out != "" || !strings.HasSuffix(diag, "2 keys imported, 0 there already\n") || strings.Contains(diag, "sk-") {
		t.Fatalf("%d %s%s", status, out, diag)
	}
	if _, _, diag := headgate(t, env, "keys", "import", "--from", file); !strings.HasSuffix(diag, "0 keys imported, 2 there already\n") {
		t.Fatalf("again: %s", diag)
	}
	var made struct{ ID, Key string }
	if err := json.Unmarshal([]byte(line), &made); err != nil {
		t.Fatal(err)
	}
	record := coordinator.KeyRecord("acme", coordinator.HashKey(made.Key))
	if a, b := from.CLI("HGETALL", record), to.CLI("HGETALL", record); sorted(a) != sorted(b) || a == "" {
		t.Fatalf("the records differ:\n%s\n%s", a, b)
	}
	if got := to.CLI("HMGET", coordinator.KeyRecord("umbrella", coordinator.HashKey("sk-proj-a_B-c")), "budget_usd", "period", "budgets", "models", "tpm", "disabled"); strings.Join(strings.Fields(got), " ") != "5 day 7/week x,y 1000 1" {
		t.Fatalf("the foreign record: %s", got)
	}
	if got := to.CLI("GET", coordinator.Alias(coordinator.HashKey("sk-proj-a_B-c"))); got != "umbrella" {
		t.Fatalf("its tenant: %s", got)
	}
	for text, want := range map[string]string{
		`{"key":"sk-secret-1"}`: "line 1: it has no tenant, and --tenant is not given",
		`{"tenant":"acme"}`:     "line 1: it has no key",
		`sk-secret-1`:           "line 1: want one JSON object",
		"\n" + `{"key":"sk-secret-1","tenant":"acme","rmp":5}`: `line 2: key has no field "rmp"`,
		`{"key":"sk-secret-1","tenant":"acme","rpm":{"a":1}}`:  "line 1: rpm: want a text, a number",
		``: "holds no keys",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if status, _, diag := headgate(t, env, "keys", "import", "--from", file); status != 2 || !strings.Contains(diag, want) || strings.Contains(diag, "sk-secret") || strings.Count(diag, "\n") != 1 {
			t.Errorf("%s: %d %s", text, status, diag)
		}
	}
}

// TestGraceTakesDays: also as usage's --since takes them.
func TestGraceTakesDays(t *testing.T) {
	t.Parallel()
	redis := lab.Redis(t)
	env := []string{"HG_REDIS_URL=" + redis.URL()}
	must(t, env, "keys", "create", "--tenant", "acme", "--name", "ci")
	var rotated struct{ Old_expires_at time.Time }
	before := time.Now()
	if out := must(t, env, "keys", "rotate", "ci", "--grace", "7d", "--json"); json.Unmarshal([]byte(out), &rotated) != nil {
		t.Fatal(out)
	}
	const week = 7 * 24 * time.Hour
	if at := rotated.Old_expires_at; at.Before(before.Truncate(time.Millisecond).Add(week)) || at.After(time.Now().Add(week)) {
		t.Errorf("the old key ends at %v", at)
	}
}

// sorted is the fields of an HGETALL in order, as redis-cli prints it.
func sorted(hash string) string {
	parts := strings.Split(hash, "\n")
	var fields []string
	for i := 0; i+1 < len(parts); i += 2 {
		fields = append(fields, parts[i]+"="+parts[i+1])
	}
	slices.Sort(fields)
	return strings.Join(fields, " ")
}

// TestRecordsFromBirthToDeath walks through every verb of every kind.
func TestRecordsFromBirthToDeath(t *testing.T) {
	redis := lab.Redis(t)
	env := []string{"HG_REDIS_URL=" + redis.URL()}
	must(t, env, "tenants", "create", "acme", "--rpm", "600")
	must(t, env, "teams", "create", "search", "--tenant", "acme", "--budget", "50/month")
	must(t, env, "users", "create", "bob@acme.com", "--tenant", "acme", "--tpm", "1000")
	must(t, env, "keys", "create", "--tenant", "acme", "--team", "search", "--name", "ci", "--user", "bob@acme.com")

	for _, c := range []struct{ args, key, want string }{
		{"tenants set acme rpm=0 --parallel 2", "hg:{t:acme}", "rpm=0 parallel=2"},
		{"teams set search --tenant acme --budget 5/day budget=7/week", "hg:{t:acme}:team:search", "budget_usd=5 period=day budgets=7/week"},
		{"users set bob@acme.com --tenant acme tpm= disabled=true", "hg:{t:acme}:user:bob@acme.com", "disabled=1"},
	} {
		out := must(t, env, strings.Fields(c.args)...)
		for _, field := range strings.Fields(c.want) {
			name, value, _ := strings.Cut(field, "=")
			if got := redis.CLI("HGET", c.key, name); got != value {
				t.Errorf("%s: %s is %q in redis", c.args, field, got)
			}
			if !regexp.MustCompile(`(?m)^` + name + ` +` + value + `$`).MatchString(out) {
				t.Errorf("%s: printed %q", c.args, out)
			}
		}
	}
	if got := redis.CLI("HEXISTS", "hg:{t:acme}:user:bob@acme.com", "tpm"); got != "0" {
		t.Error("tpm= did not remove the limit")
	}

	var shown struct {
		ID, Tenant, Name, Team, User string
		RPM                          *int
		Models                       []string
	}
	must(t, env, "keys", "set", "ci", "rpm=5", "--models", "qwen*,small") // the tenant is looked for
	text := must(t, env, "keys", "show", "ci", "--tenant", "acme", "--json")
	if err := json.Unmarshal([]byte(text), &shown); err != nil || shown.RPM == nil || *shown.RPM != 5 || len(shown.Models) != 2 || shown.User != "bob@acme.com" {
		t.Fatalf("%v: %s", err, text)
	}
	list := must(t, env, "keys", "list")
	if !strings.Contains(list, shown.ID) || !strings.Contains(list, "rpm=5 models=qwen*,small") || strings.Contains(list, "sk-") {
		t.Fatalf("list: %s", list)
	}

	redis.CLI("HSET", "hg:{t:acme}:key:"+coordinator.HashKey("x"), "id", "by-hand", "rpm", "a few")
	if list := must(t, env, "keys", "list", "--tenant", "acme", "--scan"); !strings.Contains(list, "by-hand") || !strings.Contains(list, "(faulty: see show)") {
		t.Fatalf("list --scan: %s", list)
	}
	if _, _, diag := headgate(t, env, "keys", "show", "by-hand"); !strings.Contains(diag, "warning: rpm: want a whole number") {
		t.Fatalf("show: %s", diag)
	}

	if status, _, diag := headgate(t, env, "teams", "delete", "search", "--tenant", "acme"); status != 1 || !strings.Contains(diag, "in use") || !strings.Contains(diag, "--keys") {
		t.Fatalf("delete of a team in use: %d %s", status, diag)
	}
	must(t, env, "keys", "delete", shown.ID)
	must(t, env, "teams", "delete", "search", "--tenant", "acme")
	must(t, env, "users", "delete", "bob@acme.com", "--tenant", "acme")
	must(t, env, "tenants", "delete", "acme", "--keys")
	if left := redis.CLI("KEYS", "*"); strings.TrimSpace(left) != "" {
		t.Fatalf("left in redis: %s", left)
	}
	if out := must(t, env, "tenants", "list", "--json"); out != "[]\n" {
		t.Fatalf("tenants: %s", out)
	}
}
