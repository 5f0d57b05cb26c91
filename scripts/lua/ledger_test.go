package lua

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

// book is one tenant's ledger under test, on a clock that moves only when told.
type book struct {
	*testing.T
	store *pipeline.Store
	root  string
	now   int64 // ms
	rids  int
}

// start is 2076-11-30 12:00:00.250 UTC, a Monday in ISO week 49: far from now, because Redis drops a counter whose period
// ended long ago by its own clock.
const start = int64(3373963200250)

// everywhere is what the ledger runs on: a node, a cluster with replicas, a Sentinel set.
var everywhere = map[string]func(*testing.T) string{
	"redis":    func(t *testing.T) string { return lab.SharedRedis(t).URL() },
	"cluster":  func(t *testing.T) string { return lab.SharedCluster(t).URL() },
	"sentinel": func(t *testing.T) string { return lab.SharedSentinel(t).URL() },
}

// onAll runs test on each kind of Redis and on the embedded store. I4
func onAll(t *testing.T, test func(b *book)) {
	t.Helper()
	for name, url := range everywhere {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newBook(t, pipeline.StoreConfig{URL: url(t)}))
		})
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(newBook(t, pipeline.StoreConfig{URL: "redis://" + miniredis.RunT(t).Addr(), Simple: true}))
	})
}

func newBook(t *testing.T, cfg pipeline.StoreConfig) *book {
	t.Helper()
	cfg.Timeout = 10 * time.Second
	s, err := pipeline.NewStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { s.Run(ctx); close(stopped) }()
	t.Cleanup(func() { cancel(); <-stopped })
	if err := s.WaitConnected(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := make([]byte, 8)
	rand.Read(name)
	b := &book{T: t, store: s, root: "hg:{t:t" + hex.EncodeToString(name) + "}", now: start}
	b.key("k1", "created_at", "0")
	return b
}

// key writes the record of a key whose id and hash are the same.
func (b *book) key(id string, fields ...string) {
	b.Helper()
	b.hset(":key:"+id, append([]string{"id", id, "name", "n-" + id}, fields...)...)
}

func (b *book) hset(suffix string, fields ...string) { b.do("HSET", suffix, fields...) }

func (b *book) do(name, suffix string, args ...string) *rueidis.RedisMessage {
	b.Helper()
	m, err := b.store.Do(context.Background(), name, b.root+suffix, args...)
	if err != nil {
		b.Fatalf("%s %s: %v", name, suffix, err)
	}
	return &m
}

func (b *book) hash(suffix string) map[string]string {
	b.Helper()
	m := b.do("HGETALL", suffix)
	h, err := m.AsStrMap()
	if err != nil {
		b.Fatal(err)
	}
	return h
}

func (b *book) field(suffix, field string) int64 {
	b.Helper()
	n, _ := strconv.ParseInt(b.hash(suffix)[field], 10, 64)
	return n
}

// args is a request for key k1 that holds nothing.
func (b *book) args(change ...func(*AdmitArgs)) AdmitArgs {
	b.rids++
	a := AdmitArgs{RID: fmt.Sprintf("%032x", b.rids), KeyHash: "k1", Owner: "r1", Model: "m", Known: true, Priced: true,
		Label: ClaimText(`"rid":"x y%"`), nowMS: b.now}
	for _, c := range change {
		c(&a)
	}
	return a
}

func key(id string) func(*AdmitArgs)     { return func(a *AdmitArgs) { a.KeyHash = id } }
func model(name string) func(*AdmitArgs) { return func(a *AdmitArgs) { a.Model = name } }
func hold(nusd int64) func(*AdmitArgs)   { return func(a *AdmitArgs) { a.HoldNUSD = nusd } }
func owner(name string) func(*AdmitArgs) { return func(a *AdmitArgs) { a.Owner = name } }
func tokens(prompt, limit, usual int64) func(*AdmitArgs) {
	return func(a *AdmitArgs) { a.Prompt, a.Cap, a.Usual = prompt, limit, usual }
}

func asIs(r, to *AdmitReply) { *to = *r }

func (b *book) tryAdmit(a AdmitArgs) (AdmitReply, error) {
	batch := &pipeline.Batch{}
	return Admit(batch, b.store, b.root, &a, asIs).Wait(context.Background())
}

func (b *book) admit(change ...func(*AdmitArgs)) AdmitReply {
	b.Helper()
	r, err := b.tryAdmit(b.args(change...))
	if err != nil {
		b.Fatalf("admit: %v", err)
	}
	return r
}

// admitted admits a request that must pass and returns what settles it.
func (b *book) admitted(change ...func(*AdmitArgs)) SettleArgs {
	b.Helper()
	a := b.args(change...)
	r, err := b.tryAdmit(a)
	if err != nil || r.Verdict != 1 {
		b.Fatalf("admit: verdict %d %s, %v", r.Verdict, r.Scope, err)
	}
	return SettleArgs{RID: a.RID, Claim: r.Claim, Keep: true, Record: []byte(`{"rid":"` + a.RID + `"}`)}
}

// refused admits a request that must be refused with verdict by scope.
func (b *book) refused(verdict int64, scope string, change ...func(*AdmitArgs)) AdmitReply {
	b.Helper()
	r := b.admit(change...)
	if r.Verdict != verdict || r.Scope != scope || r.Claim != "" {
		b.Fatalf("verdict %d by %q, want %d by %q (%+v)", r.Verdict, r.Scope, verdict, scope, r)
	}
	return r
}

func (b *book) trySettle(s SettleArgs) (Settled, error) {
	s.nowMS = b.now
	batch := &pipeline.Batch{}
	return Settle(batch, b.store, b.root, s).Wait(context.Background())
}

func (b *book) settle(s SettleArgs, want Settled) {
	b.Helper()
	got, err := b.trySettle(s)
	if err != nil || got != want {
		b.Fatalf("settle: %d, %v, want %d", got, err, want)
	}
}

func (b *book) renew(owner string, rids ...string) RenewReply {
	b.Helper()
	batch := &pipeline.Batch{}
	r, err := renewAt(batch, b.store, b.root, owner, rids, decimal(b.now)).Wait(context.Background())
	if err != nil {
		b.Fatalf("renew: %v", err)
	}
	return r
}

// expire runs until the last page and returns how many were settled.
func (b *book) expire(owner string) (n int64) {
	b.Helper()
	for cursor := "0"; ; {
		batch := &pipeline.Batch{}
		r, err := expireAt(batch, b.store, b.root, owner, cursor, b.now).Wait(context.Background())
		if err != nil {
			b.Fatalf("expire: %v", err)
		}
		n += r.Settled
		if cursor = r.Next; cursor == "0" {
			return n
		}
	}
}

// records is the usage stream, oldest first.
func (b *book) records() []string {
	b.Helper()
	m := b.do("XRANGE", ":usage", "-", "+")
	entries, err := m.AsXRange()
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.FieldValues["record"])
	}
	return out
}

