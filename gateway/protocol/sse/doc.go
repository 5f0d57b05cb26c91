// Package sse watches an engine's event stream while it is relayed. Tap hands the bytes on as they come and learns on
// the way what the gateway has to know: usage, errors, whether the answer was finished. Reader is a plain parser by the
// event-stream standard, for clients.
//
// Framing follows the standard: lines end by LF, CR or CRLF in any mixture, a byte order mark may come first, comments
// and unknown fields are skipped, several data lines are one event. Reads may be cut anywhere.
//
// What is held back. Without Options.Strip and Options.Whole nothing is. With either, an event is held from its first field
// until its blank line, which costs a client nothing, since it could not act on half an event; an event that grows beyond
// MaxHeld is let go and its usage stays in it. Comments before an event are never held. With Whole a stream that breaks
// off does so between two events, and an error event behind it is not taken for the rest of one.
//
// What is taken out with Options.Strip: an event with a usage and an empty list of choices, whole; from an event with
// choices, the usage member alone. A null usage stays: it names nothing. Messages and Responses always show their
// usage, so nothing is taken out there, and nothing held.
//
// Where usage is read. Chat and completions: the member usage of any chunk; the last one counts. Only where a stream has
// none, the one in x_groq counts: a server that has both writes the same figures into them. Responses: response.usage of
// the event that ends it (completed, incomplete, cancelled, failed). Messages: message_start and message_delta merged
// figure by figure, see protocol.Tally; without a message_delta that counts the output there is no usage, and
// End.Opening says what is known of the prompt.
//
// What an end is. Chat and completions: [DONE], or a finish reason for each choice. Responses: response.completed,
// response.incomplete, response.cancelled. Messages: message_stop, or a stop reason. An error in any of its forms (a
// member error that is not null, object or type error, response.failed, an event named error) means that there is none,
// whatever follows.
//
// What is parsed. An event is walked by a small automaton that keeps no text but a usage, an error and an id of bounded
// length, so lines of any length are read in bounded memory. An ordinary chunk is not even walked: it differs from the
// one before only in its text, so the bytes before and after are compared with those of the last chunk that was walked.
//
// Invariants:
//
//	I1. What is handed on, and what is learned, does not depend on where the reads were cut (TestCutsDoNotMatter,
//	    FuzzTap).
//	I2. Without Strip the bytes handed on are the bytes fed, without Whole in the same call (TestNothingHeldWithoutStrip,
//	    FuzzTap).
//	I3. With Strip every byte outside what is taken out is the engine's, and what is left parses to the same events
//	    (TestStrip, FuzzTap).
//	I4. The last usage that is not null and can be believed counts, wherever it stands, once (TestUsage, TestMessages,
//	    TestResponses, TestRecordedStreams).
//	I5. Memory is bounded by 2·MaxHeld + 2·MaxUsage + 3·MaxError + 2·maxShape, whatever the lines' length (TestLongLines).
//	I6. The comparison with the last chunk learns exactly what walking learns (TestShapesChangeNothing, FuzzTap).
//	I7. With Whole what was handed on ends between two events, but for one that outgrew MaxHeld (TestWholeEvents).
package sse
