package main

import (
	"encoding/json"
	"regexp"
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
	if !regexp.MustCompile(`^key_[0-9A-Z]{26} created for tenant acme[^\n]*\n$`).MatchString(diag) || strings.Contains(diag, key) {
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
