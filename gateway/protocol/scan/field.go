package scan

// field is a top-level field the gateway acts on.
type field uint8

const (
	fieldNone field = iota
	fieldModel
	fieldStream
	fieldStreamOptions
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens
	fieldN
	fieldBestOf
	fieldUser
	fieldPriority
	fieldCacheSalt
	fieldMessages
	fieldPrompt
	fieldInput
	fieldSystem
	fieldInstructions
	// Acted on for Responses alone.
	fieldPreviousResponseID
	fieldBackground
	fieldStore
	fieldRequestID
	// From here on: what can become prompt and is only measured.
	fieldTools
	fieldFunctions
	fieldResponseFormat
	fieldDocuments
	fieldSuffix
	fieldQuery
	fieldQueries
	fieldText1
	fieldText2
	fieldChatTemplate
	fieldChatTemplateKwargs
	fieldPromptEmbeds
	fieldPreviousInputMessages
	fieldText
	fieldCount
)

var fieldNames = [fieldCount]string{
	"", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of",
	"user", "priority", "cache_salt", "messages", "prompt", "input", "system", "instructions", "previous_response_id",
	"background", "store", "request_id", "tools", "functions", "response_format", "documents", "suffix", "query", "queries",
	"text_1", "text_2", "chat_template", "chat_template_kwargs", "prompt_embeds", "previous_input_messages", "text",
}

// maxNameBytes is the length of the longest name; each byte can be written as six.
const maxNameBytes = len("previous_input_messages")

func (f field) String() string { return fieldNames[f] }

// actedOn is the field as it counts on a route: one of another API is the engine's alone.
func (f field) actedOn(r Route) field {
	if f >= fieldPreviousResponseID && f <= fieldRequestID && r != Responses {
		return fieldNone
	}
	return f
}

// fieldOf compiles to a jump by length: no map, no hash.
func fieldOf(name []byte) field {
	switch string(name) {
	case "model":
		return fieldModel
	case "stream":
		return fieldStream
	case "stream_options":
		return fieldStreamOptions
	case "max_tokens":
		return fieldMaxTokens
	case "max_completion_tokens":
		return fieldMaxCompletionTokens
	case "max_output_tokens":
		return fieldMaxOutputTokens
	case "n":
		return fieldN
	case "best_of":
		return fieldBestOf
	case "user":
		return fieldUser
	case "priority":
		return fieldPriority
	case "cache_salt":
		return fieldCacheSalt
	case "messages":
		return fieldMessages
	case "prompt":
		return fieldPrompt
	case "input":
		return fieldInput
	case "previous_response_id":
		return fieldPreviousResponseID
	case "background":
		return fieldBackground
	case "store":
		return fieldStore
	case "request_id":
		return fieldRequestID
	case "tools":
		return fieldTools
	case "functions":
		return fieldFunctions
	case "response_format":
		return fieldResponseFormat
	case "documents":
		return fieldDocuments
	case "system":
		return fieldSystem
	case "instructions":
		return fieldInstructions
	case "suffix":
		return fieldSuffix
	case "query":
		return fieldQuery
	case "queries":
		return fieldQueries
	case "text_1":
		return fieldText1
	case "text_2":
		return fieldText2
	case "chat_template":
		return fieldChatTemplate
	case "chat_template_kwargs":
		return fieldChatTemplateKwargs
	case "prompt_embeds":
		return fieldPromptEmbeds
	case "previous_input_messages":
		return fieldPreviousInputMessages
	case "text":
		return fieldText
	}
	return fieldNone
}

type fieldSet uint64

func (s fieldSet) has(f field) bool { return s>>f&1 == 1 }
func (s *fieldSet) add(f field)     { *s |= 1 << f }
