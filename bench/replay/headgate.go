package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// The clocks of a replica, in ms, and how long what it sends and asks is on the way.
const (
	epochMS     = 1_800_000_000_000 // of virtual time 0
	readEveryMS = 250
	askedMS     = 4 // from the look at what the fleet holds to the engine's answer
	beatEveryMS = 1000
	grantMS     = 1 // an announcement
)

// headgate is the product's own placement: its scripts on a real Redis, called as a gateway replica calls them, with the
// simulation's clock.
type headgate struct {
	s     *simulation
	store *pipeline.Store
	root  string
	knows int64 // capacity_mu as registered; 0: not said

	waiting map[int]*job
	usual   float64 // tokens of an answer, as learned
}

// newHeadgate gives every run a pool of its own in the store.
func newHeadgate(store *pipeline.Store, capacityMU int64) func(*simulation) policy {
	return func(s *simulation) policy {
		pool := fmt.Sprintf("replay%d", runsMade.Add(1))
		return &headgate{s: s, store: store, root: coordinator.PoolRoot(pool), knows: capacityMU, waiting: map[int]*job{}, usual: 256}
	}
}

var runsMade atomic.Int64 // of this process

// redisFailed is what a run panics with when Redis fails: the events of a simulation return no errors.
type redisFailed struct{ error }

func engineName(i int) string  { return "b" + strconv.Itoa(i) }
func replicaName(i int) string { return "r" + strconv.Itoa(i) }

func (p *headgate) start(s *simulation) {
	for i := range s.replicas {
		s.after(0, func() { p.beats(i) })
	}
	for reader := range min(2, s.replicas) {
		s.after(float64(readEveryMS*reader)/2, p.reads)
	}
}

func (p *headgate) nowMS() int64 { return epochMS + int64(math.Round(p.s.now)) }

func (p *headgate) place(j *job) int {
	r := wait(p, lua.Place(&pipeline.Batch{}, p.store, p.root, p.ask(j), func(r lua.PlaceReply) lua.PlaceReply { return r }))
	switch r.State {
	case lua.PlacePlaced:
		j.foretold, j.expected = int(r.Matched), float64(r.ExpectedMS)
		return engineOf(r.Backend)
	case lua.PlaceQueued:
		p.waiting[j.id] = j
		j.queued = true
	default:
		p.fail(fmt.Errorf("place of request %d: state %d", j.id, r.State))
	}
	return -1
}

// ask is what the gateway would ask for.
func (p *headgate) ask(j *job) lua.PlaceArgs {
	u := catalogue.DefaultUnits
	output := int64(p.usual)
	a := lua.PlaceArgs{RID: rid(j), Attempt: 1, Replica: replicaName(j.replica), Tenant: "t", Model: "m",
		MU: u.Request + int64(j.prompt)*u.Prompt + output*u.Completion, OutputMU: u.Request + output*u.Completion, Wait: true,
		Limit: 1_000_000, Class: 5, NowMS: p.nowMS(), Prompt: lua.Prompt{Tokens: int64(j.prompt), Save: u.Prompt,
			Least: coordinator.LeastMatch, Bucket: j.prefix.Bucket}}
	for _, f := range j.prefix.Prints {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], f.Hash)
		a.Prompt.Prints = append(a.Prompt.Prints, lua.Print{Name: base64.RawURLEncoding.EncodeToString(b[:]), Tokens: f.Tokens})
	}
	for _, i := range ringOrder(j.head(p.s.block, affinityTokens), p.s.engines)[:min(p.s.engines, 32)] {
		a.Candidates = append(a.Candidates, lua.Slots{Backend: engineName(i), Slots: p.s.slots, Tag: lua.TagOf(engineName(i))})
	}
	return a
}

// affinityTokens is how much of a prompt the gateway's home is chosen by.
const affinityTokens = 512

func (p *headgate) done(j *job) {
	p.usual += (float64(j.output) - p.usual) / 32
	r := wait(p, lua.Release(&pipeline.Batch{}, p.store, p.root, lua.ReleaseArgs{RID: rid(j), Attempt: 1,
		Replica: replicaName(j.replica), Ran: lua.RanAnswered, TTFTMS: int64(math.Round(j.firstMS - j.placedMS)),
		Tokens: int64(j.output), NowMS: p.nowMS()}))
	if r.Granted > 0 {
		p.granted()
	}
}

// granted finds out who holds a slot of those that wait, as the announcements would say.
func (p *headgate) granted() {
	var ids []int
	for id := range p.waiting {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		j := p.waiting[id]
		m, err := p.store.Do(context.Background(), "HGET", p.root+":held:"+replicaName(j.replica), rid(j))
		if err != nil {
			p.fail(err)
			return
		}
		if m.IsNil() {
			continue
		}
		lease, err := m.ToString()
		f := strings.Fields(lease)
		if err != nil || len(f) < 2 {
			p.fail(fmt.Errorf("lease %q: %w", lease, err))
			return
		}
		delete(p.waiting, id)
		p.s.after(grantMS, func() { p.s.submit(j, engineOf(f[1])) })
	}
}

// beats is a replica's beat, every second.
func (p *headgate) beats(replica int) {
	a := lua.BeatArgs{Replica: replicaName(replica), NowMS: p.nowMS()}
	for i := range p.s.engines {
		a.Backends = append(a.Backends, lua.Registered{Backend: engineName(i), Address: engineName(i), Slots: p.s.slots,
			CapacityMU: p.knows})
	}
	if r := wait(p, lua.Beat(&pipeline.Batch{}, p.store, p.root, a)); r.Granted > 0 {
		p.granted()
	}
	p.s.after(beatEveryMS, func() { p.beats(replica) })
}

// reads is a reader's look at all engines, every 250 ms.
func (p *headgate) reads() {
	ids := make([]string, p.s.engines)
	for i := range ids {
		ids[i] = engineName(i)
	}
	asked := p.nowMS()
	held := wait(p, lua.Before(&pipeline.Batch{}, p.store, p.root, ids, func(r lua.BeforeReply) []int64 { return r.Held }))
	p.s.after(askedMS, func() {
		rs := make([]lua.Reading, 0, len(ids))
		for i, b := range p.s.engineList {
			rs = append(rs, lua.Reading{Backend: ids[i], Running: int64(len(b.running)), Waiting: int64(len(b.waiting)),
				KV: int64(10_000 * b.kv.used / b.kv.capacity), Held: held[i], AskedMS: asked, Started: "1",
				KVTokens: int64(p.s.kvTokens)})
		}
		wait(p, lua.Readings(&pipeline.Batch{}, p.store, p.root, rs, p.nowMS()))
	})
	p.s.after(readEveryMS, p.reads)
}

func (p *headgate) fail(err error) {
	if err != nil {
		panic(redisFailed{err})
	}
}

func rid(j *job) string { return strconv.FormatInt(int64(j.id), 16) }

func engineOf(name string) int {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "b"))
	if err != nil {
		return -1
	}
	return i
}

func wait[T any](p *headgate, h *pipeline.Handle[T]) T {
	v, err := h.Wait(context.Background())
	p.fail(err)
	return v
}
