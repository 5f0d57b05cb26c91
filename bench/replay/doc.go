// Command replay runs routing policies over the same traces: engines by the step model of bench/engine, gateways by the
// number, all in virtual time. headgate's own policy is no copy: it is the product's scripts on a real Redis, called as a
// replica calls them, with the simulation's clock. `make replay` runs it; README.md beside this file says what came out.
//
// Invariants:
//
//	I1. The same world gives the same outcome, with every policy.
//	I2. An engine computes each token of a prompt that its cache had not, and each token of an answer, once, unless it had to
//	    take a job's KV away; and its KV cache never holds more blocks than it has.
//	I3. Every request is answered under every policy, and none ever has more of headgate's slots on an engine than there are.
package main
