package coordinator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// directoryAt opens a directory on a Redis. The store it returns is for looking at what is really stored.
func directoryAt(t *testing.T, url string, simple bool) (*coordinator.Directory, *pipeline.Store) {
	t.Helper()
	store, err := pipeline.NewStore(pipeline.StoreConfig{Name: "test", URL: url, Simple: simple, Timeout: 5 * time.Second, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = store.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	wait, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	if err := store.WaitConnected(wait); err != nil {
		t.Fatal(err)
	}
	return coordinator.NewDirectory(store), store
}

// onEveryRedis runs a test on a node, a cluster and the embedded store of dev.
func onEveryRedis(t *testing.T, test func(t *testing.T, d *coordinator.Directory, s *pipeline.Store)) {
	t.Run("cluster", func(t *testing.T) {
		d, s := directoryAt(t, lab.Cluster(t, 3).URL(), false)
		test(t, d, s)
	})
	onOneNode(t, test)
}

func onOneNode(t *testing.T, test func(t *testing.T, d *coordinator.Directory, s *pipeline.Store)) {
	t.Run("node", func(t *testing.T) {
		d, s := directoryAt(t, lab.Redis(t).URL(), false)
		test(t, d, s)
	})
	t.Run("embedded", func(t *testing.T) {
		d, s := directoryAt(t, "redis://"+miniredis.RunT(t).Addr(), true)
		test(t, d, s)
	})
}

func redisDo(t *testing.T, s *pipeline.Store, name, key string, args ...string) {
	t.Helper()
	if _, err := s.Do(t.Context(), name, key, args...); err != nil {
		t.Fatalf("%s %s: %v", name, key, err)
	}
}

func fieldsOf(t *testing.T, s *pipeline.Store, key string) map[string]string {
	t.Helper()
	m, err := s.Do(t.Context(), "HGETALL", key)
	if err != nil {
		t.Fatal(err)
	}
	fields, err := m.AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

func key(tenant, id string) coordinator.Ref {
	return coordinator.Ref{Kind: coordinator.KindKey, Tenant: tenant, ID: id}
}

func tenant(name string) coordinator.Ref {
	return coordinator.Ref{Kind: coordinator.KindTenant, Tenant: name}
}

func team(tenant, id string) coordinator.Ref {
	return coordinator.Ref{Kind: coordinator.KindTeam, Tenant: tenant, ID: id}
}

// TestCreateKey: D2, and the tenant, team and user a key names are made with it.
func TestCreateKey(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		entry, secret, err := d.CreateKey(t.Context(), "acme-1", coordinator.Changes{
			"name": "ci", "team": "search", "user": "bob", "rpm": "060", "budget": "50/month 5/day", "models": "qwen*, small", "expires_at": "30d"})
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`^sk-acme-1-[0-9A-Za-z]{40}$`).MatchString(secret) {
			t.Fatalf("key %q", secret)
		}
		if !regexp.MustCompile(`^key_[0-7][0-9A-HJKMNP-TV-Z]{25}$`).MatchString(entry.ID) {
			t.Fatalf("id %q", entry.ID)
		}
		stored := fieldsOf(t, s, "hg:{t:acme-1}:key:"+coordinator.HashKey(secret))
		created, expires := stored["created_at"], stored["expires_at"]
		delete(stored, "created_at")
		delete(stored, "expires_at")
		want := map[string]string{"id": entry.ID, "name": "ci", "team": "search", "user": "bob", "rpm": "60",
			"budget_usd": "50", "period": "month", "budgets": "5/day", "models": "qwen*,small"}
		if fmt.Sprint(stored) != fmt.Sprint(want) {
			t.Fatalf("stored %v\nwant   %v", stored, want)
		}
		var from, to int64
		fmt.Sscan(created+" "+expires, &from, &to)
		if to-from != 30*24*3600*1000 || time.Since(time.UnixMilli(from)).Abs() > time.Hour {
			t.Fatalf("created %s, expires %s", created, expires)
		}
		for _, r := range []coordinator.Ref{tenant("acme-1"), team("acme-1", "search"), {Kind: coordinator.KindUser, Tenant: "acme-1", ID: "bob"}} {
			if e, err := d.Show(t.Context(), r); err != nil || e.CreatedAt().IsZero() {
				t.Fatalf("%s: %v %v", r, e, err)
			}
			list, err := d.List(t.Context(), r.Kind, r.Tenant)
			if err != nil || len(list) != 1 || list[0].Ref != r {
				t.Fatalf("list of %s: %v %v", r.Kind, list, err)
			}
		}
		again, other, err := d.CreateKey(t.Context(), "acme-1", coordinator.Changes{"team": "search"})
		if err != nil || other == secret || again.ID == entry.ID {
			t.Fatalf("second key: %v %v", again, err)
		}
		keys, err := d.List(t.Context(), coordinator.KindKey, "acme-1")
		if err != nil || len(keys) != 2 {
			t.Fatalf("keys: %v %v", keys, err)
		}
	})
}

