package faults

import (
	"syscall"

	"github.com/headgate/headgate/bench/engine"
)

// What may happen in a run. Replicas, engines and relays are counted from 0.

func killReplica(i int) func(*world)   { return func(w *world) { w.Replicas[i].Kill() } }
func freezeReplica(i int) func(*world) { return func(w *world) { w.Replicas[i].Stop() } }
func thawReplica(i int) func(*world)   { return func(w *world) { w.Replicas[i].Cont() } }
func termReplica(i int) func(*world)   { return func(w *world) { w.Replicas[i].Term() } }

// startReplica starts it again and returns when it is ready.
func startReplica(i int) func(*world) {
	return func(w *world) { w.Replicas[i].Restart(); w.Replicas[i].WaitReady() }
}

func freezeRedis(w *world)  { w.redis.Stop() }
func thawRedis(w *world)    { w.redis.Cont() }
func killRedis(w *world)    { w.redis.Kill() }
func restartRedis(w *world) { w.redis.Restart() }

// onRedis runs a command.
func onRedis(args ...string) func(*world) { return func(w *world) { w.redis.CLI(args...) } }

// partition keeps all bytes between a replica and Redis from arriving; heal lets them go on.
func partition(i int) func(*world) { return func(w *world) { w.toRedis[i].Freeze() } }
func heal(i int) func(*world)      { return func(w *world) { w.toRedis[i].Thaw() } }

func freezeConsul(w *world)  { w.consul.Stop() }
func thawConsul(w *world)    { w.consul.Cont() }
func killConsul(w *world)    { w.consul.Kill() }
func restartConsul(w *world) { w.consul.Restart() }

func killEngine(i int) func(*world)   { return func(w *world) { w.engines[i].kill() } }
func freezeEngine(i int) func(*world) { return func(w *world) { w.engines[i].signal(syscall.SIGSTOP) } }
func thawEngine(i int) func(*world)   { return func(w *world) { w.engines[i].signal(syscall.SIGCONT) } }

// startEngine starts it again, well.
func startEngine(i int) func(*world) {
	return func(w *world) { w.engines[i].Loading = false; w.engines[i].start() }
}

// startLoading starts it again as engines come up: the port is open, /health says 503, requests get no answer.
func startLoading(i int) func(*world) {
	return func(w *world) { w.engines[i].Loading = true; w.engines[i].start() }
}

// ails makes an engine fail its requests in a way of package engine; well ends that.
func ails(i int, faults ...engine.Fault) func(*world) {
	return func(w *world) { w.engines[i].fault(faults...) }
}
func well(i int) func(*world) { return ails(i) }
