// Command perf measures headgate beside its peers and prints one table per question; make bench-small and the like run it,
// and README.md beside bench/ has the results. It binds itself, the engines and Redis to one processor and whatever stands
// in the middle to another. No part of the product.
//
// Invariants:
//
//	I1. A ratio is of neighbours: the reference runs right before and right after each run of a candidate, in the same
//	    conditions, and the ratio is to the mean of the two. (TestPaired)
//	I2. A run that dropped a stream or met one error fails the table; so does one that served too little, three times in a
//	    row. (TestRefused)
//	I3. CPU is that of the whole process tree of what is measured, from the kernel's accounting. (TestCPU)
package main