// TestSetActsOnTheRecord: what is changed, added and removed is what Redis holds, and nothing else.
func TestSetActsOnTheRecord(t *testing.T) {
	onOneNode(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		r := team("acme", "search & find")
		if _, err := d.Create(t.Context(), r, coordinator.Changes{"rpm": "60", "budget": "50/month"}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Create(t.Context(), r, nil); !errors.Is(err, coordinator.ErrExists) {
			t.Fatalf("second create: %v", err)
		}
		entry, err := d.Set(t.Context(), r, coordinator.Changes{"rpm": "", "tpm": "1000", "disabled": "true", "budget": "5/day"})
		if err != nil {
			t.Fatal(err)
		}
		stored := fieldsOf(t, s, coordinator.TeamPolicy("acme", r.ID))
		delete(stored, "created_at")
		if got := fmt.Sprint(stored); got != "map[budget_usd:5 disabled:1 name:search & find period:day tpm:1000]" {
			t.Fatalf("stored %s", got)
		}
		text, err := json.Marshal(entry)
		if err != nil || !strings.Contains(string(text), `"id":"search \u0026 find","name":"search \u0026 find","disabled":true,"tpm":1000,"budget_usd":5,"period":"day","created_at":"2`) {
			t.Fatalf("%s %v", text, err)
		}
		if _, err = d.Set(t.Context(), r, coordinator.Changes{"budget": "", "disabled": "false"}); err != nil {
			t.Fatal(err)
		}
		stored = fieldsOf(t, s, coordinator.TeamPolicy("acme", r.ID))
		delete(stored, "created_at")
		if got := fmt.Sprint(stored); got != "map[name:search & find tpm:1000]" {
			t.Fatalf("stored %s", got)
		}
	})
}

// TestDeletedStaysDeleted: D1. A change that was on its way when the key was revoked does not bring it back.
func TestDeletedStaysDeleted(t *testing.T) {
	onOneNode(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		entry, secret, err := d.CreateKey(t.Context(), "acme", coordinator.Changes{"name": "ci"})
		if err != nil {
			t.Fatal(err)
		}
		wrote := make(chan error, 20)
		for i := range cap(wrote) {
			go func() {
				_, err := d.Set(context.Background(), key("acme", entry.ID), coordinator.Changes{"rpm": fmt.Sprint(i)})
				wrote <- err
			}()
		}
		if err := d.Delete(t.Context(), key("acme", "ci"), false); err != nil {
			t.Fatal(err)
		}
		for range cap(wrote) {
			if err := <-wrote; err != nil && !errors.Is(err, coordinator.ErrNotFound) {
				t.Fatal(err)
			}
		}
		if stored := fieldsOf(t, s, coordinator.KeyRecord("acme", coordinator.HashKey(secret))); len(stored) != 0 {
			t.Fatalf("the record is back: %v", stored)
		}
		if index := fieldsOf(t, s, coordinator.KeyIndex("acme")); len(index) != 0 {
			t.Fatalf("index: %v", index)
		}
		if err := d.Delete(t.Context(), key("acme", entry.ID), false); !errors.Is(err, coordinator.ErrNotFound) {
			t.Fatalf("second delete: %v", err)
		}
	})
}

