// Package lab gives tests the real things to run against: Redis, Redis Cluster, Redis Sentinel, Consul, and a TCP relay that delays, cuts
// and freezes what passes between two of them. Only tests import it, and it imports nothing of this project.
//
// Everything started here is on the loopback address, on ports of its own, keeps nothing on disk beyond the test, and is
// gone when the test ends. A missing binary fails the test with the command that installs it; nothing is skipped.
//
// Invariants:
//
//	I1. A server that was handed out answers, and it is the process this package started, not one that had the port before.
//	I2. No server outlives the test binary, also when that panics, times out or is killed.
//	I3. A relay keeps order and bytes in each direction; a delay shifts every segment and does not limit throughput.
//	I4. A cluster that was handed out is in state ok on every node, and every node names every other by the address clients
//	    are to use (the relay's, where there is one).
//	I5. After a failover everybody who is asked where the primary is names the new one.
package lab
