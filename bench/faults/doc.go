// Package faults kills, freezes, partitions, slows down and restarts everything a fleet stands on, under load, and ends
// every run with the books. It is tests alone: `go test` plays the short runs, `make test-faults` all of them, and
// docs/faults.md has what they showed.
//
// A run is a literal that reads like a sentence (short_test.go, long_test.go): what is built, what clients do, what
// happens when, and which ends of requests are no fault of ours while it happens. Redis and Consul are real, replicas and
// simulated engines are processes on the loopback address; what has to be partitioned is reached through relays.
//
// Invariants, checked by every run (books_test.go):
//
//	I1. What a client was answered whole has one record with its cost, and no other; nothing is charged twice.
//	I2. What Redis says was spent is the sum of the records, unless the run makes Redis forget.
//	I3. 30 s after the last fault nothing is reserved, held or waiting.
//	I4. No request ends in a way the run does not allow for, and none does later than 5 s after the last repair.
//	I5. No engine had more requests of the fleet at once than its slots, but for the moments a request takes to end.
//	I6. A budget is passed by no more than the records say.
//	I7. Goroutines and memory of every replica are back to where they were.
package faults
