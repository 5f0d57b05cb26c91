// Package load is the two ends of a benchmark, as cheap as they can be so that what stands between them is measured and
// not they: engines that answer at once or at a fixed pace, and clients in a closed loop or with streams held open. Both
// are one goroutine over epoll (Linux only) with no allocation per request, so a core that serves and asks at the same time
// still has room at 20,000 requests or 40,000 tokens a second. No part of the product; bench/engine is the engine that
// behaves like vLLM.
//
// Invariants:
//
//	I1. An answer counts as served only if it is whole: 200, framed to its end, no shorter than what the engine sent, and a
//	    stream with its [DONE]. Everything else is an error of the run. (TestWholeAnswers)
//	I2. A paced stream's tokens are due at its start plus multiples of the pace: a late one does not delay those after it.
//	    (TestPace)
//	I3. Clients never have more requests open than they were told. (TestWholeAnswers)
package load
