package coordinator_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// TestRotate: two records of one id; what is set or deleted later concerns both, and the list shows one.
func TestRotate(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		first, one, err := d.CreateKey(t.Context(), "acme", coordinator.Changes{"name": "ci", "rpm": "5", "budget": "100/30d"})
		if err != nil {
			t.Fatal(err)
		}
		old := coordinator.KeyRecord("acme", coordinator.HashKey(one))
		r, err := d.Rotate(t.Context(), key("acme", "ci"), time.Hour)
		if err != nil || r.ID != first.ID || r.Secret == one || time.Until(r.OldEnd).Round(time.Minute) != time.Hour {
			t.Fatalf("%+v %v", r, err)
		}
		fresh := fieldsOf(t, s, coordinator.KeyRecord("acme", coordinator.HashKey(r.Secret)))
		before := fieldsOf(t, s, old)
		if before["expires_at"] != fmt.Sprint(r.OldEnd.UnixMilli()) || fresh["expires_at"] != "" || fresh["previous"] != coordinator.HashKey(one) {
			t.Fatalf("old %v, new %v", before, fresh)
		}
		delete(before, "expires_at")
		delete(fresh, "previous")
		if fmt.Sprint(before) != fmt.Sprint(fresh) {
			t.Fatalf("the records differ: old %v, new %v", before, fresh)
		}
		for range 2 { // also when the index is made anew
			if list, err := d.List(t.Context(), coordinator.KindKey, "acme"); err != nil || len(list) != 1 || list[0].RedisKey() != coordinator.KeyRecord("acme", coordinator.HashKey(r.Secret)) {
				t.Fatalf("list: %v %v", list, err)
			}
			if err := d.Reindex(t.Context(), "acme"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Set(t.Context(), key("acme", "ci"), coordinator.Changes{"rpm": "7", "budget": "", "expires_at": "30d"}); err != nil {
			t.Fatal(err)
		}
		before = fieldsOf(t, s, old)
		if before["rpm"] != "7" || before["budget_usd"] != "" || before["expires_at"] != fmt.Sprint(r.OldEnd.UnixMilli()) {
			t.Fatalf("the old record after a change: %v", before)
		}
		second, err := d.Rotate(t.Context(), key("acme", first.ID), 0)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := d.FindSecret(t.Context(), one); err != nil || e.ID != first.ID || strings.Contains(fmt.Sprint(e), one) {
			t.Fatalf("by its old secret: %v %v", e, err)
		}
		if _, err := d.Rotate(t.Context(), key("acme", first.ID), 0); err != nil { // two ended keys, but the first still works
			t.Fatal(err)
		}
		if len(fieldsOf(t, s, old)) == 0 {
			t.Fatal("a key in its grace time was removed")
		}
		if err := d.Delete(t.Context(), key("acme", "ci"), false); err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{one, r.Secret, second.Secret} {
			if left := fieldsOf(t, s, coordinator.KeyRecord("acme", coordinator.HashKey(secret))); len(left) != 0 {
				t.Fatalf("left after delete: %v", left)
			}
		}
		if list, err := d.List(t.Context(), coordinator.KindKey, "acme"); err != nil || len(list) != 0 {
			t.Fatalf("list after delete: %v %v", list, err)
		}
	})
}

