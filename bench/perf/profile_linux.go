package main

import (
	"fmt"
	"time"
)

// profile keeps headgate under one table's traffic for a while and says its process id, for perf and the like.
func profile(b *bench) error {
	s := b.smallShape()
	switch b.only {
	case "big":
		s = b.bigShape(100_000)
	case "stream":
		s = b.pacedShape(1000)
	}
	p, err := b.peer(headgate)
	if err != nil {
		return err
	}
	if b.only == "mem" {
		fmt.Printf("headgate is process %d\n", p.PID)
		each, sum, err := b.hold(headgate, 2000, max(b.window, 10*time.Second))
		fmt.Printf("%.1f KiB per open stream, %.0f MiB in all\n", each, sum)
		return err
	}
	fmt.Printf("headgate is process %d\n", p.PID)
	s.window = max(b.window, 10*time.Second)
	r, err := b.measure(headgate, s)
	fmt.Printf("%v; %.1f µs per request, %.1f per chunk\n", r.out, per(r.cpu.total(), r.out.Served), per(r.cpu.total(), r.chunks()))
	return err
}