// TestDeleteKeepsLimitsOfKeys: D3, for keys made by hand too.
func TestDeleteKeepsLimitsOfKeys(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		if _, err := d.Create(t.Context(), team("acme", "search"), coordinator.Changes{"rpm": "1"}); err != nil {
			t.Fatal(err)
		}
		record := coordinator.KeyRecord("acme", coordinator.HashKey("sk-acme-0123456789abcdefghijklmnopqrstuv"))
		redisDo(t, s, "HSET", record, "id", "by-hand", "team", "search")
		if err := d.Delete(t.Context(), team("acme", "search"), false); !errors.Is(err, coordinator.ErrInUse) {
			t.Fatalf("team with a key: %v", err)
		}
		if err := d.Delete(t.Context(), tenant("acme"), false); !errors.Is(err, coordinator.ErrInUse) {
			t.Fatalf("tenant with a key: %v", err)
		}
		if _, _, err := d.CreateKey(t.Context(), "acme", coordinator.Changes{"team": "R&D"}); err != nil {
			t.Fatal(err)
		}
		if err := d.Delete(t.Context(), team("acme", "R&D"), false); !errors.Is(err, coordinator.ErrInUse) {
			t.Fatalf("team whose id stands hashed in key names: %v", err)
		}
		if err := d.Delete(t.Context(), team("acme", "search"), true); err != nil {
			t.Fatal(err)
		}
		if left := fieldsOf(t, s, record); len(left) != 0 {
			t.Fatalf("key of the removed team: %v", left)
		}
		if keys, err := d.List(t.Context(), coordinator.KindKey, "acme"); err != nil || len(keys) != 1 {
			t.Fatalf("the other team's key: %v %v", keys, err)
		}
		if err := d.Delete(t.Context(), tenant("acme"), true); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"hg:{t:acme}", coordinator.KeyIndex("acme"), coordinator.TeamIndex("acme"), coordinator.TeamPolicy("acme", "R&D")} {
			if m, err := s.Do(t.Context(), "EXISTS", name); err != nil {
				t.Fatal(err)
			} else if n, _ := m.AsInt64(); n != 0 {
				t.Fatalf("%s is still there", name)
			}
		}
		if tenants, err := d.List(t.Context(), coordinator.KindTenant, ""); err != nil || len(tenants) != 0 {
			t.Fatalf("tenants: %v %v", tenants, err)
		}
	})
}

