package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
	"github.com/rs/zerolog"
)

// world is who asks and who serves: tenants with one key and one team each, three scopes with every limit, and pools of backends.
type world struct {
	tenants, pools, backends, slots int
}

// The usual request: a conversation of 4,000 tokens that goes on, and an answer of 200.
const (
	promptTokens = 4000
	answerTokens = 200
	turns        = 8  // requests of a conversation
	prints       = 12 // fingerprints of a request, of which the turn before had all but two
	capacityMU   = 450_000
)

func tenant(n int) string   { return fmt.Sprintf("tenant%02d", n) }
func poolName(n int) string { return fmt.Sprintf("model%02d", n) }
func keyHash(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return hex.EncodeToString(sum[:])
}

// policies loads the scripts and writes the records of all tenants.
func (w world) policies(ctx context.Context, s *pipeline.Store) error {
	if err := s.Load(ctx, lua.All()...); err != nil {
		return err
	}
	limits := []string{"rpm", "100000000", "tpm", "100000000000", "budget_usd", "1000000", "period", "month", "created_at", "1"}
	for n := range w.tenants {
		root := coordinator.TenantRoot(tenant(n))
		key := append([]string{"id", "key_" + tenant(n), "name", "ci", "team", "search"}, limits...)
		for name, fields := range map[string][]string{root: limits, coordinator.TeamPolicy(tenant(n), "search"): limits,
			coordinator.KeyRecord(tenant(n), keyHash(tenant(n))): key} {
			if _, err := s.Do(ctx, "HSET", name, fields...); err != nil {
				return err
			}
		}
	}
	return nil
}

