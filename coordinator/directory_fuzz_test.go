package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/rs/zerolog"
)

// FuzzPolicyField: what the directory takes it takes again unchanged and the decision script can read; what somebody writes
// with redis-cli never breaks the script.
func FuzzPolicyField(f *testing.F) {
	for i, value := range []string{"", "x", "team-a", "ann", "1", "60", "100000", "8", "12.5", "30d", "5/day 100/30d", "qwen*, small", "3", "a,b", "0", "2026-12-31"} {
		f.Add(uint8(i), value)
		f.Add(uint8(i), "9e9")
		f.Add(uint8(i), "-1\x00{t:b}")
	}
	store, pipes := connected(f, lab.SharedRedis(f).URL()), pipeline.New()
	ledger := NewLedger(LedgerConfig{Replica: "fuzz", Store: store, Pipeline: pipes, Log: zerolog.Nop()})
	n := 0
	f.Fuzz(func(t *testing.T, at uint8, value string) {
		field := recordFields[int(at)%len(recordFields)]
		n++
		tenant := fmt.Sprintf("fuzz-%d-%d", time.Now().UnixNano(), n)
		verdict := func(value string) Verdict {
			t.Helper()
			if _, err := store.Do(t.Context(), "HSET", TenantRoot(tenant)+":key:k1", "id", "key_1", field.name, value); err != nil {
				t.Fatal(err)
			}
			a, err := ledger.Admit(pipes.Batch(), Request{RID: fmt.Sprintf("%032x", n), Tenant: tenant, KeyHash: "k1", Model: "m", Known: true, Priced: true,
				PromptTokens: 1, OutputCap: 1, OutputUsual: 1, HoldNUSD: 1}).Wait(t.Context())
			if err != nil || a.Verdict < Admitted || a.Verdict > AlreadySettled {
				t.Fatalf("%s %q: verdict %d, %v", field.name, value, a.Verdict, err)
			}
			return a.Verdict
		}
		verdict(value)
		if field.fixed {
			return
		}
		stored, err := checkField(KindKey, field.name, value, time.Now())
		if err != nil || stored == "" {
			return
		}
		// An id that is no name is stored as its hash, and a client may not spell that hash: it would be somebody else's.
		hashed := stored[0] == '~' && (field.name == "team" || field.name == "user")
		if again, err := checkField(KindKey, field.name, stored, time.Now()); !hashed && (err != nil || again != stored) {
			t.Fatalf("%s: %q is stored as %q, and that as %q (%v)", field.name, value, stored, again, err)
		}
		if v := verdict(stored); v == PolicyUnreadable {
			t.Fatalf("%s: %q was taken and cannot be read", field.name, stored)
		}
	})
}
