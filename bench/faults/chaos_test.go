package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headgate/headgate/bench/engine"
)

// trouble is one thing that can go wrong in a chaos, and how it ends.
type trouble struct {
	on       string // whom it befalls: only one trouble at a time has it
	what     string
	begin    func(*world)
	end      func(*world)
	from, to time.Duration // how long it lasts
}

// troubles are all that can befall a world of three replicas and three engines.
func troubles() (all []trouble) {
	add := func(on, what string, from, to time.Duration, begin, end func(*world)) {
		all = append(all, trouble{on, what, begin, end, from, to})
	}
	none := func(*world) {}
	for i := range 3 {
		r := fmt.Sprintf("r%d", i+1)
		restart := func(w *world) { w.Replicas[i].Restart() }
		add("replica", r+" is killed", 2*s, 20*s, killReplica(i), restart)
		add("replica", r+" is frozen", 1*s, 20*s, freezeReplica(i), thawReplica(i))
		add("replica", r+" is told to leave", 6*s, 15*s, termReplica(i), restart)
		add("replica", r+" and redis are parted", 1*s, 15*s, partition(i), heal(i))
		add("replica", "redis is slow for "+r, 2*s, 10*s, func(w *world) { w.toRedis[i].SetDelay(100 * time.Millisecond) }, func(w *world) { w.toRedis[i].SetDelay(0) })
		add("replica", r+" loses its connections to redis", s/2, s, func(w *world) { w.toRedis[i].Cut() }, none)
		add("replica", "a reply to "+r+" is lost", s/2, s, losesReplies(i), none)
		add("replica", r+" and consul are parted", 2*s, 15*s, func(w *world) { w.toAgent[i].Freeze() }, func(w *world) { w.toAgent[i].Thaw() })
	}
	add("redis", "redis is frozen", s/2, 5*s, freezeRedis, thawRedis)
	add("redis", "redis is killed", s/2, 5*s, killRedis, restartRedis)
	add("redis", "redis is full", 1*s, 5*s, full, roomy)
	add("redis", "SCRIPT FLUSH", s/2, s, onRedis("SCRIPT", "FLUSH"), none)
	add("consul", "consul is frozen", 2*s, 20*s, freezeConsul, thawConsul)
	add("consul", "consul is killed", 2*s, 20*s, killConsul, restartConsul)
	for i := range 2 { // the third stays well
		b := fmt.Sprintf("b%d", i+1)
		add(b, b+" is killed", 2*s, 10*s, killEngine(i), startEngine(i))
		add(b, b+" is killed, and loads", 4*s, 10*s, several(killEngine(i), startLoading(i)), well(i))
		add(b, b+" is frozen", 2*s, 10*s, freezeEngine(i), thawEngine(i))
		for _, kind := range []string{engine.HangBeforeHead, engine.Garbage, engine.CloseAfterHead, "500", "503", engine.NoUsage} {
			add(b, b+" ails: "+kind, 2*s, 8*s, ails(i, engine.Fault{Kind: kind}), well(i))
		}
		for _, kind := range []string{engine.Cut, engine.Reset, engine.HangStream, engine.ErrorEvent, engine.Garbage} {
			add(b, b+" ails in its streams: "+kind, 2*s, 8*s, ails(i, engine.Fault{Kind: kind, After: 3}), well(i))
		}
	}
	return all
}

// chaos is all of it at once, in an order and at times that follow from the seed.
func chaos(seed uint64, lasts time.Duration) run {
	dice := rand.New(rand.NewPCG(seed, seed))
	r := run{name: fmt.Sprintf("everything at once for %v, seed %d", lasts, seed), load: ordinary,
		on:   setup{relayed: true, redis: []string{"--appendonly", "yes", "--appendfsync", "always"}, env: append([]string{"HG_NOTICE_TIME=1s", "HG_DRAIN_TIME=10s"}, hasty...)},
		may:  []string{reset, cut, expired, redisAway, noBackend, full503, leaving, "502 upstream_error", "502 stream_truncated", "504 timeout", "event shutdown", "event timeout", "event stream_truncated", "event upstream_error", "event 500"},
		then: 12 * s,
	}
	all, busy := troubles(), map[string]time.Duration{}
	for at := 2 * s; at < lasts; at += s/2 + time.Duration(dice.Int64N(int64(3*s))) {
		t := all[dice.IntN(len(all))]
		length := t.from + time.Duration(dice.Int64N(int64(t.to-t.from)))
		if at < busy[t.on] || at+length > lasts {
			continue
		}
		busy[t.on] = at + length
		r.do = append(r.do, step{at: at, what: t.what, do: t.begin}, step{at: at + length, what: "over: " + t.what, do: t.end, repair: true})
	}
	slices.SortStableFunc(r.do, func(a, b step) int { return int(a.at - b.at) })
	return r
}