// register has a replica's beat write the backends' records.
func (w world) register(ctx context.Context, s *pipeline.Store) error {
	for n := range w.pools {
		beat := lua.BeatArgs{Replica: "first"}
		for i := range w.backends {
			beat.Backends = append(beat.Backends, lua.Registered{Backend: backendName(n, i), Address: "10.0.0.1:8000", Slots: w.slots,
				CapacityMU: capacityMU, Models: []string{poolName(n)}})
		}
		if _, err := lua.Beat(&pipeline.Batch{}, s, coordinator.PoolRoot(poolName(n)), beat).Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func backendName(pool, n int) string { return fmt.Sprintf("%s-gpu%03d", poolName(pool), n) }

// request is request n as both owners see it.
func (w world) request(n int) (coordinator.Request, coordinator.Ask) {
	conversation, turn := n/turns, n%turns
	who, pool := tenant(conversation%w.tenants), conversation%w.pools
	u := catalogue.DefaultUnits
	r := coordinator.Request{RID: newRID(), RequestID: "0123456789", Tenant: who, KeyHash: keyHash(who), Model: poolName(pool),
		Route: "/v1/chat/completions", Known: true, Priced: true, PromptBytes: 4 * promptTokens, OutputCap: 1000, HoldNUSD: 5_000_000}
	a := coordinator.Ask{RID: r.RID, Attempt: 1, Pool: r.Model, Tenant: who, Model: r.Model, Wait: true, Class: 5,
		MU: u.Request + promptTokens*u.Prompt + answerTokens*u.Completion, OutputMU: answerTokens * u.Completion, PromptTokens: promptTokens,
		WarmMU: u.Prompt - u.Cached, Prefix: conversationPrefix(conversation, turn)}
	for i := range w.backends {
		a.Candidates = append(a.Candidates, coordinator.Candidate{ID: backendName(pool, (conversation+i)%w.backends), Slots: w.slots})
	}
	return r, a
}

// conversationPrefix shares all prints but the last two with the turn before.
func conversationPrefix(conversation, turn int) coordinator.Prefix {
	p := coordinator.Prefix{Bucket: conversation % 16}
	for i := range prints {
		at := uint64(conversation)<<16 | uint64(2*turn+i)
		p.Prints = append(p.Prints, coordinator.Fingerprint{Hash: at * 0x9e3779b97f4a7c15, Tokens: int64(promptTokens * (i + 1) / prints)})
	}
	return p
}

func newRID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// usageLine is a record of the usual length and content.
func usageLine(r coordinator.Request, backend string) []byte {
	return fmt.Appendf(nil, `{"time":"2026-11-30T12:00:00.000Z","request_id":%q,"rid":%q,"replica":"gateway-7f9c-1a2b3c4d","tenant":%q,"team":"search",`+
		`"user":"","key_id":"key_%s","end_user":"","tags":[],"route":"/v1/chat/completions","model":%q,"pool":%q,"backend":%q,"attempts":1,`+
		`"status":200,"outcome":"ok","error_code":"","stream":true,"prompt_tokens":4000,"cached_tokens":3600,"completion_tokens":200,`+
		`"usage_source":"backend","cost_nusd":1400000,"over_nusd":0,"mu":49000,"charged":["key:key_%s:2026-11","team:search:2026-11","tenant:%s:2026-11"],`+
		`"held_tokens":5000,"held_nusd":5000000,"refusal":null,"cache":"off","prefix_matched":3600,"candidates":8,"expected_ms":12,"queue_ms":0,`+
		`"redis_ms":0.412,"round_trips":1,"ttft_ms":120.5,"tpot_ms":20.125,"duration_ms":4120.25,"request_bytes":16420,"response_bytes":61234,`+
		`"client_ip":"10.1.2.3","user_agent":"OpenAI/Python 1.99.1"}`, r.RequestID, r.RID, r.Tenant, r.Tenant, r.Model, r.Model, backend, r.Tenant, r.Tenant)
}

// replica is what a gateway replica has between its HTTP and Redis.
type replica struct {
	name      string
	store     *pipeline.Store
	pipeline  *pipeline.Pipeline
	ledger    *coordinator.Ledger
	placement *coordinator.Placement

	half half
}

// half is which owners take part; zero: both.
type half int

const (
	ledgerAlone half = iota + 1
	placementAlone
)

func newReplica(b *bench, name, url string, pools func() []coordinator.PoolView) *replica {
	r := &replica{name: name, store: b.store(url), pipeline: pipeline.New()}
	r.ledger = coordinator.NewLedger(coordinator.LedgerConfig{Replica: name, Store: r.store, Pipeline: r.pipeline, Log: zerolog.Nop()})
	r.placement = coordinator.NewPlacement(coordinator.PlacementConfig{Replica: name, Store: r.store, Pipeline: r.pipeline, Pools: pools,
		QueueLimit: 1000, Log: zerolog.Nop()})
	return r
}

// held is a request between its two batches.
type held struct {
	request   coordinator.Request
	ask       coordinator.Ask
	admission coordinator.Admission
	place     coordinator.Place
}

// ask is all that request n needs before the model call. // I1
func (r *replica) ask(ctx context.Context, w world, n int) (h held, err error) {
	request, ask := w.request(n)
	batch := r.pipeline.Batch()
	admitted := pipeline.Resolved(coordinator.Admission{Verdict: coordinator.Admitted}, nil)
	placed := pipeline.Resolved(coordinator.Place{State: coordinator.Placed}, nil)
	if r.half != placementAlone {
		admitted = r.ledger.Admit(batch, request)
	}
	if r.half != ledgerAlone {
		placed = r.placement.Place(batch, ask)
	}
	h = held{request: request, ask: ask}
	if h.admission, err = admitted.Wait(ctx); err != nil {
		return h, err
	}
	if h.place, err = placed.Wait(ctx); err != nil {
		return h, err
	}
	switch {
	case h.admission.Verdict != coordinator.Admitted:
		return h, fmt.Errorf("not admitted: verdict %d", h.admission.Verdict)
	case h.place.State != coordinator.Placed:
		return h, fmt.Errorf("not placed: state %d", h.place.State)
	case batch.RoundTrips() != 1:
		return h, fmt.Errorf("%d round trips", batch.RoundTrips())
	}
	return h, nil
}

// end is all behind it; nobody waits for it.
func (r *replica) end(h held) {
	post := r.pipeline.Post()
	if r.half != placementAlone {
		r.ledger.Settle(post, coordinator.Settlement{Tenant: h.request.Tenant, RID: h.request.RID, Claim: h.admission.Claim,
			AdmittedAt: h.admission.AdmittedAt, KeepRequest: true, Prompt: promptTokens, Cached: promptTokens * 9 / 10,
			Completion: answerTokens, CostNUSD: 1_400_000, Record: usageLine(h.request, h.place.Backend), Real: true})
	}
	if r.half != ledgerAlone {
		r.placement.Release(post, coordinator.Release{Pool: h.ask.Pool, RID: h.ask.RID, Attempt: 1, Answered: true,
			TTFT: 50 * time.Millisecond, Completion: answerTokens})
	}
	post.Send()
}

// settled returns when Redis has acknowledged all ends, and says if anything is left. // I1
func (r *replica) settled(ctx context.Context) error {
	if err := r.pipeline.Drain(ctx, r.store); err != nil {
		return err
	}
	if r.ledger.Open() != 0 || r.placement.Leases() != 0 || r.placement.Waiting() != 0 {
		return errors.New("requests were left behind")
	}
	return nil
}
