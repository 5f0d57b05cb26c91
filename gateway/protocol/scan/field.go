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
	// From here on: what can become prompt and is only measured.
	fieldTools
	fieldFunctions
	fieldResponseFormat
	fieldDocuments
	fieldSystem
	fieldInstructions
	fieldSuffix
	fieldQuery
	fieldQueries
	fieldText1
	fieldText2
	fieldChatTemplate
	fieldChatTemplateKwargs
	fieldCount
)

var fieldNames = [fieldCount]string{
	"", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of",
	"user", "priority", "cache_salt", "messages", "prompt", "input", "tools", "functions", "response_format", "documents",
	"system", "instructions", "suffix", "query", "queries", "text_1", "text_2", "chat_template", "chat_template_kwargs",
}

// maxNameBytes is the length of the longest name; each byte can be written as six.
const maxNameBytes = len("max_completion_tokens")

func (f field) String() string { return fieldNames[f] }

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
	}
	return fieldNone
}

type fieldSet uint64

func (s fieldSet) has(f field) bool { return s>>f&1 == 1 }
func (s *fieldSet) add(f field)     { *s |= 1 << f }