// dump is everything below the root, for "nothing changed".
func (b *book) dump() string {
	b.Helper()
	names, err := b.do("KEYS", "*").AsStrSlice()
	if err != nil {
		b.Fatal(err)
	}
	sort.Strings(names)
	var out strings.Builder
	for _, name := range names {
		suffix := strings.TrimPrefix(name, b.root)
		kind, _ := b.do("TYPE", suffix).ToString()
		fmt.Fprintf(&out, "%s %s", suffix, kind)
		switch kind {
		case "hash":
			fmt.Fprint(&out, b.hash(suffix))
		case "zset":
			z, _ := b.do("ZRANGE", suffix, "0", "-1", "WITHSCORES").AsStrSlice()
			fmt.Fprint(&out, z)
		case "stream":
			fmt.Fprint(&out, b.records())
		case "string":
			s, _ := b.do("GET", suffix).ToString()
			fmt.Fprint(&out, s)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// nothingOpen asserts that no reservation stands anywhere.
func (b *book) nothingOpen() {
	b.Helper()
	if h := b.hash(":parallel"); len(h) != 0 {
		b.Fatalf("running: %v", h)
	}
	if n, _ := b.do("ZCARD", ":reservations").AsInt64(); n != 0 {
		b.Fatalf("%d reservations", n)
	}
	for rid, claim := range b.hash(":open") {
		if claim[0] != 'x' {
			b.Fatalf("%s is open: %s", rid, claim)
		}
	}
}
