// Package sse watches an engine's event stream while it is relayed. Tap hands the bytes on as they come and learns on
// the way what the gateway has to know: usage, errors, whether the answer was finished. Reader is a plain parser by the
// event-stream standard, for clients.
//
// Framing follows the standard: lines end by LF, CR or CRLF in any mixture, a byte order mark may come first, comments
// and unknown fields are skipped, several data lines are one event. Reads may be cut anywhere.
//
// What is held back. Without Options.Strip nothing is. With it, an event is held from its first field until its blank
// line, which costs a client nothing, since it could not act on half an event; an event that grows beyond MaxHeld is
// let go and its usage stays in it. Comments before an event are never held.
//
// What is taken out with Options.Strip: an event with a usage and an empty list of choices, whole; from an event with
// choices, the usage member alone. A null usage stays: it names nothing.
//
// What is parsed. An event is walked by a small automaton that keeps no text but a usage or error of at most MaxCapture
// bytes, so lines of any length are read in bounded memory. An ordinary chunk is not even walked: it differs from the
// one before only in its text, so the bytes before and after are compared with those of the last chunk that was walked.
//
// Invariants:
//
//	I1. What is handed on, and what is learned, does not depend on where the reads were cut (TestCutsDoNotMatter,
//	    FuzzTap).
//	I2. Without Strip the bytes handed on are the bytes fed, in the same call (TestNothingHeldWithoutStrip, FuzzTap).
//	I3. With Strip every byte outside what is taken out is the engine's, and what is left parses to the same events
//	    (TestStrip, FuzzTap).
//	I4. The last usage that is not null and can be believed counts, wherever it stands, once (TestUsage).
//	I5. Memory is bounded by 2·MaxHeld + 3·MaxCapture + 2·maxShape, whatever the lines' length (TestLongLines).
//	I6. The comparison with the last chunk learns exactly what walking learns (TestShapesChangeNothing, FuzzTap).
package sse
