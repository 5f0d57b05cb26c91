// Command scale measures what docs/scale.md calculates with: what a request, and what a fleet that only lives, costs Redis and
// keeps there. It calls the product's own scripts and coordinator on a real Redis, without HTTP before them; engines are
// simulated. Figures are CPU, counts and bytes, not speed: the machine may do other things at the same time.
//
// Invariants:
//
//	I1. Every request that is counted was admitted, placed, settled and released, in one wait; nothing is left behind.
//	I2. Who reads which engine, and how often, is what cluster.Readings of every replica decide.
package main