// TestTheIndexFollowsRotations, in whatever order the records are found.
func TestTheIndexFollowsRotations(t *testing.T) {
	onOneNode(t, func(t *testing.T, d *coordinator.Directory, _ *pipeline.Store) {
		e, _, err := d.CreateKey(t.Context(), "acme", nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			r, err := d.Rotate(t.Context(), e.Ref, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Reindex(t.Context(), "acme"); err != nil {
				t.Fatal(err)
			}
			if now, err := d.Show(t.Context(), e.Ref); err != nil || now.RedisKey() != r.RedisKey() {
				t.Fatalf("%v %v, want %s", now.RedisKey(), err, r.RedisKey())
			}
		}
	})
}

// TestRotateRefuses what cannot work afterwards.
func TestRotateRefuses(t *testing.T) {
	onOneNode(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		e, _, err := d.CreateKey(t.Context(), "acme", coordinator.Changes{"name": "ci", "expires_at": "1h"})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := d.Rotate(t.Context(), e.Ref, 24*time.Hour); err != nil || !r.OldEnd.Equal(e.ExpiresAt()) {
			t.Fatalf("a key that ends within the grace time: %+v %v", r, err)
		}
		redisDo(t, s, "HSET", coordinator.KeyRecord("acme", coordinator.HashKey("x")), "rpm", "1")
		redisDo(t, s, "HSET", coordinator.KeyRecord("acme", coordinator.HashKey("y")), "id", "ended", "expires_at", "1000")
		for _, c := range []struct {
			ref   coordinator.Ref
			grace time.Duration
			want  string
		}{
			{key("acme", coordinator.HashKey("x")[:12]), 0, "has no id"}, {key("acme", "ended"), 0, "has ended"}, {e.Ref, -1, "want 0 or more"},
		} {
			if _, err := d.Rotate(t.Context(), c.ref, c.grace); !errors.Is(err, coordinator.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v, want %s", c.ref, err, c.want)
			}
		}
	})
}

// TestImport: any shape, found by its secret, repeatable, and nothing at all when one of them is at fault.
func TestImport(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		const mine, shaped, short = "sk-proj-AbC_d-1234567890abcdefghij", "sk-other-0123456789abcdefghijABCDEFGHIJ0123", "legacy"
		keys := []coordinator.Foreign{
			{Secret: mine, Tenant: "acme", ID: "key-7", Created: "2026-01-31T00:00:00Z", Policy: coordinator.Changes{"team": "search", "rpm": "60", "models": "a,b"}},
			{Secret: shaped, Tenant: "acme"},
			{Secret: short, Tenant: "umbrella", Policy: coordinator.Changes{"budget": "5/day"}},
		}
		for again := range 2 {
			done, err := d.Import(t.Context(), keys)
			if err != nil || len(done) != 3 || done[0].There != (again == 1) || done[0].ID != "key-7" {
				t.Fatalf("%+v %v", done, err)
			}
		}
		for secret, tenant := range map[string]string{mine: "acme", shaped: "acme", short: "umbrella"} {
			e, err := d.FindSecret(t.Context(), secret)
			if err != nil || e.Tenant != tenant || len(e.Faults()) != 0 {
				t.Fatalf("%v %v", e, err)
			}
			if m, err := s.Do(t.Context(), "GET", coordinator.Alias(coordinator.HashKey(secret))); err != nil {
				t.Fatal(err)
			} else if owner, _ := m.ToString(); owner != tenant {
				t.Fatalf("alias leads to %q", owner)
			}
		}
		if list, err := d.List(t.Context(), coordinator.KindKey, "acme"); err != nil || len(list) != 2 {
			t.Fatalf("%v %v", list, err)
		}
		if e, err := d.Show(t.Context(), key("acme", "key-7")); err != nil || coordinator.FormatTime(e.CreatedAt()) != "2026-01-31T00:00:00.000Z" || e.Fields["team"] != "search" {
			t.Fatalf("%v %v", e, err)
		}
		faulty := []coordinator.Foreign{
			{Secret: "good-one", Tenant: "acme"},
			{Secret: "second", Tenant: "acme", Policy: coordinator.Changes{"rpm": "many"}},
			{Secret: mine, Tenant: "umbrella"},
			{Secret: "fourth", Tenant: "acme", ID: "key-7"},
			{Secret: " fifth", Tenant: "acme"},
			{Secret: "good-one", Tenant: "acme"},
			{Secret: "seventh", Tenant: "Acme"},
			{Secret: "eighth", Tenant: "acme", Policy: coordinator.Changes{"expires_at": "2020-01-01"}},
		}
		for i := range faulty {
			faulty[i].Line = 10 + i
		}
		_, err := d.Import(t.Context(), faulty)
		if !errors.Is(err, coordinator.ErrInvalid) {
			t.Fatal(err)
		}
		for _, want := range []string{`line 11: rpm "many"`, `line 12: the key belongs to tenant "acme"`, `line 13: id "key-7" is another key's`, "line 14: key: want",
			"line 15: the same key or id as in line 10", `line 16: tenant "Acme"`, `line 17: expires_at "2020-01-01": is in the past`} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %v", want, err)
			}
		}
		if strings.Contains(err.Error(), mine) || strings.Contains(err.Error(), "fifth") {
			t.Errorf("a secret is in the error: %v", err)
		}
		if _, err := d.FindSecret(t.Context(), "good-one"); !errors.Is(err, coordinator.ErrNotFound) {
			t.Errorf("a key of a refused import is there: %v", err)
		}
		if err := d.Delete(t.Context(), key("acme", "key-7"), false); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Do(t.Context(), "EXISTS", coordinator.Alias(coordinator.HashKey(mine))); err != nil {
			t.Fatal(err)
		} else if n, _ := m.AsInt64(); n != 0 {
			t.Error("the alias of a deleted key is left")
		}
	})
}

