package faults

import (
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/lab"
)

const (
	redisAway = "503 redis_unavailable"
	noBackend = "503 no_backend"
	full503   = "503 queue_full"
	leaving   = "503 shutdown"
)

// ordinary is the load of most runs: 20 requests a second, one in ten of the clients leaves at some moment, and six streams
// of 7 s are open all the time.
var ordinary = load{leave: 0.1, streams: 6}

// hasty makes an engine that says nothing known within seconds.
var hasty = []string{"HG_FIRST_TOKEN_TIMEOUT=3s", "HG_STREAM_SILENCE=4s"}

// long is what `make test-faults` plays, one run after the other: each with a machine of its own, as far as there is one.
var long = []run{
	{
		name: "a replica is killed and started again 20 s later", load: ordinary,
		do: []step{
			{at: 3 * s, what: "r1 is killed", do: killReplica(0)},
			{at: 23 * s, what: "r1 is started", do: startReplica(0), repair: true},
		},
		may: []string{reset, cut},
	},
	{
		name: "a replica stands still for 60 s", load: ordinary,
		do: []step{
			{at: 3 * s, what: "r1 is frozen", do: freezeReplica(0)},
			{at: 63 * s, what: "r1 goes on", do: thawReplica(0), repair: true},
		},
		// What it had, its clients wait for in vain.
		may: []string{expired, reset, cut},
	},
	{
		name: "a replica gets SIGTERM", load: ordinary, on: setup{env: []string{"HG_NOTICE_TIME=3s", "HG_DRAIN_TIME=30s"}},
		do: []step{
			{at: 3 * s, what: "r1 is told to leave, and leaves", do: leaves(0, 0)},
			{at: 20 * s, what: "r1 is started", do: startReplica(0), repair: true},
		},
	},
	{
		name: "a replica gets SIGTERM twice", load: ordinary, on: setup{env: []string{"HG_NOTICE_TIME=3s", "HG_DRAIN_TIME=30s"}},
		do: []step{
			{at: 3 * s, what: "r1 is told to leave", do: termReplica(0)},
			{at: 4 * s, what: "r1 is told to leave at once, and leaves", do: leaves(0, 1)},
			{at: 10 * s, what: "r1 is started", do: startReplica(0), repair: true},
		},
		may: []string{"event shutdown", leaving, reset},
	},
	{
		name: "all replicas are restarted in turn", load: ordinary, on: setup{env: []string{"HG_NOTICE_TIME=2s", "HG_DRAIN_TIME=30s"}},
		do: []step{{at: 3 * s, what: "the rolling restart", do: rollingRestart, repair: true}},
	},
	{
		name: "a replica cannot reach redis for 20 s", load: ordinary, on: setup{relayed: true},
		do: []step{
			{at: 3 * s, what: "r1 and redis are parted", do: partition(0)},
			{at: 23 * s, what: "r1 and redis are together again", do: heal(0), repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "redis stands still for 20 s", load: ordinary,
		do: []step{
			{at: 3 * s, what: "redis is frozen", do: freezeRedis},
			{at: 23 * s, what: "redis goes on", do: thawRedis, repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "redis stands still for 10 s, and replicas serve on", load: ordinary, on: setup{env: []string{"HG_ON_REDIS_DOWN=serve"}},
		do: []step{
			{at: 3 * s, what: "redis is frozen", do: freezeRedis},
			{at: 13 * s, what: "redis goes on", do: thawRedis, repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "redis with an append-only file is killed, away for 5 s", load: ordinary, on: setup{redis: []string{"--appendonly", "yes"}},
		do: []step{
			{at: 3 * s, what: "redis is killed", do: killRedis},
			{at: 8 * s, what: "redis is back", do: restartRedis, repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "redis without persistence is killed, and its directory put back", load: ordinary,
		do: []step{
			{at: 15 * s, what: "redis is killed", do: killRedis},
			{at: 20 * s, what: "redis is back with tenants, keys and policies alone", do: restartEmpty, repair: true},
		},
		may: []string{redisAway, "401 invalid_api_key"}, forgets: true,
	},
	{
		name: "redis is full for 10 s (noeviction)", load: ordinary,
		do: []step{
			{at: 3 * s, what: "redis is full", do: full},
			{at: 13 * s, what: "redis has room", do: roomy, repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "SCRIPT FLUSH, five times", load: ordinary,
		do: []step{
			{at: 3 * s, what: "SCRIPT FLUSH", do: onRedis("SCRIPT", "FLUSH")},
			{at: 4 * s, what: "SCRIPT FLUSH", do: onRedis("SCRIPT", "FLUSH")},
			{at: 5 * s, what: "SCRIPT FLUSH", do: onRedis("SCRIPT", "FLUSH")},
			{at: 6 * s, what: "SCRIPT FLUSH", do: onRedis("SCRIPT", "FLUSH")},
			{at: 7 * s, what: "SCRIPT FLUSH", do: onRedis("SCRIPT", "FLUSH"), repair: true},
		},
	},
	{
		name: "the replies to nine settlements are lost", load: ordinary, on: setup{relayed: true},
		do: []step{
			{at: 3 * s, what: "one reply to each replica is lost", do: several(losesReplies(0), losesReplies(1), losesReplies(2))},
			{at: 6 * s, what: "one reply to each replica is lost", do: several(losesReplies(0), losesReplies(1), losesReplies(2))},
			{at: 9 * s, what: "one reply to each replica is lost", do: several(losesReplies(0), losesReplies(1), losesReplies(2)), repair: true},
		},
		may: []string{redisAway}, // the connection is shared: requests whose decision was under way on it
	},
	{
		name: "redis answers 300 ms late for 10 s", load: ordinary, on: setup{relayed: true},
		do: []step{
			{at: 3 * s, what: "redis is slow", do: slowRedis(150 * time.Millisecond)},
			{at: 13 * s, what: "redis is fast", do: slowRedis(0), repair: true},
		},
	},
	{
		name: "the primary is killed, its sentinels fail over", load: ordinary, on: setup{store: sentinel},
		do: []step{
			{at: 3 * s, what: "the primary is killed; the replica has taken over", do: primaryDies((*lab.RedisServer).Kill), repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "the primary stands still, its sentinels fail over, it comes back", load: ordinary, on: setup{store: sentinel},
		do: []step{
			{at: 3 * s, what: "the primary is frozen; the replica has taken over", do: primaryDies((*lab.RedisServer).Stop), repair: true},
			{at: 15 * s, what: "the old primary goes on, as a replica", do: func(w *world) { w.db.(*lab.SentinelSet).Replica.Cont() }, repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "the primary of a cluster that has the tenant is killed", load: ordinary, on: setup{store: replicated},
		do: []step{
			{at: 3 * s, what: "the tenant's primary is killed; its replica has taken over", do: shardDies(root(tenant)), repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "the primary of a cluster that has the pool is killed", load: ordinary, on: setup{store: replicated},
		do: []step{
			{at: 3 * s, what: "the pool's primary is killed; its replica has taken over", do: shardDies(poolRoot), repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "a third of a cluster's slots are moved: the tenant's and then the pool's", load: ordinary, on: setup{store: sharded},
		do: []step{
			{at: 3 * s, what: "the slots of the tenant's node have moved", do: reshard(root(tenant))},
			{at: 4 * s, what: "the slots of the pool's node have moved", do: reshard(poolRoot), repair: true},
		},
		may: []string{redisAway},
	},
	{
		name: "consul is frozen for 20 s", load: ordinary,
		do: []step{
			{at: 3 * s, what: "consul is frozen", do: freezeConsul},
			{at: 23 * s, what: "consul goes on", do: thawConsul, repair: true},
		},
	},
	{
		name: "consul is killed, and back empty 20 s later", load: ordinary,
		do: []step{
			{at: 3 * s, what: "consul is killed", do: killConsul},
			{at: 23 * s, what: "consul is back and knows nobody", do: restartConsul, repair: true},
		},
		then: 25 * s,
	},
	{
		name: "consul flaps", load: ordinary,
		do: []step{
			{at: 3 * s, what: "consul is killed", do: killConsul}, {at: 4 * s, what: "and back", do: restartConsul},
			{at: 7 * s, what: "consul is killed", do: killConsul}, {at: 8 * s, what: "and back", do: restartConsul},
			{at: 11 * s, what: "consul is killed", do: killConsul}, {at: 12 * s, what: "and back", do: restartConsul, repair: true},
		},
		then: 20 * s,
	},
	{
		name: "consul has no leader for 20 s", load: ordinary, on: setup{pair: true},
		do: []step{
			{at: 3 * s, what: "consul has lost its leader", do: leaderless},
			{at: 23 * s, what: "consul has a leader again", do: led, repair: true},
		},
	},
	{
		name: "an engine is killed and started again 15 s later", load: ordinary,
		do: []step{
			{at: 3 * s, what: "b1 is killed", do: killEngine(0)},
			{at: 18 * s, what: "b1 is started", do: startEngine(0), repair: true},
		},
		may: []string{"event stream_truncated", "502 upstream_error"},
	},
	{
		name: "an engine restarts and loads its model for 10 s", load: ordinary,
		do: []step{
			{at: 3 * s, what: "b1 is killed", do: killEngine(0)},
			{at: 8 * s, what: "b1 has its port open and loads", do: startLoading(0)},
			{at: 18 * s, what: "b1 is well", do: well(0), repair: true},
		},
		may:   []string{"event stream_truncated", "502 upstream_error"},
		check: spared(0, "b1 has its port open and loads", "b1 is well"),
	},
	{
		name: "engines refuse, fail and are gone, for 10 s", load: ordinary,
		do: []step{
			{at: 3 * s, what: "b1 answers 400, b2 500, b3 is killed", do: several(ails(0, engine.Fault{Kind: "400"}), ails(1, engine.Fault{Kind: "500"}), killEngine(2))},
			{at: 13 * s, what: "all are well", do: several(well(0), well(1), startEngine(2)), repair: true},
		},
		may: []string{"event stream_truncated", "502 upstream_error", noBackend, "400 400"},
	},
	{
		name: "an engine hangs and looks healthy for 20 s", load: ordinary, on: setup{env: hasty},
		do: []step{
			{at: 3 * s, what: "b1 answers nothing but /health", do: ails(0, engine.Fault{Kind: engine.HangBeforeHead})},
			{at: 23 * s, what: "b1 is well", do: well(0), repair: true},
		},
		may: []string{"504 timeout", expired}, // an answer that is not streamed may take HG_REQUEST_TIMEOUT
	},
	{
		name: "an engine is frozen for 20 s", load: ordinary, on: setup{env: hasty},
		do: []step{
			{at: 3 * s, what: "b1 is frozen", do: freezeEngine(0)},
			{at: 23 * s, what: "b1 goes on", do: thawEngine(0), repair: true},
		},
		may: []string{"504 timeout", "event timeout", expired, "502 upstream_error"},
	},
	{
		name: "an engine answers garbage, then breaks its streams, for 15 s", load: ordinary,
		do: []step{
			{at: 3 * s, what: "b1 answers garbage", do: ails(0, engine.Fault{Kind: engine.Garbage})},
			{at: 8 * s, what: "b1 breaks streams", do: ails(0, engine.Fault{Kind: engine.Garbage, After: 3})},
			{at: 13 * s, what: "b1 answers 500", do: ails(0, engine.Fault{Kind: "500"})},
			{at: 18 * s, what: "b1 is well", do: well(0), repair: true},
		},
		may: []string{"event stream_truncated", "502 upstream_error"},
	},
	{
		name: "the clocks of the replicas are 40 s apart, one is killed", load: ordinary, on: setup{program: shifted, each: wrongClocks},
		do: []step{
			{at: 10 * s, what: "r2 is killed", do: killReplica(1)},
			{at: 20 * s, what: "r2 is started", do: startReplica(1), repair: true},
		},
		may: []string{reset, cut},
	},
	{
		name: "file descriptors are short", load: load{clients: 150, leave: 0.1}, on: setup{replicas: 1, slots: 256, under: []string{"prlimit", "--nofile=128"}},
		do:   []step{{at: 3 * s, what: "nothing", do: func(*world) {}, repair: true}},
		also: []string{full503},
	},
	{
		name: "the spool's disk is full while redis is away", load: ordinary, on: setup{each: smallDisk(4 << 10)},
		do: []step{
			{at: 3 * s, what: "redis is frozen", do: freezeRedis},
			{at: 13 * s, what: "redis goes on", do: thawRedis, repair: true},
		},
		may:   []string{redisAway},
		check: says("settlements that wait for redis are in memory only"),
	},
	{
		name: "200 clients on 3 engines of 4 slots, half of them leave", on: setup{slots: 4}, load: load{clients: 200, leave: 0.5},
		do:    []step{{at: 20 * s, what: "nothing", do: func(*world) {}, repair: true}},
		check: neverAbove(4),
	},
}