// TestRecordsMadeByHand: D4.
func TestRecordsMadeByHand(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		redisDo(t, s, "HSET", "hg:{t:acme}", "rpm", "100")
		redisDo(t, s, "HSET", coordinator.TeamPolicy("acme", "search"), "tpm", "5")
		for i := range 3 {
			redisDo(t, s, "HSET", coordinator.KeyRecord("acme", coordinator.HashKey(fmt.Sprint("sk", i))), "id", fmt.Sprint("hand-", i), "name", "twin")
		}
		nameless := coordinator.HashKey("sk-acme-nameless")
		redisDo(t, s, "HSET", coordinator.KeyRecord("acme", nameless), "rpm", "3")

		if list, err := d.List(t.Context(), coordinator.KindKey, "acme"); err != nil || len(list) != 0 {
			t.Fatalf("listed before: %v %v", list, err)
		}
		for _, r := range []coordinator.Ref{key("acme", "hand-1"), key("acme", nameless[:12]), team("acme", "search"), tenant("acme")} {
			if _, err := d.Show(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Show(t.Context(), key("acme", "twin")); !errors.Is(err, coordinator.ErrInvalid) || !strings.Contains(err.Error(), "hand-0, hand-1, hand-2") {
			t.Fatalf("three keys of one name: %v", err)
		}
		if _, err := d.Set(t.Context(), key("acme", "hand-1"), coordinator.Changes{"name": "single"}); err != nil {
			t.Fatal(err)
		}
		if e, err := d.Show(t.Context(), key("acme", "single")); err != nil || e.ID != "hand-1" {
			t.Fatalf("by name: %v %v", e, err)
		}
		if err := d.Reindex(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		for kind, want := range map[coordinator.Kind]int{coordinator.KindKey: 4, coordinator.KindTeam: 1, coordinator.KindTenant: 1} {
			if list, err := d.List(t.Context(), kind, "acme"); err != nil || len(list) != want {
				t.Fatalf("%ss: %v %v", kind, list, err)
			}
		}
		if _, err := d.Show(t.Context(), key("acme", "nobody")); !errors.Is(err, coordinator.ErrNotFound) {
			t.Fatalf("unknown: %v", err)
		}
	})
}

// TestBrokenRecordIsShown: D5.
func TestBrokenRecordIsShown(t *testing.T) {
	d, s := directoryAt(t, "redis://"+miniredis.RunT(t).Addr(), true)
	redisDo(t, s, "HSET", "hg:{t:acme}", "rpm", "1.5", "rmp", "5", "disabled", "yes", "created_at", "x", "parallel", "4")
	e, err := d.Show(t.Context(), tenant("acme"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"tenant":"acme","disabled":true,"rpm":1.5,"parallel":4,"created_at":"x","rmp":"5","faults":[` +
		`"created_at: want milliseconds since 1970","rmp: not a known field","rpm: want a whole number, 0 or more"]}`
	if string(text) != want {
		t.Fatalf("got  %s\nwant %s", text, want)
	}
	redisDo(t, s, "SET", "hg:{t:beta}", "not a hash")
	if _, err := d.Show(t.Context(), tenant("beta")); err == nil {
		t.Fatal("a record of another type was read")
	}
}

// TestChecks: D5. Nothing of a refused change is written.
func TestChecks(t *testing.T) {
	d, s := directoryAt(t, "redis://"+miniredis.RunT(t).Addr(), true)
	for _, c := range []struct{ field, value, want string }{
		{"rpm", "-1", "whole number"},
		{"rpm", "1.5", "whole number"},
		{"tpm", "10k", "whole number"},
		{"parallel", "99999999999999999999", "whole number"},
		{"budget", "50", "50/month"},
		{"budget", "50/fortnight", "want day, week, month"},
		{"budget", "9000001/total", "9,000,000"},
		{"budget", "1e3/day", "want dollars"},
		{"budget", "50/month 5/month", "two budgets for one period"},
		{"rpm", "1000000000000000", "whole number"},
		{"period", "day", "period without budget_usd"},
		{"budgets", "5", "per period"},
		{"period", "0d", "want day"},
		{"models", "a b", "without spaces"},
		{"models", "a,,b", "separated by commas"},
		{"priority", "10", "0 to 9"},
		{"tags", "a,b,c,d,e,f,g,h,i", "at most 8"},
		{"disabled", "perhaps", "true or false"},
		{"expires_at", "tomorrow", "720h"},
		{"expires_at", "-1h", "720h"},
		{"name", "two\nlines", "control"},
		{"id", "key_x", "cannot be changed"},
		{"rmp", "5", `no field "rmp" (known: name, team, user, disabled, rpm, tpm,`},
	} {
		_, _, err := d.CreateKey(t.Context(), "acme", coordinator.Changes{c.field: c.value})
		if !errors.Is(err, coordinator.ErrInvalid) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s=%s: %v, want %q in one line", c.field, c.value, err, c.want)
		}
	}
	for _, name := range []string{"", "Acme", "-acme", "ac me", "acme}", strings.Repeat("a", 64)} {
		if _, _, err := d.CreateKey(t.Context(), name, nil); !errors.Is(err, coordinator.ErrInvalid) {
			t.Errorf("tenant %q: %v", name, err)
		}
	}
	if _, err := d.Create(t.Context(), tenant("acme"), coordinator.Changes{"expires_at": "1h"}); !errors.Is(err, coordinator.ErrInvalid) {
		t.Errorf("expires_at on a tenant: %v", err)
	}
	if m, err := s.Do(t.Context(), "DBSIZE", ""); err != nil {
		t.Fatal(err)
	} else if n, _ := m.AsInt64(); n != 0 {
		t.Errorf("refused changes left %d keys", n)
	}
}
