package lua

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func enduser(id string) func(*AdmitArgs) { return func(a *AdmitArgs) { a.EndUser = id } }
func tagged(names string) func(*AdmitArgs) {
	return func(a *AdmitArgs) { a.Tags = names }
}

// Every kind of scope with every kind of limit: it refuses by its own name, and what another refuses it has not counted.
func TestAdmitEveryScope(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		b.key("k1", "team", "search", "user", "ann", "tags", "nightly, blue")
		b.hset("", "created_at", "0")
		ask := []func(*AdmitArgs){enduser("u1"), tagged("red,green"), hold(5), tokens(5, 0, 5)}
		for scope, suffix := range map[string]string{"key": ":key:k1", "user": ":user:ann", "team": ":team:search", "tenant": "",
			"enduser": ":enduser:u1", "tag": ":tag:green"} {
			for field, verdict := range map[string]int64{"rpm": 7, "tpm": 8, "parallel": 9, "budget_usd": 11, "budgets": 11, "disabled": 3, "models": 5} {
				value := map[string]string{"budgets": "5/total 0/day", "disabled": "1", "models": "other"}[field]
				if value == "" {
					value = "0"
				}
				b.hset(suffix, field, value)
				before := b.dump()
				b.refused(verdict, scope, ask...)
				if after := b.dump(); after != before {
					b.Fatalf("%s %s: changed\n%s\n%s", scope, field, before, after)
				}
				b.do("HDEL", suffix, field)
			}
		}
		for _, suffix := range []string{":user:ann", ":team:search", ":enduser:u1", ":tag:green", ":tag:nightly"} {
			b.hset(suffix, "rpm", "9", "budget_usd", "1")
		}
		b.hset(":tag:nightly", "rpm", "3")
		r := b.admit(ask...)
		if r.Verdict != 1 || r.Requests != (Minute{3, 2, 60000}) || fmt.Sprint(r.Tags) != "[nightly blue]" {
			b.Fatalf("%+v", r)
		}
		for _, scope := range []string{"key:k1", "user:ann", "team:search", "tenant:" + b.tenant(), "enduser:u1", "tag:green", "tag:nightly"} {
			if n := b.field(":spend:"+scope+":2076-11", "reserved_nusd"); n != 5 {
				b.Fatalf("%s: %d\n%s", scope, n, b.dump())
			}
		}
		if d := b.dump(); strings.Contains(d, "tag:red") || strings.Contains(d, "tag:blue") {
			b.Fatal(d) // without a policy nothing is left behind
		}
		b.settle(SettleArgs{RID: fmt.Sprintf("%032x", b.rids), Claim: r.Claim, Keep: true, CostNUSD: 3}, Replaced)
		for _, scope := range []string{"key:k1", "user:ann", "team:search", "tenant:" + b.tenant(), "enduser:u1", "tag:green", "tag:nightly"} {
			if h := b.hash(":spend:" + scope + ":2076-11"); h["spent_nusd"] != "3" || h["reserved_nusd"] != "0" {
				b.Fatalf("%s: %v", scope, h)
			}
		}
		b.nothingOpen()
		b.hset(":key:k1", "tags", "a:b")
		b.refused(12, "key")
	})
}

// A made-up end user costs one read and leaves nothing behind.
func TestAdmitMadeUpScopes(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		s := b.admitted(enduser("nobody"), tagged("x,y"), hold(5))
		b.settle(s, Replaced)
		if d := b.dump(); strings.Contains(d, "nobody") || strings.Contains(d, "tag:") {
			b.Fatal(d)
		}
	})
}

// The record of a lost request names its tags, those of the key's policy too.
func TestLostRecordNamesTheTags(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		for i, c := range []struct{ policy, sent, label, want string }{
			{"", "", "[]", "[]"}, {"a,b", "", "[]", "[a b]"}, {"a,b", "b,c", `["b","c"]`, "[a b c]"}, {"", "c", `["c"]`, "[c]"}, {"c", "c", `["c"]`, "[c]"},
		} {
			b.hset(":key:k1", "tags", c.policy)
			b.admitted(tagged(c.sent), func(a *AdmitArgs) { a.Label = ClaimText(`"rid":"x","tags":` + c.label + `,"n":1`) })
			b.expire("r1")
			var rec struct{ Tags []string }
			if err := json.Unmarshal([]byte(b.records()[i]), &rec); err != nil || fmt.Sprint(rec.Tags) != c.want {
				b.Fatalf("%s: %v %v, want %s", b.records()[i], rec, err, c.want)
			}
		}
	})
}

// Bytes become tokens with what was learned; a sample moves a mean by 5 % at most and never out of its range.
func TestLearnedFigures(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		ask := func(a *AdmitArgs) { a.PromptBytes, a.Choices = 4000, 2 }
		r := b.admit(ask)
		if r.BytesPerToken != 4000 || r.UsualOutput != 256 || r.HeldTokens != 1000+512 {
			b.Fatalf("%+v", r)
		}
		sample := func(bytes, prompt, completion int64) AdmitReply {
			b.Helper()
			s := b.admitted(ask)
			s.Prompt, s.Completion, s.Learn = prompt, completion, Sample{PromptBytes: bytes, Model: "m", Choices: 2}
			b.settle(s, Replaced)
			return b.admit(ask)
		}
		if r = sample(4800, 1000, 1024); r.BytesPerToken != 4050 || r.UsualOutput != 268 { // (4800-4000)/16; 5 % of 256
			b.Fatalf("%+v", r)
		}
		for range 100 {
			r = sample(100000, 1000, 1)
		}
		if r.BytesPerToken < 5900 || r.BytesPerToken > 6000 || r.UsualOutput != 64 {
			b.Fatalf("%+v", r)
		}
		for range 200 {
			r = sample(1000, 1000, 1<<20)
		}
		if r.BytesPerToken < 2000 || r.BytesPerToken > 2050 || r.UsualOutput < 2000 || r.UsualOutput > 2048 {
			b.Fatalf("%+v", r)
		}
		b.hset(":learned", "bytes:m", "rubbish", "length:k1:m", "-3") // money never rests on them: an unreadable one starts anew
		if r = b.admit(ask); r.BytesPerToken != 4000 || r.UsualOutput != 256 {
			b.Fatalf("%+v", r)
		}
		b.key("k2")
		if r = b.admit(ask, key("k2")); r.UsualOutput != 256 {
			b.Fatalf("the length of another key: %+v", r)
		}
	})
}

// The usual settlement and the general one do the same.
func TestSettleTakesTheClaimApart(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		var dumps [2]string
		for i, apart := range []bool{false, true} {
			b.do("DEL", "")
			names, _ := b.do("KEYS", "*").AsStrSlice()
			for _, name := range names {
				b.do("DEL", strings.TrimPrefix(name, b.root))
			}
			b.scoped()
			b.rids, b.now = 0, start
			one, two := b.admitted(hold(1000), tokens(10, 100, 64)), b.admitted(hold(70), tokens(10, 100, 64))
			one.apart, two.apart = apart, apart
			one.Prompt, one.Cached, one.Completion, one.CostNUSD = 12, 4, 50, 333
			one.Learn = Sample{PromptBytes: 600, Model: "m"}
			b.settle(one, Replaced)
			b.now += 62000 // the cell has left
			b.settle(two, Replaced)
			dumps[i] = b.dump()
		}
		if dumps[0] != dumps[1] {
			b.Fatalf("%s\n%s", dumps[0], dumps[1])
		}
	})
}
