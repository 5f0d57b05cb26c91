// Package protocol is what the gateway knows of the OpenAI-compatible protocol without doing any I/O: the errors it
// answers with and the usage it bills by. The parts: lex steps over JSON, scan reads and edits a request's body, sse
// watches a stream.
//
// Invariants:
//
//	I1. Every code has one status and one type, those of the table (TestErrorTable).
//	I2. An error body is valid JSON whatever the message contains, and its event has exactly one data line
//	    (TestErrorBodiesAreValidJSON, FuzzErrorBody).
//	I3. A usage with a negative, fractional or absurd figure is not believed at all (TestUsageOf, TestTally,
//	    FuzzUsage).
//	I4. Of several usage objects the last one that is not null counts; they are never added up (TestUsageOf, TestTally).
package protocol
