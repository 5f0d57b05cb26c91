package lua

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var beatScript = read("beat")

// BeatArgs is one beat of a replica in one pool.
type BeatArgs struct {
	Replica  string
	Waiting  []string     // rids it was told to wait for, at most 100
	Backends []Registered // at most 64
	NowMS    int64        // 0: Redis' clock, as in all that is not a test
}

// Registered is a backend as its registration describes it.
type Registered struct {
	Backend, Address string
	Slots            int
	Draining         bool
	CapacityMU       int64    // per second, thousandths; 0: not said
	Models           []string // any text; none: not known here
}

// BeatReply is what a replica learns from its beat.
type BeatReply struct {
	NowMS      int64
	Leases     int64         // of this replica
	Grants     []Grant       // of the rids it waits for
	Lost       []string      // rids that neither hold a slot nor stand in the queue
	Replicas   []ReplicaBeat // the oldest beats first: at most 256 in the pool without a name, elsewhere 32 while nobody is late
	Unreadable []string      // backends whose record cannot be read
	Granted    int64         // slots handed over, to whomever
}

// Grant is a slot given to a request that waited.
type Grant struct {
	RID     string
	Attempt int
	Backend string
	Matched int64 // prompt tokens that are warm there; 0 also where a grant is told a second time
}

// ReplicaBeat is the last beat of a replica by Redis' clock.
type ReplicaBeat struct {
	Replica string
	BeatMS  int64
}

// Beat declares a below the root of a pool.
func Beat(b *pipeline.Batch, s *pipeline.Store, root string, a BeatArgs) *pipeline.Handle[BeatReply] {
	args := make([]string, 0, 2+len(a.Waiting)+6*len(a.Backends))
	args = append(args, a.Replica, strconv.Itoa(len(a.Waiting)))
	args = append(args, a.Waiting...)
	for _, r := range a.Backends {
		args = append(args, r.Backend, r.Address, strconv.Itoa(r.Slots), flag(r.Draining), figure(r.CapacityMU), r.models())
	}
	args = onClock(args, a.NowMS)
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: beatScript, Key: root, Args: args}, readBeat)
}

func (r Registered) models() string {
	escaped := make([]string, len(r.Models))
	for i, m := range r.Models {
		escaped[i] = url.PathEscape(m)
	}
	return strings.Join(escaped, " ")
}

func readBeat(m rueidis.RedisMessage) (BeatReply, error) {
	f, err := array(m, 7)
	if err != nil {
		return BeatReply{}, fmt.Errorf("beat: %w", err)
	}
	d := fields{}
	r := BeatReply{
		NowMS:      d.whole(f[0]),
		Leases:     d.whole(f[1]),
		Lost:       d.texts(f[3]),
		Unreadable: d.texts(f[5]),
		Granted:    d.whole(f[6]),
	}
	for g := d.texts(f[2]); len(g) >= 4; g = g[4:] {
		r.Grants = append(r.Grants, Grant{RID: g[0], Attempt: int(d.number(g[1])), Backend: g[2], Matched: d.number(g[3])})
	}
	for p := d.texts(f[4]); len(p) >= 2; p = p[2:] {
		r.Replicas = append(r.Replicas, ReplicaBeat{Replica: p[0], BeatMS: d.number(p[1])})
	}
	if d.err != nil {
		return BeatReply{}, fmt.Errorf("beat: %w", d.err)
	}
	return r, nil
}
