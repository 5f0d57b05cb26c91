package sse

// word is a name or value of the protocols that matters here.
type word uint8

const (
	wordNone word = iota
	wordChoices
	wordUsage
	wordError
	wordObject
	wordType
	wordID
	wordDelta
	wordContentBlock
	wordFinishReason
	wordStopReason
	wordText // any name of generated text
	// What a usage may stand in.
	wordResponse
	wordMessage
	wordXGroq
)

func wordOf(name []byte) word {
	switch string(name) {
	case "choices":
		return wordChoices
	case "usage":
		return wordUsage
	case "error":
		return wordError
	case "object":
		return wordObject
	case "type":
		return wordType
	case "id":
		return wordID
	case "delta":
		return wordDelta
	case "content_block":
		return wordContentBlock
	case "finish_reason":
		return wordFinishReason
	case "stop_reason":
		return wordStopReason
	case "content", "text", "reasoning", "reasoning_content", "arguments", "name", "refusal", "thinking", "partial_json":
		return wordText
	case "response":
		return wordResponse
	case "message":
		return wordMessage
	case "x_groq":
		return wordXGroq
	}
	return wordNone
}

// kind is what the type of an event says, on Responses and Messages.
type kind uint8

const (
	kindOther   kind = iota
	kindWaiting      // nothing was generated yet
	kindStart        // a message begins
	kindDelta        // of a message as a whole: its usage so far
	kindEnd          // the answer came to its end
	kindFailed
)

func kindOf(name []byte) kind {
	switch string(name) {
	case "response.created", "response.queued", "response.in_progress", "ping":
		return kindWaiting
	case "message_start":
		return kindStart
	case "message_delta":
		return kindDelta
	case "message_stop", "response.completed", "response.incomplete", "response.cancelled":
		return kindEnd
	case "error", "response.failed":
		return kindFailed
	}
	return kindOther
}

// maxSpelled is the length of the longest name or value of these.
const maxSpelled = len("response.in_progress")