// TestMissingOnesAreTold: what is made beside the record, each once.
func TestMissingOnesAreTold(t *testing.T) {
	onOneNode(t, func(t *testing.T, d *coordinator.Directory, _ *pipeline.Store) {
		e, _, err := d.CreateKey(t.Context(), "acme", coordinator.Changes{"team": "search", "user": "bob"})
		if err != nil || fmt.Sprint(e.Made) != `[tenant "acme" team "search" of tenant "acme" user "bob" of tenant "acme"]` {
			t.Fatalf("%v %v", e.Made, err)
		}
		if e, _, err = d.CreateKey(t.Context(), "acme", coordinator.Changes{"team": "search"}); err != nil || len(e.Made) != 0 {
			t.Fatalf("%v %v", e.Made, err)
		}
		if e, err = d.Set(t.Context(), e.Ref, coordinator.Changes{"team": "sales"}); err != nil || fmt.Sprint(e.Made) != `[team "sales" of tenant "acme"]` {
			t.Fatalf("%v %v", e.Made, err)
		}
		if e, err = d.Create(t.Context(), team("umbrella", "r"), nil); err != nil || fmt.Sprint(e.Made) != `[tenant "umbrella"]` {
			t.Fatalf("%v %v", e.Made, err)
		}
		for _, empty := range []coordinator.Changes{{"rpm": ""}, {"budget": " "}, {"team": ""}} {
			if _, _, err := d.CreateKey(t.Context(), "acme", empty); !errors.Is(err, coordinator.ErrInvalid) || !strings.Contains(err.Error(), "is empty (leave it out for none)") {
				t.Errorf("%v: %v", empty, err)
			}
		}
	})
}

// TestIDsGivenByHandAreListedOnce: a record that was listed under its hash and then got an id has one line.
func TestIDsGivenByHandAreListedOnce(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, d *coordinator.Directory, s *pipeline.Store) {
		hash := coordinator.HashKey("sk-acme-nameless")
		redisDo(t, s, "HSET", coordinator.KeyRecord("acme", hash), "rpm", "3")
		if err := d.Reindex(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		list, err := d.List(t.Context(), coordinator.KindKey, "acme")
		if err != nil || len(list) != 1 || list[0].ID != hash[:12] || !strings.Contains(strings.Join(list[0].Faults(), ""), "id: missing") {
			t.Fatalf("%v %v", list, err)
		}
		redisDo(t, s, "HSET", coordinator.KeyRecord("acme", hash), "id", "by-hand")
		if e, err := d.Show(t.Context(), key("acme", hash[:12])); err != nil || e.ID != "by-hand" {
			t.Fatalf("%v %v", e, err)
		}
		if err := d.Reindex(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			list, err = d.List(t.Context(), coordinator.KindKey, "acme")
			if err != nil || len(list) != 1 || list[0].ID != "by-hand" || len(list[0].Faults()) != 0 {
				t.Fatalf("%v %v", list, err)
			}
		}
		if index := fieldsOf(t, s, coordinator.KeyIndex("acme")); len(index) != 1 || index["by-hand"] != hash {
			t.Fatalf("index: %v", index)
		}
	})
}
