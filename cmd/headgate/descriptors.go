package main

import "syscall"

// connections is how many clients may be connected at a time: each may need a second descriptor, for an engine, and some
// are for Redis, Consul, files and the readings of engines: a quarter, from 64 to 256.
func connections() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 10_000
	}
	most := int(min(limit.Cur, 1<<30)) // "unlimited" does not fit an int
	others := max(64, min(most/4, 256))
	return max(16, (most-others)/2)
}
